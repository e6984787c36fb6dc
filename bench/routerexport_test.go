// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"time"
)

// Names for tests.
var (
	CountDeltas = countDeltas
	StatTime    = statTime
	// StatusMemory reads memory in MiB.
	StatusMemory = statusMemory
)

// RouterSource is an upstream of the router bench, for tests that play its client.
type RouterSource struct{ source routerSource }

// NewRouterSource starts one.
func NewRouterSource(kind string, streams int) (*RouterSource, error) {
	if kind == RouterAgent {
		u, err := newRouterAgent(streams)
		return &RouterSource{u}, err
	}
	u, err := newRouterOpenAI()
	return &RouterSource{u}, err
}

// Close ends it.
func (s *RouterSource) Close() { s.source.close() }

// Direct streams one answer of count deltas and returns the age of each at its receipt.
func (s *RouterSource) Direct(ctx context.Context, rate, count int) (ages []time.Duration, err error) {
	script := newRouterScript(rate, count, 1)
	s.source.play(script)
	_, err = s.source.direct(ctx, func() { ages = append(ages, script.age(len(ages))) })
	return ages, err
}

// Endless streams until received has come stopAfter times, and returns how many deltas were emitted and received.
func (s *RouterSource) Endless(ctx context.Context, stopAfter int) (emitted int64, received int, err error) {
	script := newRouterScript(0, 0, 1)
	script.at = nil
	s.source.play(script)
	n := 0
	received, err = s.source.direct(ctx, func() {
		if n++; n == stopAfter {
			script.finish()
		}
	})
	return script.emitted.Load(), received, err
}

// Again streams the last script once more.
func (s *RouterSource) Again(ctx context.Context) error {
	_, err := s.source.direct(ctx, func() {})
	return err
}

// RouterAllocs divides heap objects by deltas between two looks.
func RouterAllocs(mallocs [2]float64, known bool, deltas [2]int64) *float64 {
	return routerHeap{mallocs: mallocs[1], known: known, deltas: deltas[1]}.since(routerHeap{mallocs: mallocs[0], known: known, deltas: deltas[0]})
}
