// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seguekv/segue/conformance/matrix"
	"github.com/seguekv/segue/conformance/parts"
	"github.com/seguekv/segue/conformance/upstream"
)

const (
	// caseWithin is how long one case may take, with all repeats of its client and, for the first ones, its start.
	caseWithin = 5 * time.Minute
	// ownRouters is how many cases at once have a router of their own.
	ownRouters = 3
	// cancelWithin is how long upstreams may go on after the client has its result.
	cancelWithin = 5 * time.Second
	// progressEvery is the longest silence of a run.
	progressEvery = 5 * time.Second
)

// outcome is a case with its verdict.
type outcome struct {
	matrix.Case
	result matrix.Result
	found  []string
}

// clients runs the matrix.
func (t *tally) clients(ctx context.Context, o options, cache parts.Cache, work string, stdout, stderr io.Writer) (err error) {
	tools, err := install(ctx, cache, o.source, work, o.clients)
	if err != nil {
		return err
	}
	fleet, err := upstream.New(2)
	if err != nil {
		return err
	}
	defer fleet.Close()
	router, err := startRouter(ctx, o.segue, work, "router", queueWait, fleet)
	if err != nil {
		return err
	}
	var log string
	defer func() {
		if log = router.stop(); err != nil {
			err = fmt.Errorf("%w\nthe router logged:\n%s", err, tailOf(log))
		}
	}()
	cases, rules := matrix.Cases(o.clients)
	r := &runner{segue: o.segue, work: work, base: router.base, fleet: fleet, total: len(cases), alone: make(chan struct{}, ownRouters)}
	outcomes, err := r.run(ctx, o, tools, cases, stderr)
	for _, f := range outcomes {
		if o.verbose || len(f.found) > 0 {
			show(stdout, f)
		}
		if len(f.found) > 0 {
			t.failed++
			t.passed = false
		}
	}
	table(stdout, o.clients, outcomes)
	if err != nil { // after what is known
		return err
	}
	leftOut(stdout, rules)
	t.clientCount, t.cells = len(o.clients), len(outcomes)
	return nil
}

// maxLog is how much of the router's log is shown.
const maxLog = 4 << 10

func tailOf(s string) string { return s[max(0, len(s)-maxLog):] }

func show(w io.Writer, f outcome) {
	b, err := json.Marshal(f.result)
	if err != nil {
		b = []byte(err.Error())
	}
	word := "ok"
	if len(f.found) > 0 {
		word = "FAILED"
	}
	fmt.Fprintf(w, "%s %s\n", word, f.Case)
	for _, s := range f.found {
		fmt.Fprintf(w, "    %s\n", s)
	}
	fmt.Fprintf(w, "    reported: %s\n", b)
}

// runner runs cases.
type runner struct {
	segue, work string
	// base and fleet are those of all cases that leave the upstreams as they were.
	base  string
	fleet *upstream.Fleet
	total int
	// alone has a place for each case with a router of its own.
	alone chan struct{}

	mu       sync.Mutex
	outcomes []outcome
}

// run runs the clients side by side. Outcomes come in the order in which cases end.
func (r *runner) run(ctx context.Context, o options, tools tools, cases []matrix.Case, stderr io.Writer) ([]outcome, error) {
	done := make(chan struct{})
	var progress sync.WaitGroup
	defer progress.Wait()
	defer close(done)
	progress.Go(func() { r.progress(done, stderr) })
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range o.clients {
		g.Go(func() error {
			d, err := tools.start(c)
			if err != nil {
				return err
			}
			err = r.client(ctx, o, d, c, cases)
			if said := d.stop(); err != nil {
				return fmt.Errorf("%w\nit wrote:\n%s", err, tailOf(said))
			}
			return nil
		})
	}
	err := g.Wait()
	return r.outcomes, err
}

func (r *runner) progress(done <-chan struct{}, stderr io.Writer) {
	t := time.NewTicker(progressEvery)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case <-t.C:
			r.mu.Lock()
			n := len(r.outcomes)
			r.mu.Unlock()
			fmt.Fprintf(stderr, "conformance: %d of %d cells\n", n, r.total)
		}
	}
}

// client runs one client's cases.
func (r *runner) client(ctx context.Context, o options, d *driver, c matrix.Client, cases []matrix.Case) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.parallel)
	for _, one := range cases {
		if one.Client.Name != c.Name || !o.only.MatchString(one.String()) {
			continue
		}
		g.Go(func() error {
			out, err := r.one(ctx, d, one)
			if err != nil {
				return fmt.Errorf("%s: %w", one, err)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.outcomes = append(r.outcomes, out)
			return nil
		})
	}
	return g.Wait()
}

// one runs one case.
func (r *runner) one(ctx context.Context, d *driver, c matrix.Case) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, caseWithin)
	defer cancel()
	if !c.Refuses() {
		return r.play(ctx, d, c, r.base, r.fleet)
	}
	select {
	case r.alone <- struct{}{}:
	case <-ctx.Done():
		return outcome{}, context.Cause(ctx)
	}
	defer func() { <-r.alone }()
	fleet, err := upstream.New(2)
	if err != nil {
		return outcome{}, err
	}
	defer fleet.Close()
	router, err := startRouter(ctx, r.segue, r.work, fmt.Sprintf("router-%d", c.N), noWait, fleet)
	if err != nil {
		return outcome{}, err
	}
	defer router.stop()
	return r.play(ctx, d, c, router.base, fleet)
}

// play runs one case on a router and its upstreams.
func (r *runner) play(ctx context.Context, d *driver, c matrix.Case, base string, fleet *upstream.Fleet) (outcome, error) {
	if err := fleet.Script(c.Key(), c.Plan()); err != nil {
		return outcome{}, err
	}
	result, err := d.ask(ctx, c.Task(base))
	if err != nil {
		return outcome{}, err
	}
	return outcome{Case: c, result: result, found: matrix.Judge(c, result, ended(ctx, fleet, c.Key()))}, nil
}

// ended waits until the upstreams are done with a case.
func ended(ctx context.Context, fleet *upstream.Fleet, key string) []upstream.Attempt {
	ctx, cancel := context.WithTimeout(ctx, cancelWithin)
	defer cancel()
	for {
		attempts := fleet.Attempts(key)
		running := false
		for _, a := range attempts {
			running = running || a.Ended.IsZero()
		}
		if !running {
			return attempts
		}
		select {
		case <-ctx.Done():
			return attempts
		case <-time.After(5 * time.Millisecond):
		}
	}
}
