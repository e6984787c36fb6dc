// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"maps"
	"slices"
	"sync"

	"github.com/seguekv/segue/fence"
)

// Gates records what happens at the gates of a router's sessions, and what their clients read, in one order.
type Gates struct {
	mu       sync.Mutex
	clock    int64
	sessions map[string]*History
}

// History is one session's.
type History struct {
	Ops   []GateOp
	Reads []Read
	// tokens is what the gate holds.
	tokens int
}

// GateOp is one call of the gate, which took effect just before Seq.
type GateOp struct {
	fence.Op
	Seq int64
}

// Read is what a client read at once, at some time in (Since, Until): ids from First on, or, at the end of an answer that
// is whole, the number of tokens.
type Read struct {
	Since, Until int64
	First        int
	IDs          []int32
	// End: the answer is whole and has Total tokens.
	End   bool
	Total int
}

func newGates() *Gates { return &Gates{sessions: map[string]*History{}} }

func (g *Gates) of(id string) *History {
	h := g.sessions[id]
	if h == nil {
		h = &History{}
		g.sessions[id] = h
	}
	return h
}

func (g *Gates) add(id string, op fence.Op) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.of(id)
	g.clock++
	h.Ops = append(h.Ops, GateOp{op, g.clock})
	switch {
	case op.Err != nil:
	case op.Kind == fence.OpAppend:
		h.tokens = max(h.tokens, op.Index+1)
	case op.Kind == fence.OpRestart:
		h.tokens = 0
	}
}

// len is the number of tokens the session's gate holds.
func (g *Gates) len(id string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.of(id).tokens
}

// tick is a moment in the order.
func (g *Gates) tick() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.clock++
	return g.clock
}

func (g *Gates) read(id string, r Read) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.clock++
	r.Until = g.clock
	h := g.of(id)
	h.Reads = append(h.Reads, r)
}

// History is a copy of a session's history.
func (g *Gates) History(id string) History {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.of(id)
	return History{Ops: slices.Clone(h.Ops), Reads: slices.Clone(h.Reads), tokens: h.tokens}
}

// Sessions lists the sessions whose gates were called, sorted.
func (g *Gates) Sessions() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.sessions))
}

// epoch is the session's present one.
func (g *Gates) epoch(id string) fence.Epoch {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := fence.Epoch(1)
	for _, o := range g.of(id).Ops {
		if o.Err == nil && (o.Kind == fence.OpRaise || o.Kind == fence.OpRestart) {
			e = o.Epoch
		}
	}
	return e
}
