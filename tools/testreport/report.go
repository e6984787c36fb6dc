// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// maxLine is the longest line of a test that is kept whole; the rest of it is cut.
const maxLine = 1 << 20

// slowest is how many tests the report names as slow, minSlow what counts as slow, in seconds.
const (
	slowest = 8
	minSlow = 2.0
)

// event is one line of `go test -json` (see `go doc test2json`).
type event struct {
	Action     string
	Package    string
	ImportPath string // instead of Package in build events
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// key names a test, or with an empty test its package.
type key struct{ pkg, test string }

type result struct {
	key
	seconds float64
	reason  string
}

// report collects results. Output of a test is kept until its result is known.
type report struct {
	out                     io.Writer
	verbose                 bool
	output                  map[key]*bytes.Buffer
	passed, failed, skipped int
	slow, skips             []result
	broken                  []string // packages that failed
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: make(map[key]*bytes.Buffer)}
}

// read consumes the whole stream. Lines that aren't events are printed as they are.
func (r *report) read(in io.Reader) error {
	br := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := readLine(br)
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil && e.Action != "" {
				r.add(e)
			} else {
				fmt.Fprintf(r.out, "%s\n", line)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read test events: %w", err)
		}
	}
}

// readLine returns one line without its end, cut at maxLine.
func readLine(br *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, more, err := br.ReadLine()
		if len(line) < maxLine {
			line = append(line, part...)
		}
		if err != nil || !more {
			return line, err
		}
	}
}

func (r *report) add(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output":
		b := r.output[k]
		if b == nil {
			b = new(bytes.Buffer)
			r.output[k] = b
		}
		b.WriteString(e.Output)
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(k, e)
		} else {
			r.endTest(k, e)
		}
		delete(r.output, k)
	}
}

func (r *report) endTest(k key, e event) {
	if e.Elapsed >= minSlow && !strings.Contains(k.test, "/") {
		r.slow = append(r.slow, result{key: k, seconds: e.Elapsed})
	}
	switch e.Action {
	case "pass":
		r.passed++
		if r.verbose && !strings.Contains(k.test, "/") {
			fmt.Fprintf(r.out, "--- PASS: %s (%.2fs)\n", k.test, e.Elapsed)
		}
	case "fail":
		r.failed++
		fmt.Fprint(r.out, r.text(k))
	case "skip":
		r.skipped++
		r.skips = append(r.skips, result{key: k, reason: skipReason(r.text(k))})
	}
}

func (r *report) endPackage(k key, e event) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(r.out, "ok  \t%s\t%.3fs\n", k.pkg, e.Elapsed)
	case "skip":
		// No test files.
	case "fail":
		r.broken = append(r.broken, k.pkg)
		// A crash leaves tests without a result; their output is the only trace.
		for _, left := range r.unfinished(k.pkg) {
			r.failed++
			fmt.Fprintf(r.out, "--- UNFINISHED: %s\n%s", left.test, r.text(left))
			delete(r.output, left)
		}
		for line := range strings.Lines(r.text(k)) {
			if strings.TrimSpace(line) != "FAIL" && (!strings.HasPrefix(line, "FAIL\t") || strings.Contains(line, "[")) {
				fmt.Fprint(r.out, line)
			}
		}
		fmt.Fprintf(r.out, "FAIL\t%s\t%.3fs\n", k.pkg, e.Elapsed)
	}
}

// unfinished lists the package's tests that have output and no result.
func (r *report) unfinished(pkg string) []key {
	var out []key
	for k := range r.output {
		if k.pkg == pkg && k.test != "" {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b key) int { return strings.Compare(a.test, b.test) })
	return out
}

// text is what a test printed, without the test runner's own marks of progress.
func (r *report) text(k key) string {
	b := r.output[k]
	if b == nil {
		return ""
	}
	var out strings.Builder
	for line := range strings.Lines(b.String()) {
		if !strings.HasPrefix(line, "=== ") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// skipReason is what a test said before it was skipped, in one line.
func skipReason(output string) string {
	var out []string
	for line := range strings.Lines(output) {
		s := strings.TrimSpace(line)
		if s != "" && !strings.HasPrefix(s, "--- ") {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return "no reason given"
	}
	return strings.Join(out, " ")
}

// finish prints the summary and reports whether the run is good.
func (r *report) finish() bool {
	if len(r.skips) > 0 {
		fmt.Fprintln(r.out, "SKIPPED:")
		for _, s := range r.skips {
			fmt.Fprintf(r.out, "  %s %s: %s\n", s.pkg, s.test, s.reason)
		}
	}
	if len(r.slow) > 0 {
		slices.SortStableFunc(r.slow, func(a, b result) int { return int(1000 * (b.seconds - a.seconds)) })
		fmt.Fprintln(r.out, "slowest:")
		for _, s := range r.slow[:min(slowest, len(r.slow))] {
			fmt.Fprintf(r.out, "  %7.1f s  %s %s\n", s.seconds, s.pkg, s.test)
		}
	}
	for _, pkg := range r.broken {
		fmt.Fprintf(r.out, "failed package: %s\n", pkg)
	}
	fmt.Fprintf(r.out, "tests: %d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	return r.failed == 0 && len(r.broken) == 0 && r.passed > 0
}
