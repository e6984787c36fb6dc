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
	// routerIdleRate is the pace of a stream that is nearly idle, in deltas per second.
	routerIdleRate = 1
	// routerOpening is the time between the beginnings of two such streams: a crowd would leave the memory of its
	// rush behind, which would hide what grows later.
	routerOpening = 4 * time.Millisecond
	// routerCollections are garbage collections before a sample, so that both samples are of the same moment of a cycle:
	// so quiet a process may go without one for minutes, and its memory grows up to it.
	routerCollections   = 3
	routerCollectWithin = time.Minute
	// routerSettle is how long streams last before the first sample: what each of them makes with its first deltas is
	// its own.
	routerSettle = 10 * time.Second
	// routerEndLimit bounds the time until a router has put away what streams that ended left.
	routerEndLimit = 30 * time.Second
	// routerSpareGoroutines are those of connections that come and go without streams.
	routerSpareGoroutines = 8
	goroutines            = "go_goroutines"
	collections           = "go_gc_duration_seconds_count"
	heapGoal              = "go_memstats_next_gc_bytes"
)

// RouterStreams is what many open streams of which each is nearly idle cost the router's process.
type RouterStreams struct {
	Open int `json:"open"`
	// Seconds is from the first sample, some seconds after all of them were open, to the last one; Deltas were received in them.
	Seconds float64 `json:"seconds"`
	Deltas  int64   `json:"deltas"`
	// Resident memory: before the first stream, at the first sample, at the last one, and the most it ever was. Those of start
	// and end are from right after garbage collections.
	RSSBeforeMiB float64 `json:"rss_mib_before"`
	RSSStartMiB  float64 `json:"rss_mib_start"`
	RSSEndMiB    float64 `json:"rss_mib_end"`
	RSSMostMiB   float64 `json:"rss_mib_most"`
	// HeapGoal is at which size of its heap the router collects garbage; it follows what is in use.
	HeapGoalStartMiB float64 `json:"heap_goal_mib_start"`
	HeapGoalEndMiB   float64 `json:"heap_goal_mib_end"`
	// GrowthPercent is from start to end.
	GrowthPercent float64 `json:"growth_percent"`
	// Goroutines of the router while all were open, before the first began and after the last ended.
	Goroutines       int     `json:"goroutines"`
	GoroutinesBefore int     `json:"goroutines_before"`
	GoroutinesAfter  int     `json:"goroutines_after"`
	CPUPerS          float64 `json:"cpu_s_per_s"`
}

// streams opens IdleStreams streams and watches the router while all of them are open.
func (b *routerBench) streams(ctx context.Context, cost *RouterCost) error {
	n := b.cfg.IdleStreams
	script := newRouterScript(routerIdleRate, 0, n)
	script.at = nil
	b.source.play(script)
	defer script.finish()
	out := &RouterStreams{Open: n}
	var err error
	if out.GoroutinesBefore, err = b.goroutines(ctx); err != nil {
		return err
	}
	if out.RSSBeforeMiB, _, err = b.router.memory(); err != nil {
		return err
	}
	var received, begun atomic.Int64
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer script.finish()
		for i := range n {
			group.Go(func() error {
				first := true
				_, err := streamHTTP(groupCtx, b.router.listen, func() {
					received.Add(1)
					if first {
						first = false
						begun.Add(1)
					}
				})
				if err != nil {
					return fmt.Errorf("stream %d of %d: %w", i+1, n, err)
				}
				return nil
			})
			if err := rest(groupCtx, routerOpening); err != nil {
				return err
			}
		}
		for at := time.Now(); begun.Load() < int64(n); {
			if time.Since(at) > routerBeginLimit {
				return fmt.Errorf("only %d of %d streams began within %v", begun.Load(), n, routerBeginLimit)
			}
			if err := rest(groupCtx, 10*time.Millisecond); err != nil {
				return err
			}
		}
		return b.watch(groupCtx, script, &received, out)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if got, want := received.Load(), script.emitted.Load(); got != want {
		return fmt.Errorf("%d deltas of %d were received", got, want)
	}
	if out.GoroutinesAfter, err = b.calm(ctx, out.GoroutinesBefore); err != nil {
		return err
	}
	cost.Streams = out
	b.cfg.Logf("%s: %d streams open for %.0f s: %.1f MiB at the start, %.1f at the end (%+.1f %%), %.1f before the first; collects garbage at %.1f MiB, then at %.1f; goroutines %d, then %d, then %d; %.3f CPU-seconds per second",
		b.kind, n, out.Seconds, out.RSSStartMiB, out.RSSEndMiB, out.GrowthPercent, out.RSSBeforeMiB, out.HeapGoalStartMiB, out.HeapGoalEndMiB, out.GoroutinesBefore, out.Goroutines, out.GoroutinesAfter, out.CPUPerS)
	return nil
}

