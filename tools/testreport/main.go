// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Command testreport turns the output of `go test -json` on its standard input into a report for people: one
// line per package, the full output of failed tests, every skipped test with its reason, the slowest tests,
// and a closing line with the counts. It exits with 1 when anything failed or nothing ran.
package main

import (
	"fmt"
	"io"
	"os"
)

func main() {
	os.Exit(run(os.Stdin, os.Stdout, os.Stderr))
}

func run(in io.Reader, out, errs io.Writer) int {
	r := newReport(out)
	if err := r.read(in); err != nil {
		fmt.Fprintf(errs, "testreport: %v\n", err)
		return 1
	}
	if !r.finish() {
		return 1
	}
	return 0
}
