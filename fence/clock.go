// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fence

import (
	"sync"
	"time"
)

// Clock yields elapsed time for leases. Its methods may be called concurrently.
type Clock struct {
	monotonic, boot func() time.Duration

	mu           sync.Mutex
	mono0, boot0 time.Duration
	last         time.Duration
}

// ClockOf makes a clock of two sources, each the time since some moment of its own: monotonic may stand still while
// the machine sleeps, boot counts at least what monotonic counts. They are read under a lock and must not block.
func ClockOf(monotonic, boot func() time.Duration) *Clock {
	return &Clock{monotonic: monotonic, boot: boot, mono0: monotonic(), boot0: boot()}
}

// Elapsed is the larger of what the two sources have counted since the clock was made. It never falls.
func (c *Clock) Elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last, c.monotonic()-c.mono0, c.boot()-c.boot0)
	return c.last
}
