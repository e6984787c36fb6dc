// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/restart"
	"github.com/seguekv/segue/health/watch"
)

// runWatch watches until ctx ends, which is no error.
func (f *healthFlags) runWatch(ctx context.Context, log io.Writer, out *healthOutput, targets []healthTarget) error {
	m, err := newHealthMetrics(f.targets, f.onHung != "")
	if err != nil {
		return err
	}
	var runner *restart.Runner
	if f.onHung != "" {
		if runner, err = f.runner(m, out); err != nil {
			return err
		}
	}
	watchers := make([]*watch.Watcher, len(targets))
	for i, t := range targets {
		last := health.Assessment{Verdict: -1}
		cfg := f.watcher(m.count(t), func(a health.Assessment) {
			m.assessed(t.url, a)
			if runner != nil {
				runner.Observe(a)
				m.standing(t.url, runner.Status())
			}
			if changed(last, a) {
				_ = out.verdict(newHealthLine(t, a), true) // to a reader that is gone; the watching goes on
			}
			last = a
		})
		if watchers[i], err = watch.New(cfg); err != nil {
			return err
		}
	}
	var listener net.Listener
	if f.listen != "" {
		if listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", f.listen); err != nil {
			return usageError(fmt.Errorf("--listen: %w", err))
		}
		fmt.Fprintf(log, "metrics at http://%s/metrics\n", listener.Addr())
	}
	group, ctx := errgroup.WithContext(ctx)
	if listener != nil {
		group.Go(func() error { return m.serve(ctx, listener) })
	}
	if runner != nil {
		group.Go(func() error { return runner.Run(ctx) })
	}
	for i, w := range watchers {
		group.Go(func() error { return w.Run(ctx) })
		if p := targets[i].process; p != nil {
			group.Go(func() error {
				if p.Wait(ctx) == nil {
					w.Soon()
				}
				return nil
			})
		}
	}
	return group.Wait()
}

// changed reports whether there is something to say.
func changed(before, now health.Assessment) bool {
	if before.Verdict == now.Verdict && now.Verdict.Lost() {
		return !slices.Equal(before.Reasons, now.Reasons)
	}
	return before.Verdict != now.Verdict || now.NewEngine || before.CountersStuck != now.CountersStuck
}

// runner is what runs the command of --on-hung.
func (f *healthFlags) runner(m *healthMetrics, out *healthOutput) (*restart.Runner, error) {
	dir, err := f.folder()
	if err != nil {
		return nil, err
	}
	p := f.policy
	p.Grace, p.Dead = f.startBudget, f.onDead
	p.MaxBackoff = max(restart.Defaults().MaxBackoff, p.Backoff)
	target := f.targets[0]
	if err := p.Validate(); err != nil {
		return nil, usageError(err)
	}
	return restart.New(restart.Config{
		Target: target, Dir: dir, Policy: p, Exec: restart.Shell(f.onHung),
		Event: func(e restart.Event) {
			if e.Kind == restart.EventRun {
				m.restarts.WithLabelValues(target).Inc()
			}
			_ = out.restart(target, e) // to a reader that is gone; the watching goes on
		},
	})
}
