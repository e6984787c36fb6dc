// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package clock

import (
	"time"

	"github.com/seguekv/segue/fence"
)

// System is a new clock on the machine's.
func System() *fence.Clock {
	start := time.Now()
	monotonic := func() time.Duration { return time.Since(start) }
	return fence.ClockOf(monotonic, boot(monotonic))
}
