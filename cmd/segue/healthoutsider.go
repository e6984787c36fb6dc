// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/watch"
)

// outsider is the view of one who has no work on the server but its probes, and doesn't know of all others'. It belongs to
// the watcher's goroutine, apart from probes.
type outsider struct {
	watch.Source
	probes ownProbes
	// opaque: the latest read told nothing of the server's work.
	opaque bool
	// ended is how many probes had, after how many assessments ago.
	ended int32
	after int
}

// Read is the embedded Source's.
func (o *outsider) Read(ctx context.Context) health.Reading {
	r := o.Source.Read(ctx)
	o.opaque = r.Outcome == health.Opaque
	return r
}

// temper corrects two verdicts. Without metrics a probe that gets no answer may wait behind the work of others, which proves
// nothing. And a server that moves with nothing in flight beside a probe, or has one request just after it, does so because of
// the probe: it is idle.
func (o *outsider) temper(a health.Assessment) health.Assessment {
	o.after++
	if n := o.probes.ended.Load(); n != o.ended {
		o.ended, o.after = n, 0
	}
	just := o.ended > 0 && o.after <= 1
	ours := o.probes.active.Load() && a.InFlight == 0 || just && a.InFlight <= 1
	first := slices.Equal(a.Reasons, []health.Reason{health.ReasonFirstRead})
	switch {
	case o.opaque && a.Verdict == health.Hung && slices.Contains(a.Reasons, health.ReasonProbeFailed):
		a.Verdict, a.Reasons = health.Unknown, []health.Reason{health.ReasonNoMetrics, health.ReasonProbeFailed}
	case ours && (a.Verdict == health.Busy || first):
		a.Verdict, a.Reasons = health.Idle, []health.Reason{health.ReasonNothingRuns}
		if o.probes.passed.Load() {
			a.Reasons = append(a.Reasons, health.ReasonProbePassed)
		}
	}
	return a
}

// ownProbes notes what became of probes.
type ownProbes struct {
	watch.Prober
	active atomic.Bool
	ended  atomic.Int32
	// passed is of the last one. refused: one was, and the next would be too.
	passed, refused atomic.Bool
}

// Probe is the embedded Prober's.
func (p *ownProbes) Probe(ctx context.Context) health.Probe {
	p.passed.Store(false)
	p.active.Store(true)
	out := p.Prober.Probe(ctx)
	p.passed.Store(out == health.ProbePassed)
	if out == health.ProbeDropped && ctx.Err() == nil {
		p.refused.Store(true)
	}
	p.ended.Add(1)
	p.active.Store(false)
	return out
}
