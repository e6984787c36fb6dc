// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/seguekv/segue/health"
)

// MaxStep is how long a chunk of a prompt may take, by the rate seen, for a counter of steps to count as one: half the
// detector's floor.
const MaxStep = time.Second

const (
	// llamaBatch is llama-server's default of -b, which its pages don't tell.
	llamaBatch = 2048
	// lives is how many process lives are remembered; alternations is how many changes between them, one of them back
	// to an earlier one, make a balancer.
	lives        = 8
	alternations = 3
	// longestNap is how many reads an idle scheduler may leave its count of idle seconds alone.
	longestNap = 8
)

const balanced = "several processes answer in turn: a balancer; give the servers behind it"

// Track makes readings of the facts of one target's successive pages. The zero value is ready. It belongs to one
// goroutine at a time.
type Track struct {
	// Chunk is how many tokens of prompts a step computes at most; 0 is unknown, negative without a limit. For
	// LlamaCPP unknown means its default.
	Chunk int

	before map[string]*trace
	rounds float64
	tokens float64 // rounds in which tokens came out
	life   int

	seen     []string
	changes  int
	returned bool
	last     health.Reading
}

// trace is what is known of one engine from the pages before.
type trace struct {
	counters []health.Counter
	idle     float64
	nap, gap int // reads since idle seconds grew, and the most there were while nothing moved
	moved    bool
	tokens   bool
}

// Balancer reports whether the pages came from several processes in turn.
func (t *Track) Balancer() bool { return t.returned && t.changes >= alternations }

// Reading is what the facts mean after those of the pages before.
func (t *Track) Reading(f Facts) health.Reading {
	t.last = t.reading(f)
	return t.last
}

// silent is what it means that a task queue doesn't answer while the server beside it does: since one that has nothing
// to do answers at once, something is in flight, and nothing moved.
func (t *Track) silent(detail string) health.Reading {
	return health.Reading{
		Outcome: health.Answered, Detail: detail, Steps: t.last.Steps, Counters: t.last.Counters, InFlight: max(t.last.InFlight, 1),
	}
}

func (t *Track) reading(f Facts) health.Reading {
	r := health.Reading{Outcome: health.Answered, Incarnation: f.Incarnation, Loading: f.Loading, Sleeping: f.Sleeping}
	t.remember(f.Incarnation)
	if t.Balancer() {
		return health.Reading{Outcome: health.Opaque, Proxy: true, Detail: balanced}
	}
	if f.Loading || f.Sleeping {
		t.before = nil
		return r
	}
	r.Steps = t.steps(f)
	fell := t.follow(&f)
	r.InFlight = f.inFlight()
	if len(f.Engines) == 1 {
		r.Counters = f.Engines[0].Counters
		return r
	}
	if fell {
		t.life++
		t.rounds, t.tokens = 0, 0
	}
	t.round(f)
	r.Incarnation += "#" + strconv.Itoa(t.life)
	r.Counters = []health.Counter{{Name: "rounds", Value: t.rounds}, {Name: "rounds_with_tokens", Value: t.tokens, Tokens: true}}
	return r
}

// steps reports whether a silence of more than the floor can't be a long step.
func (t *Track) steps(f Facts) bool {
	chunk := t.Chunk
	if chunk == 0 && f.Kind == LlamaCPP {
		chunk = llamaBatch
	}
	return f.Stepwise && chunk > 0 && f.PromptRate > 0 && float64(chunk)/f.PromptRate <= MaxStep.Seconds()
}

// remember counts changes of the process life, and notes those back to an earlier one.
func (t *Track) remember(life string) {
	if life == "" || len(t.seen) > 0 && t.seen[len(t.seen)-1] == life {
		return
	}
	if len(t.seen) > 0 {
		t.changes++
	}
	if i := slices.Index(t.seen, life); i >= 0 {
		t.returned = true
		t.seen = slices.Delete(t.seen, i, i+1)
	}
	if t.seen = append(t.seen, life); len(t.seen) > lives {
		t.seen = slices.Delete(t.seen, 0, 1)
	}
}

// follow compares each engine with itself on the page before, and corrects what it has in flight. It reports whether a
// counter fell or the engines are others.
func (t *Track) follow(f *Facts) (fell bool) {
	now := make(map[string]*trace, len(f.Engines))
	other := t.before != nil && len(t.before) != len(f.Engines)
	for i := range f.Engines {
		e := &f.Engines[i]
		tr, known := t.before[e.Name]
		if !known {
			tr = &trace{idle: math.NaN()}
			other = other || t.before != nil
		}
		moved, down := tr.compare(e.Counters)
		fell = fell || down
		e.InFlight = tr.inFlight(*e, moved)
		tr.counters, tr.idle = e.Counters, e.Idle
		now[e.Name] = tr
	}
	t.before = now
	return fell || other
}

// compare notes whether a counter moved.
func (tr *trace) compare(counters []health.Counter) (moved, fell bool) {
	for i, c := range counters {
		if i >= len(tr.counters) || tr.counters[i].Name != c.Name || math.IsNaN(c.Value) {
			continue
		}
		before := tr.counters[i].Value
		if math.IsNaN(before) || before == c.Value {
			continue
		}
		moved = true
		tr.tokens = tr.tokens || c.Tokens
		fell = fell || !c.Gauge && c.Value < before
	}
	tr.moved = tr.moved || moved
	return moved, fell
}

// inFlight is how many requests the engine has. Where it counts its idle seconds it has none while they grow; while
// they don't, requests that are open count too, since its gauges are late.
func (tr *trace) inFlight(e Engine, moved bool) int {
	if math.IsNaN(e.Idle) {
		if e.Open >= 0 {
			return min(e.InFlight, e.Open)
		}
		return e.InFlight
	}
	grown := e.Idle > tr.idle
	switch {
	case moved || math.IsNaN(tr.idle):
		tr.nap = longestNap + 1
	case grown && tr.nap <= longestNap:
		tr.gap, tr.nap = max(tr.gap, tr.nap), 0
	case grown:
		tr.nap = 0
	default:
		tr.nap++
	}
	if tr.nap <= tr.gap {
		return 0
	}
	return max(e.InFlight, e.Open)
}

// round ends a round when every engine that has work has moved in it.
func (t *Track) round(f Facts) {
	any, tokens := false, false
	for _, e := range f.Engines {
		tr := t.before[e.Name]
		if e.InFlight > 0 && !tr.moved {
			return
		}
		any, tokens = any || tr.moved, tokens || tr.tokens
	}
	if !any {
		return
	}
	t.rounds++
	if tokens {
		t.tokens++
	}
	for _, tr := range t.before {
		tr.moved, tr.tokens = false, false
	}
}
