// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// boot counts while the machine sleeps. A kernel without that clock leaves what monotonic says.
func boot(monotonic func() time.Duration) func() time.Duration {
	read := func() (time.Duration, bool) {
		var t unix.Timespec
		err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
		return time.Duration(t.Nano()), err == nil
	}
	if _, ok := read(); !ok {
		return monotonic
	}
	return func() time.Duration {
		t, _ := read() // it has worked before; 0 would leave the other clock's word
		return t
	}
}
