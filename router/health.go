// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/router/fleet"
)

// evacuateAgain is how often what still runs on a node that should be left is asked to move: a session without a holder
// can't until it has one.
const evacuateAgain = 2 * time.Second

// verdictCauses is a read-only table.
var verdictCauses = map[health.Verdict]Cause{health.Dead: CauseDead, health.Hung: CauseHung}

// loss tells a session that the engine under it is lost.
type loss struct {
	node string
	// at is when that was decided: a run that began later isn't meant.
	at  time.Time
	end ending
}

// judged acts on a new verdict. It doesn't wait for what it starts.
func (r *Router) judged(n *fleet.Node, h fleet.Health) {
	r.metrics.verdicts.WithLabelValues(n.Kind().String(), h.Verdict.String()).Inc()
	at := time.Now()
	switch {
	case h.Verdict == health.CutOff, h.Verdict == health.Dead && n.Kind() == fleet.KindServer:
		// Every session notices by its own stream: one that still gets output goes on, as from a server that takes no new
		// connections while it stops.
	case h.Lost():
		r.background.spawn(func(ctx context.Context) { r.abandon(ctx, n, at, h) })
	case h.Leave():
		r.background.spawn(func(ctx context.Context) { r.evacuate(ctx, n) })
	}
}

// abandon tells every session on a node that its engine is lost: each fences it and goes on elsewhere, if it can.
func (r *Router) abandon(ctx context.Context, n *fleet.Node, at time.Time, h fleet.Health) {
	// What an agent says of a process that has ended is final; everything else may go on out of sight.
	end := ending{cause: verdictCauses[h.Verdict], detail: fmt.Sprint(h.Reasons), said: h.Verdict == health.Dead}
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, rec := range r.registry.running(n.ID()) {
		wg.Go(func() {
			r.give(ctx, rec, &order{cause: end.cause, lost: &loss{node: n.ID(), at: at, end: end}, done: make(chan Move, 1)})
		})
	}
}

// evacuate moves what runs on a node away, as long as its verdict says so.
func (r *Router) evacuate(ctx context.Context, n *fleet.Node) {
	since := n.Health().Since
	for {
		r.moveAll(ctx, n, CauseEvacuate)
		timer := time.NewTimer(evacuateAgain)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		// Another verdict since has its own evacuation, if it needs one.
		if h := n.Health(); ctx.Err() != nil || !h.Leave() || !h.Since.Equal(since) {
			return
		}
	}
}

// moveAll orders every session that runs on a node to its holder, a few at a time.
func (r *Router) moveAll(ctx context.Context, n *fleet.Node, cause Cause) []Move {
	var mu sync.Mutex
	var wg sync.WaitGroup
	moves := []Move{}
	places := make(chan struct{}, movesAtOnce)
	for _, rec := range r.registry.running(n.ID()) {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			m := r.move(ctx, rec, cause)
			mu.Lock()
			defer mu.Unlock()
			moves = append(moves, m)
		})
	}
	wg.Wait()
	return slices.Clip(moves)
}

// obey takes an order: to move, or to leave a lost engine at once.
func (s *session) obey(a *attempt, o *order) (ending, bool) {
	if o.lost == nil {
		s.startMove(a, o)
		return ending{}, false
	}
	o.done <- Move{}
	if a.node.ID() != o.lost.node || a.began.After(o.lost.at) {
		return ending{}, false
	}
	if a.kind == kindTakeover && !a.answered && o.lost.end.said {
		// The agent that says so lives, and holds what it hasn't given to its engine: it answers by itself, and can be
		// asked again.
		return ending{}, false
	}
	return o.lost.end, true
}
