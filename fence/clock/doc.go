// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package clock reads the machine's clocks for fence, which reads none.
//
// The monotonic clock of package time stands still while the machine sleeps. Where the system has a clock that
// doesn't, leases count by both.
package clock
