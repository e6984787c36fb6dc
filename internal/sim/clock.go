// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"sync"
	"time"

	"github.com/seguekv/segue/fence"
)

// Clock is a host's own idea of elapsed time, for leases: it can run at another rate and jump.
type Clock struct {
	mu    sync.Mutex
	begun time.Time
	at    time.Time
	mono  time.Duration
	boot  time.Duration
	rate  float64
}

func newClock() *Clock {
	now := time.Now()
	return &Clock{begun: now, at: now, rate: 1}
}

// advance brings the two counters up to now. c.mu is held.
func (c *Clock) advance() {
	now := time.Now()
	d := time.Duration(float64(now.Sub(c.at)) * c.rate)
	c.mono, c.boot, c.at = c.mono+d, c.boot+d, now
}

// SetRate makes the clock run at another rate from now on.
func (c *Clock) SetRate(rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	c.rate = rate
}

// Jump moves the boot clock forward, as a machine's sleep does: the monotonic one stands still.
func (c *Clock) Jump(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	c.boot += by
}

func (c *Clock) fence() *fence.Clock {
	read := func(counter *time.Duration) func() time.Duration {
		return func() time.Duration {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.advance()
			return *counter
		}
	}
	return fence.ClockOf(read(&c.mono), read(&c.boot))
}
