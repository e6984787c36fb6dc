// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

//go:build !linux

package clock

import "time"

// boot is the monotonic clock: that is all there is.
func boot(monotonic func() time.Duration) func() time.Duration { return monotonic }
