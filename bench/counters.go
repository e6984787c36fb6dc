// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/seguekv/segue/bench/cluster"
)

// Engine hosts report their counters a few times a second, so a page is final only when it has not changed for longer
// than that.
const (
	settleFor   = 450 * time.Millisecond
	settleLimit = 5 * time.Second
)

// recomputed is what a standby's engine did for takeovers, by its own counters.
type recomputed struct {
	prefillTokens, replayedSteps int64
	restoredBytesMin             int64
}

// settledCounters reads the counters of the given nodes once they have stopped moving.
func settledCounters(ctx context.Context, cl *cluster.Cluster, nodes []string) (map[string]cluster.Counters, error) {
	tick := time.NewTicker(settleFor / 3)
	defer tick.Stop()
	begun, changed := time.Now(), time.Now()
	var last map[string]cluster.Counters
	for {
		pages := make(map[string]cluster.Counters, len(nodes))
		for _, id := range nodes {
			page, err := cl.Counters(ctx, id)
			if err != nil {
				return nil, fmt.Errorf("read counters of node %s: %w", id, err)
			}
			pages[id] = page
		}
		if !sameCounters(pages, last) {
			last, changed = pages, time.Now()
		}
		if time.Since(changed) >= settleFor {
			return pages, nil
		}
		if time.Since(begun) > settleLimit {
			return nil, fmt.Errorf("counters of nodes %v still move %v after the last answer: something computes without a request", nodes, settleLimit)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func sameCounters(a, b map[string]cluster.Counters) bool {
	for id := range a {
		for _, name := range []string{cluster.MetricPrefillTokens, cluster.MetricDecodeSteps, cluster.MetricReplayedDecodeSteps, cluster.MetricRestoredBytes} {
			if b[id] == nil || a[id][name] != b[id][name] {
				return false
			}
		}
	}
	return true
}

// recomputed compares what the surviving node's engine did during the runs with what it had to do. It is nil where
// that is not known exactly: after a retry, or when an answer was not continued to its end.
func (l *lab) recomputed(ctx context.Context, seen examined, before map[string]cluster.Counters) (*recomputed, error) {
	var survivor string
	for _, id := range l.cluster.Nodes() {
		if id != seen.node {
			survivor = id
		}
	}
	var prefill, steps, restored int64 // what the engine had to do
	smallest, takeovers := int64(0), 0
	for i, o := range seen.outcomes {
		s := seen.streams[i]
		if o.retried || !s.transcript.Complete() {
			return nil, nil
		}
		tokens := int64(len(s.transcript.Tokens()))
		switch {
		case s.primary == survivor && len(o.session.Attempts) == 1:
			prefill += int64(s.transcript.Usage.PromptTokens)
			steps += tokens - 1 // token 0 comes from the prefill
		case o.seam != nil && o.seam.To == survivor:
			steps += max(0, tokens-int64(o.seam.Index))
			restored += o.seam.RestoredBytes
			if smallest == 0 || o.seam.RestoredBytes < smallest {
				smallest = o.seam.RestoredBytes
			}
			takeovers++
		}
	}
	if takeovers == 0 {
		return nil, nil
	}
	pages, err := settledCounters(ctx, l.cluster, []string{survivor})
	if err != nil {
		return nil, err
	}
	did := make(map[string]int64)
	for _, name := range []string{cluster.MetricPrefillTokens, cluster.MetricDecodeSteps, cluster.MetricReplayedDecodeSteps, cluster.MetricRestoredBytes} {
		if did[name], err = pages[survivor].Delta(before[survivor], name); err != nil {
			return nil, fmt.Errorf("counters of node %s: %w", survivor, err)
		}
	}
	r := &recomputed{
		prefillTokens:    largerMagnitude(did[cluster.MetricPrefillTokens]-prefill, 0),
		replayedSteps:    largerMagnitude(did[cluster.MetricDecodeSteps]-steps, did[cluster.MetricReplayedDecodeSteps]),
		restoredBytesMin: smallest,
	}
	if loaded := did[cluster.MetricRestoredBytes]; loaded != restored {
		l.logf("node %s: its engine loaded %d bytes where the router's seams say %d", survivor, loaded, restored)
		r.restoredBytesMin = min(smallest, loaded/int64(takeovers))
	}
	if r.prefillTokens != 0 || r.replayedSteps != 0 {
		l.logf("node %s: its engine did %d prefill tokens and %d decode steps, %d and %d were needed", survivor,
			did[cluster.MetricPrefillTokens], did[cluster.MetricDecodeSteps], prefill, steps)
	}
	return r, nil
}

// largerMagnitude keeps a disagreement visible whichever of two measures shows it, and whichever way.
func largerMagnitude(a, b int64) int64 {
	if a < 0 {
		a = -a
	}
	return max(a, b)
}
