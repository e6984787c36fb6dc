// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"time"

	"github.com/seguekv/segue/engines"
)

// Host supervises the engine's process.
type Host interface {
	// Current is the engine that runs now, or engines.ErrNotReady with the reason.
	Current() (LiveEngine, error)
	// Changed is closed at the next change of Current.
	Changed() <-chan struct{}
	// PID is the host's process id, 0 while it is down.
	PID() int
}

// LiveEngine is an engine whose process life can be watched.
type LiveEngine interface {
	engines.Engine
	// LastHeard is when the engine's process last spoke.
	LastHeard() time.Time
}

// heardFresh is the age up to which a heartbeat, sent every 200 ms, counts as life.
const heardFresh = time.Second
