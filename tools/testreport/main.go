// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Command testreport turns the output of `go test -json` on its standard input into a report for people: one
// line per package, the full output of failed tests, every skipped test with its reason, the slowest tests,
// and a closing line with the counts. With -v it names the tests that passed, too. It exits with 1 when anything
// failed or nothing ran.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	verbose := flag.Bool("v", false, "name the tests that passed, without their subtests")
	flag.Parse()
	os.Exit(run(os.Stdin, os.Stdout, os.Stderr, *verbose))
}

func run(in io.Reader, out, errs io.Writer, verbose bool) int {
	r := newReport(out)
	r.verbose = verbose
	if err := r.read(in); err != nil {
		fmt.Fprintf(errs, "testreport: %v\n", err)
		return 1
	}
	if !r.finish() {
		return 1
	}
	return 0
}
