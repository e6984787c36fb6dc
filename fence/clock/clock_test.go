// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package clock_test

import (
	"testing"
	"time"

	"github.com/seguekv/segue/fence/clock"
)

// Nothing sleeps in a test's time: the clock agrees with package time.
func TestSystem_CountsElapsedTime(t *testing.T) {
	before := time.Now()
	c := clock.System()
	after := time.Now()
	last := time.Duration(0)
	for time.Since(after) < 20*time.Millisecond {
		least := time.Since(after)
		now := c.Elapsed()
		if now < last || now < least || now > time.Since(before)+time.Millisecond {
			t.Fatalf("elapsed %v after %v, between %v and %v by package time", now, last, least, time.Since(before))
		}
		last = now
	}
}
