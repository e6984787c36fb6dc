// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"net/http"
	"time"

	"github.com/seguekv/segue/router/fleet"
	"github.com/seguekv/segue/snapshot"
)

const (
	// orderTimeout is how long a session may take to hear of an order: between two attempts it doesn't listen.
	orderTimeout = 5 * time.Second
	// movesAtOnce bounds the sessions that a drain moves at the same time: each pauses for its takeover.
	movesAtOnce = 4
)

// Drained is what became of a drain.
type Drained struct {
	Agent string `json:"agent"`
	// Moved, Returned and so on count sessions by result; Staying are those that run on until they finish.
	Moved   int `json:"moved"`
	Staying int `json:"staying"`
	// Moves lists every session that ran there.
	Moves []Move `json:"moves"`
}

// move orders a session to its holder and returns what became of it.
func (r *Router) move(ctx context.Context, rec *record, cause Cause) Move {
	return r.give(ctx, rec, &order{cause: cause, done: make(chan Move, 1)})
}

// give hands a session an order and returns its answer.
func (r *Router) give(ctx context.Context, rec *record, o *order) Move {
	info := rec.snapshot()
	late := Move{Session: info.Session, From: info.Primary, Result: moveRefused, Reason: "it is between two attempts; ask again"}
	over := Move{Session: info.Session, From: info.Primary, Result: moveEnded, Reason: "the session has ended"}
	timer := time.NewTimer(orderTimeout)
	defer timer.Stop()
	select {
	case rec.orders <- o:
	case <-rec.gone:
		return over
	case <-timer.C:
		return late
	case <-ctx.Done():
		return late
	}
	// The session answers every order that it has taken: at the latest with its end.
	select {
	case m := <-o.done:
		return m
	case <-ctx.Done():
		late.Reason = "the move goes on; see the session's attempts"
		return late
	}
}

// migrate moves one session to its holder.
func (r *Router) migrate(w http.ResponseWriter, req *http.Request) {
	id, err := snapshot.ParseSessionID(req.PathValue("id"))
	if err != nil {
		adminError(w, http.StatusBadRequest, err.Error())
		return
	}
	rec := r.registry.liveRecord(id)
	if rec == nil {
		adminError(w, http.StatusNotFound, "no such live session; GET /v1/sessions lists them")
		return
	}
	m := r.move(req.Context(), rec, CauseMigrate)
	status := http.StatusOK
	if m.Result != moveDone {
		status = http.StatusConflict
	}
	writeAdmin(w, status, m)
}

// named is the node that the path names; without one the answer is written.
func (r *Router) named(w http.ResponseWriter, req *http.Request) *fleet.Node {
	node := r.fleet.Node(req.PathValue("id"))
	if node == nil {
		adminError(w, http.StatusNotFound, "no such agent; GET /v1/agents lists them")
	}
	return node
}

// drainAgent keeps new work off an agent and moves every session that runs there.
func (r *Router) drainAgent(w http.ResponseWriter, req *http.Request) {
	node := r.named(w, req)
	if node == nil {
		return
	}
	node.Drain(true)
	answer := Drained{Agent: node.ID(), Moves: r.moveAll(req.Context(), node, CauseDrain)}
	for _, m := range answer.Moves {
		switch m.Result {
		case moveDone:
			answer.Moved++
		case moveRefused, moveReturned:
			answer.Staying++
		}
	}
	writeAdmin(w, http.StatusOK, answer)
}

// undrainAgent lets new work come again.
func (r *Router) undrainAgent(w http.ResponseWriter, req *http.Request) {
	node := r.named(w, req)
	if node == nil {
		return
	}
	node.Drain(false)
	writeAdmin(w, http.StatusOK, map[string]any{"agent": node.ID(), "draining": false})
}