// watch samples the router for IdleFor.
func (b *routerBench) watch(ctx context.Context, script *routerScript, received *atomic.Int64, out *RouterStreams) (err error) {
	if out.Goroutines, err = b.goroutines(ctx); err != nil {
		return err
	}
	if err := rest(ctx, min(routerSettle, b.cfg.IdleFor)); err != nil {
		return err
	}
	if out.HeapGoalStartMiB, err = b.collected(ctx); err != nil {
		return err
	}
	if out.RSSStartMiB, _, err = b.router.memory(); err != nil {
		return err
	}
	cpu, err := b.router.cpu()
	if err != nil {
		return err
	}
	begun, deltas := time.Now(), received.Load()
	if err := rest(ctx, b.cfg.IdleFor); err != nil {
		return err
	}
	after, err := b.router.cpu()
	if err != nil {
		return err
	}
	took := time.Since(begun).Seconds()
	out.Seconds, out.Deltas, out.CPUPerS = round(took, 3), received.Load()-deltas, round((after-cpu).Seconds()/took, 4)
	if out.HeapGoalEndMiB, err = b.collected(ctx); err != nil {
		return err
	}
	if out.RSSEndMiB, out.RSSMostMiB, err = b.router.memory(); err != nil {
		return err
	}
	if ended := script.ended.Load(); ended > 0 {
		return fmt.Errorf("%d of the streams ended before they were told to", ended)
	}
	if out.RSSStartMiB <= 0 || out.Deltas <= 0 {
		return fmt.Errorf("%.1f MiB and %d deltas: nothing to compare", out.RSSStartMiB, out.Deltas)
	}
	out.GrowthPercent = round(100*(out.RSSEndMiB-out.RSSStartMiB)/out.RSSStartMiB, 2)
	for _, v := range []*float64{&out.RSSBeforeMiB, &out.RSSStartMiB, &out.RSSEndMiB, &out.RSSMostMiB, &out.HeapGoalStartMiB, &out.HeapGoalEndMiB} {
		*v = round(*v, 2)
	}
	return nil
}

// goroutines counts those of the router.
func (b *routerBench) goroutines(ctx context.Context) (int, error) {
	n, err := b.sample(ctx, goroutines)
	return int(n), err
}

// sample reads one of the router's metrics.
func (b *routerBench) sample(ctx context.Context, name string) (float64, error) {
	counters, err := b.router.admin.Counters(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the router's metrics: %w", err)
	}
	v, ok := counters[name]
	if !ok {
		return 0, fmt.Errorf("the router's metrics lack %s", name)
	}
	return v, nil
}

// collected makes the router work for its operators until it has collected its garbage, and returns the size of the heap
// at which it does so next, in MiB.
func (b *routerBench) collected(ctx context.Context) (goal float64, err error) {
	first, err := b.sample(ctx, collections)
	for begun := time.Now(); err == nil; {
		if _, _, err = b.cut(ctx, 0); err != nil {
			break
		}
		var n float64
		if n, err = b.sample(ctx, collections); err != nil || n >= first+routerCollections {
			break
		}
		if time.Since(begun) > routerCollectWithin {
			return 0, fmt.Errorf("the router collected its garbage %.0f times within %v, want %d", n-first, routerCollectWithin, routerCollections)
		}
	}
	if err != nil {
		return 0, err
	}
	goal, err = b.sample(ctx, heapGoal)
	return goal / (1 << 20), err
}

// calm waits until the router has about as many goroutines as before.
func (b *routerBench) calm(ctx context.Context, before int) (int, error) {
	for begun := time.Now(); ; {
		n, err := b.goroutines(ctx)
		if err != nil || n <= before+routerSpareGoroutines {
			return n, err
		}
		if time.Since(begun) > routerEndLimit {
			return n, fmt.Errorf("%v after the last stream ended the router has %d goroutines, %d before the first", routerEndLimit, n, before)
		}
		if err := rest(ctx, 50*time.Millisecond); err != nil {
			return n, err
		}
	}
}
