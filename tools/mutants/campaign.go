// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// verdict is what became of a mutant.
type verdict string

const (
	killed   verdict = "killed"
	survived verdict = "SURVIVED"
	// broken: the table has to be mended, nothing is known of the tests.
	broken verdict = "BROKEN"
)

// brokenLines is how much is printed of what go test says of a broken mutant.
const brokenLines = 25

// campaign tries mutants.
type campaign struct {
	root            string
	mutants, absent []entry
	jobs            int
	verbose         bool

	mu     sync.Mutex // guards what follows
	out    io.Writer
	counts map[verdict]int
}

// list prints the table.
func (c *campaign) list() {
	for _, e := range c.mutants {
		fmt.Fprintf(c.out, "%-40s %s\n%41s%s: %s  ->  %s\n%41s%s %s\n", e.ID, e.Breaks, "", e.File, e.Find, e.With, "", e.Package, strings.Join(e.Tests, " "))
	}
	for _, e := range c.absent {
		fmt.Fprintf(c.out, "%-40s %s\n%41sabsent: %s\n", e.ID, e.Breaks, "", e.Absent)
	}
}

// run tries every mutant and reports whether all were killed. An error means that the tests can't be relied on:
// they don't pass without a change.
func (c *campaign) run(ctx context.Context) (bool, error) {
	c.counts = make(map[verdict]int)
	if err := c.unchanged(ctx); err != nil {
		return false, err
	}
	err := c.each(len(c.mutants), func(i int) error {
		e := c.mutants[i]
		began := time.Now()
		v, why, output, err := c.try(ctx, e)
		if err != nil {
			return err
		}
		c.report(e, v, why, output, time.Since(began))
		return nil
	})
	if err != nil {
		return false, err
	}
	for _, e := range c.absent {
		fmt.Fprintf(c.out, "absent: %s\n", e.Absent)
	}
	fmt.Fprintf(c.out, "MUTANTS killed=%d survived=%d", c.counts[killed], c.counts[survived])
	if n := c.counts[broken]; n > 0 {
		fmt.Fprintf(c.out, " broken=%d", n)
	}
	fmt.Fprintln(c.out)
	return c.counts[killed] == len(c.mutants), nil
}

// unchanged checks that the tests pass without any change, each package's at once.
func (c *campaign) unchanged(ctx context.Context) error {
	tests := make(map[string][]string)
	for _, e := range c.mutants {
		tests[e.Package] = append(tests[e.Package], e.Tests...)
	}
	packages := slices.Sorted(maps.Keys(tests))
	return c.each(len(packages), func(i int) error {
		p := packages[i]
		slices.Sort(tests[p])
		names := slices.Compact(tests[p])
		o, err := test(ctx, c.root, "", p, names)
		if err != nil {
			return err
		}
		if err := o.sound(names); err != nil {
			return fmt.Errorf("%s without a mutant: %w\n%s", p, err, o.output)
		}
		return nil
	})
}

// each calls f(0) … f(n-1), some at a time, and returns the first error, after which it begins no more.
func (c *campaign) each(n int, f func(i int) error) error {
	var first error
	var mu sync.Mutex
	next := 0
	var group sync.WaitGroup
	for range min(c.jobs, n) {
		group.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				stop := first != nil || i >= n
				mu.Unlock()
				if stop {
					return
				}
				if err := f(i); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	return first
}

// try runs the tests against one mutant.
func (c *campaign) try(ctx context.Context, e entry) (v verdict, why, output string, err error) {
	dir, err := os.MkdirTemp("", "segue-mutant-")
	if err != nil {
		return "", "", "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	overlay, err := e.overlay(c.root, dir)
	if err != nil {
		return broken, err.Error(), "", nil
	}
	o, err := test(ctx, c.root, overlay, e.Package, e.Tests)
	if err != nil {
		return "", "", "", err
	}
	v, why = e.judge(o)
	return v, why, o.output, nil
}

// judge says what an outcome means for the mutant.
func (e entry) judge(o outcome) (verdict, string) {
	switch {
	case o.broken:
		return broken, "doesn't compile"
	case o.late && e.Hangs:
		return killed, "the tests don't end"
	case o.late:
		return broken, "the tests don't end; if that is how the mutant shows, say \"hangs: killed\""
	case len(o.failed) > 0:
		return killed, strings.Join(o.failed, " ")
	case o.crashed:
		return broken, "go test failed without naming a test"
	}
	return survived, "passed: " + strings.Join(o.passed, " ")
}

// report prints one mutant's line.
func (c *campaign) report(e entry, v verdict, why, output string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[v]++
	fmt.Fprintf(c.out, "%-8s %-40s %5.1fs  %s\n", v, e.ID, took.Seconds(), why)
	if c.verbose || v != killed {
		fmt.Fprintf(c.out, "         line %d breaks: %s\n", e.Line, e.Breaks)
	}
	lines := strings.Split(strings.TrimRight(output, "\n"), "\n")
	switch {
	case c.verbose:
	case v == broken:
		lines = lines[max(0, len(lines)-brokenLines):]
	default:
		return
	}
	for _, line := range lines {
		fmt.Fprintf(c.out, "         | %s\n", line)
	}
}
