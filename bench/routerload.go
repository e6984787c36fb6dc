// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// routerBeginLimit bounds the time until all streams have begun.
	routerBeginLimit = time.Minute
	routerWarmUp     = 3 * time.Second
	// routerScrapes is how often a router that has no time for its metrics is asked.
	routerScrapes = 6
	// routerLeastCPU is 20 units of processor time.
	routerLeastCPU  = 200 * time.Millisecond
	routerProlonged = 20 * time.Second
	// mallocsTotal counts heap objects of a Go process, tiny ones too.
	mallocsTotal = "go_memstats_mallocs_total"
	// unjournalledTotal counts what the router's journal was too slow for.
	unjournalledTotal = "segue_journal_unjournalled_reservations_total"
)

// load runs many streams and measures the router while all of them are open.
func (b *routerBench) load(ctx context.Context, cost *RouterCost) error {
	script := newRouterScript(b.cfg.Rate, 0, b.cfg.Streams)
	script.at = nil
	b.source.play(script)
	defer script.finish()
	var received atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for i := range b.cfg.Streams {
		group.Go(func() error {
			if _, err := streamHTTP(ctx, b.router.listen, func() { received.Add(1) }); err != nil {
				return fmt.Errorf("stream %d of %d: %w", i+1, b.cfg.Streams, err)
			}
			return nil
		})
	}
	group.Go(func() error {
		defer script.finish()
		return b.interval(ctx, script, &received, cost)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if got, want := received.Load(), script.emitted.Load(); got != want {
		return fmt.Errorf("%d deltas of %d were received", got, want)
	}
	return nil
}

// interval is the measurement.
func (b *routerBench) interval(ctx context.Context, script *routerScript, received *atomic.Int64, cost *RouterCost) error {
	for begun := time.Now(); script.begun.Load() < int64(b.cfg.Streams) || received.Load() < int64(b.cfg.Streams); {
		if time.Since(begun) > routerBeginLimit {
			return fmt.Errorf("only %d of %d streams began within %v", script.begun.Load(), b.cfg.Streams, routerBeginLimit)
		}
		if err := rest(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	if err := rest(ctx, min(routerWarmUp, b.cfg.Seconds/2)); err != nil {
		return err
	}
	// The metrics are read outside of the interval of processor time.
	heap, err := b.heap(ctx, received)
	if err != nil {
		return err
	}
	before, after, err := b.looks(ctx, script, received)
	if err != nil {
		return err
	}
	heapAfter, err := b.heap(ctx, received)
	if err != nil {
		return err
	}
	cost.AllocsPerDelta = heapAfter.since(heap)
	if err := b.conclude(before, after, cost); err != nil {
		return err
	}
	if cost.Load.Unjournalled = int64(heapAfter.unjournalled - heap.unjournalled); cost.Load.Unjournalled > 0 {
		b.cfg.Logf("%s: %d reservations failed for a slow disk: part of the figures of load is without journal", b.kind, cost.Load.Unjournalled)
	}
	return nil
}

// routerHeap is how many objects the router's process had made when clients had received so many deltas.
type routerHeap struct {
	mallocs      float64
	known        bool
	deltas       int64
	unjournalled float64
}

func (b *routerBench) heap(ctx context.Context, received *atomic.Int64) (routerHeap, error) {
	for tries := 1; ; tries++ {
		counters, err := b.router.admin.Counters(ctx)
		if err == nil {
			mallocs, known := counters[mallocsTotal]
			return routerHeap{mallocs, known, received.Load(), counters[unjournalledTotal]}, nil
		}
		if tries == routerScrapes || ctx.Err() != nil {
			return routerHeap{}, fmt.Errorf("read the router's metrics: %w", err)
		}
	}
}

// since is how many objects there were per delta, nil when that isn't known.
func (h routerHeap) since(before routerHeap) *float64 {
	if !h.known || !before.known || h.deltas <= before.deltas {
		return nil
	}
	per := round((h.mallocs-before.mallocs)/float64(h.deltas-before.deltas), 2)
	return &per
}

// routerLook is how much processor time the router had used when clients had received so many deltas.
type routerLook struct {
	at              time.Time
	cpu             time.Duration
	deltas, emitted int64
}

// looks are the ends of the interval. It is prolonged while the router has used so little processor time that the unit of
// that would show.
func (b *routerBench) looks(ctx context.Context, script *routerScript, received *atomic.Int64) (before, after routerLook, err error) {
	look := func() (routerLook, error) {
		cpu, err := b.router.cpu()
		return routerLook{time.Now(), cpu, received.Load(), script.emitted.Load()}, err
	}
	if before, err = look(); err != nil {
		return before, after, err
	}
	if err = rest(ctx, b.cfg.Seconds); err != nil {
		return before, after, err
	}
	for {
		if after, err = look(); err != nil {
			return before, after, err
		}
		if after.cpu-before.cpu >= routerLeastCPU || after.at.Sub(before.at) > b.cfg.Seconds+routerProlonged {
			return before, after, nil
		}
		if err = rest(ctx, 50*time.Millisecond); err != nil {
			return before, after, err
		}
	}
}

func (b *routerBench) conclude(before, after routerLook, cost *RouterCost) error {
	deltas, cpu, took := after.deltas-before.deltas, after.cpu-before.cpu, after.at.Sub(before.at)
	if deltas <= 0 || cpu <= 0 {
		return fmt.Errorf("%d deltas and %v of processor time in %v: nothing to divide", deltas, cpu, took)
	}
	cost.DeltasPerCPUSecond = round(float64(deltas)/cpu.Seconds(), 0)
	cost.Load = RouterLoad{
		Seconds: round(took.Seconds(), 3), Deltas: deltas, Emitted: after.emitted - before.emitted, PerS: round(float64(deltas)/took.Seconds(), 0), CPUS: round(cpu.Seconds(), 2), Streams: b.cfg.Streams,
	}
	allocs := "unknown: its metrics have no " + mallocsTotal
	if cost.AllocsPerDelta != nil {
		allocs = fmt.Sprintf("%.2f", *cost.AllocsPerDelta)
	}
	if late := cost.Load.Emitted - deltas; max(late, -late) > deltas/10 {
		b.cfg.Logf("%s: %d deltas were emitted and %d received in the interval: the machine is too busy, or --rate too high, and the figures of load mean little", b.kind, cost.Load.Emitted, deltas)
	}
	b.cfg.Logf("%s: %d streams, %.0f deltas per second, %.0f deltas per CPU-second of the router, allocations per delta %s",
		b.kind, b.cfg.Streams, cost.Load.PerS, cost.DeltasPerCPUSecond, allocs)
	return nil
}

// rest waits for d.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
