// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/watch"
)

// runOnce looks at all targets at once, prints a line for each in their order, and returns the worst as an error.
func (f *healthFlags) runOnce(ctx context.Context, out *healthOutput, targets []healthTarget) error {
	looks := make([]*look, len(targets))
	for i, t := range targets {
		l, err := newLook(f, t)
		if err != nil {
			return err
		}
		looks[i] = l
	}
	call, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	found := make([]health.Assessment, len(targets))
	var all sync.WaitGroup
	for i, l := range looks {
		all.Go(func() { found[i] = l.run(call) })
	}
	all.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	worst, unwell := 0, 0
	for i, t := range targets {
		l := newHealthLine(t, found[i])
		if err := out.verdict(l, false); err != nil {
			return err
		}
		worst = max(worst, l.ExitCode)
		if l.ExitCode != exitOK {
			unwell++
		}
	}
	if worst == exitOK {
		return nil
	}
	return &exitError{code: worst, err: fmt.Errorf("%d of %d targets not found well", unwell, len(targets))}
}

// look is a single look at one target.
type look struct {
	watcher *watch.Watcher
	// probes is nil without them.
	probes *ownProbes
	last   health.Assessment
	over   bool
	cancel context.CancelFunc
}

func newLook(f *healthFlags, t healthTarget) (*look, error) {
	l := &look{}
	cfg := f.watcher(t, func(a health.Assessment) {
		if l.over {
			return
		}
		if l.last = a; decided(a, l.probing()) {
			l.over = true
			l.cancel()
		}
	})
	l.probes, _ = cfg.Prober.(*ownProbes)
	w, err := watch.New(cfg)
	l.watcher = w
	return l, err
}

// probing reports whether a probe can still tell something.
func (l *look) probing() bool { return l.probes != nil && !l.probes.refused.Load() }

// run returns what was found when it was clear, or else when ctx ended.
func (l *look) run(ctx context.Context) health.Assessment {
	ctx, l.cancel = context.WithCancel(ctx)
	defer l.cancel()
	_ = l.watcher.Run(ctx) // its end is ctx's, and no error
	if l.over {
		return l.last
	}
	return undecided(l.last, l.probing())
}

// decided reports whether nothing is gained by a further look.
func decided(a health.Assessment, probing bool) bool {
	switch a.Verdict {
	case health.Unknown:
		return false
	case health.Starting: // on its own word, not for want of one
		return len(a.Reasons) == 1 && a.Reasons[0] == health.ReasonLoading
	case health.Idle, health.Reachable:
		return !probing || slices.Contains(a.Reasons, health.ReasonProbePassed) || slices.Contains(a.Reasons, health.ReasonProxy)
	}
	return true
}

// undecided is what is said when time is up: of an idle server that was to be probed, that it didn't answer.
func undecided(a health.Assessment, probing bool) health.Assessment {
	switch {
	case a.At.IsZero():
		a.Detail = "no read was over in time"
	case probing && (a.Verdict == health.Idle || a.Verdict == health.Reachable):
		a.Verdict = health.Unknown
		a.Detail = "idle, and no probe got an answer in time"
	}
	return a
}
