// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Command segue-nvml reads the GPUs of a machine through NVIDIA's management library and prints what it finds, one
// line of JSON for each reading; package gpu describes the lines. An agent runs it and reads them; by hand,
// segue-nvml --once shows one reading.
//
// It is a program of its own since a call into that library can hang for ever, and one whose symbol is missing ends
// the process. Built without cgo it prints that nothing is available.
//
// Goroutines: run's own waits for a signal; serve's writes all lines; one makes the readings, of which at most one is
// under way; one waits for events. None but run's own has to end for the process to end.
//
// Exit codes: 0 ended by a signal, or nothing is available, which the first line says; 1 the output is closed, or
// --once got no reading in time; 2 bad flags.
package main

import "os"

func main() {
	out, err := reserveOutput()
	if err != nil {
		os.Exit(fail(os.Stderr, exitFailed, err))
	}
	os.Exit(run(os.Args[1:], out, os.Stderr, openLibrary))
}
