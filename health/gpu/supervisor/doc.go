// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package supervisor runs the program that reads the GPUs' driver, and makes a gpu.Report of each of its lines and of
// each time without one.
//
// The program calls a library that can hang for ever or end the process. So whatever it does costs no more than what
// is known of the devices: one that is missing, exits, is silent, writes rubbish or too much is reported as
// unavailable with the reason, ended, and started again after a pause that grows.
//
// Goroutines: Run's own reports; for each life of the program one more reads its lines and one waits for its end.
// Run waits for them for a second at most: a process that the kernel doesn't let go of is left behind, and no other
// is started before it is gone.
//
// INVARIANT: at most one process exists at a time.
// INVARIANT: memory is bounded whatever the program writes: one line, and one line of its standard error.
package supervisor
