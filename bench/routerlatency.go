// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"fmt"
)

// latency streams alternately straight from the upstream and through the router.
func (b *routerBench) latency(ctx context.Context, cost *RouterCost) error {
	direct := func(ctx context.Context, received func()) (int, error) { return b.source.direct(ctx, received) }
	routed := func(ctx context.Context, received func()) (int, error) {
		return streamHTTP(ctx, b.router.listen, received)
	}
	var ages [2][]float64
	ways := []func(context.Context, func()) (int, error){direct, routed}
	for round := range b.cfg.Rounds {
		for i := range ways {
			way := (round + i) % len(ways) // each goes first in every other round
			list, err := b.ages(ctx, ways[way])
			if err != nil {
				return fmt.Errorf("round %d, %s: %w", round+1, [...]string{"direct", "through the router"}[way], err)
			}
			ages[way] = append(ages[way], list...)
		}
	}
	times := func(values []float64) Times { return Times{P50: median(values), P99: percentile99(values)} }
	d, r := times(ages[0]), times(ages[1])
	cost.AddedLatencyMS = Times{P50: round(r.P50-d.P50, 4), P99: round(r.P99-d.P99, 4)}
	cost.Latency = RouterLatency{
		Direct: Times{P50: round(d.P50, 4), P99: round(d.P99, 4)}, Router: Times{P50: round(r.P50, 4), P99: round(r.P99, 4)},
		Samples: len(ages[1]), Rate: routerLatencyRate,
	}
	b.cfg.Logf("%s: %d deltas each way at %d per second; latency direct p50 %.3f ms, p99 %.3f ms, through the router p50 %.3f ms, p99 %.3f ms",
		b.kind, len(ages[1]), routerLatencyRate, d.P50, d.P99, r.P50, r.P99)
	return nil
}

// ages are the latencies of one stream in milliseconds, those of its beginning left out.
func (b *routerBench) ages(ctx context.Context, stream func(context.Context, func()) (int, error)) ([]float64, error) {
	script := newRouterScript(routerLatencyRate, b.cfg.deltasPerRound(), 1)
	b.source.play(script)
	list := make([]float64, 0, script.count)
	n, err := stream(ctx, func() {
		if len(list) < script.count {
			list = append(list, milliseconds(script.age(len(list))))
		}
	})
	if err != nil {
		return nil, err
	}
	if n != script.count {
		return nil, fmt.Errorf("%d deltas of %d were received", n, script.count)
	}
	return list[routerSettling:], nil
}
