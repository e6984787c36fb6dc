// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/router/fleet"
)

const (
	// pairEvery is the shortest time between two Pair calls of a session; after a failure it doubles up to
	// pairSlowest, because every pairing sends a whole base.
	pairEvery   = time.Second
	pairSlowest = 8 * time.Second
	// announcePatience is how long, once tokens flow, the primary may say nothing about a holder before it is
	// told again to pair with it. To a primary that replicates there already that is no news.
	announcePatience = 5 * time.Second
	// basePatience is how long a base may be on its way, once tokens flow, before another holder is tried: the
	// base starts over there. The primary judges its holder by itself, but says so only when its verdict changes.
	basePatience = 30 * time.Second

	pairTimeout = 2 * time.Second
)

// pairing is a session's dealings with holders.
type pairing struct {
	// holders, newest first: the standby, then those whose hold is older.
	holders []*holder
	// told lists every node that may have come to hold the session.
	told []*fleet.Node
	// pending was chosen at since, was last told to the primary at paired, and its base isn't complete yet; nil
	// when the primary has said how it went.
	pending       *holder
	since, paired time.Time
	// next is the earliest time of the next Pair call.
	next time.Time
	wait time.Duration
	// barred maps a node to the boot id under which it can't hold this session.
	barred map[string]string
	// shunned is the node that the present run lost as its holder last, or empty.
	shunned string
	// calling is the holder of the Pair call that is under way; its outcome comes by results, which has one
	// place for it.
	calling *holder
	results chan pairResult
}

type pairResult struct {
	epoch  fence.Epoch
	holder *holder
	err    error
}

// onProtection takes in what the primary says about the session's protection.
func (s *session) onProtection(e *seguev1.Protection) {
	s.protected, s.unprotectedCause = e.GetProtected(), e.GetCause()
	state := "unprotected"
	if e.GetProtected() {
		state = "protected"
	}
	s.r.metrics.changes.WithLabelValues(state).Inc()
	node := s.r.fleet.Node(e.GetHolder())
	s.rec.update(func(i *SessionInfo) {
		i.Protected = e.GetProtected()
		if node != nil {
			i.Holder = e.GetHolder()
		}
		i.logProtection(ProtectionInfo{
			Protected: e.GetProtected(), Holder: e.GetHolder(), FromIndex: int(e.GetFromIndex()), Cause: e.GetCause(), Detail: e.GetDetail(),
		})
	})
	switch {
	case e.GetProtected():
		s.onProtected(node)
	case e.GetCause() != "":
		// Without a cause the base is merely on its way.
		s.onUnprotected(e, node)
	}
}

// onProtected records that node, which may be nil, holds everything and is the only one that is kept up to date.
func (s *session) onProtected(node *fleet.Node) {
	p := &s.pairing
	if c := p.calling; c != nil && c.node() == node && !slices.Contains(p.holders, c) {
		s.assign(c) // the announcement came before the call's answer
	}
	p.pending, p.wait, p.shunned = nil, 0, ""
	for _, h := range p.holders {
		if h.node() == node {
			h.proven, h.lost = true, false
		} else {
			h.lost = true
		}
	}
}

// onUnprotected records that node, which may be nil, holds nothing complete any more.
func (s *session) onUnprotected(e *seguev1.Protection, node *fleet.Node) {
	p := &s.pairing
	if p.pending != nil && (node == nil || node == p.pending.node()) {
		p.pending = nil
	}
	if node == nil {
		return
	}
	p.shunned = node.ID()
	if h := s.holderAt(node); h != nil {
		h.lost = true
	}
	switch Cause(e.GetCause()) {
	case CauseFingerprintMismatch, CauseGeometryMismatch:
		// Its state can never be loaded by or from this session's primary.
		if p.barred == nil {
			p.barred = map[string]string{}
		}
		p.barred[node.ID()] = node.Boot()
	}
}

// repair gives a session that lost its holder, or never had one, a new one, in the background.
func (s *session) repair(a *attempt) {
	p := &s.pairing
	now := time.Now()
	if s.wish == ProtectionOff || s.protected || p.calling != nil || !a.answered || now.Before(p.next) {
		return
	}
	if p.pending != nil {
		if s.gate.Len() == 0 {
			p.since, p.paired = now, now // prefill and base take what they take
		}
		if now.Sub(p.paired) <= announcePatience {
			return
		}
	}
	h := s.chooseAgain(a.node, now)
	if h == nil {
		return
	}
	p.wait = min(max(2*p.wait, pairEvery), pairSlowest)
	p.next = now.Add(p.wait)
	client, epoch, results := a.node.Client(), a.epoch, p.results
	called := s.r.background.call("pair", 1, pairTimeout, func(ctx context.Context) error {
		_, err := client.Pair(ctx, &seguev1.PairRequest{Session: s.id[:], Epoch: uint64(epoch), Holder: h.peer()})
		results <- pairResult{epoch, h, err}
		return err
	}, "session", s.id, "agent", a.node.ID())
	if called {
		p.calling = h
		s.told(h.node())
	} else if h != p.pending {
		h.hold.Drop()
	}
}

// chooseAgain picks the holder to pair with: the pending one while its base may still come, else one that
// didn't fail the session just now, else any.
func (s *session) chooseAgain(primary *fleet.Node, now time.Time) *holder {
	p := &s.pairing
	if p.pending != nil && now.Sub(p.since) <= basePatience && p.pending.node().Ready() {
		return p.pending
	}
	avoid := []string{p.shunned}
	if p.pending != nil {
		avoid = append(avoid, p.pending.node().ID())
	}
	h := s.chooseHolder(primary, avoid...)
	if h == nil {
		h = s.chooseHolder(primary)
	}
	if h != nil && p.pending != nil && h.node() == p.pending.node() {
		h.hold.Drop()
		return p.pending
	}
	return h
}

// unanswered reports a call that may have done its work all the same.
func unanswered(err error) bool {
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Unavailable, codes.Canceled:
		return len(status.Convert(err).Details()) == 0
	}
	return false
}

// onPaired takes in the outcome of a Pair call made for attempt a or an earlier one.
func (s *session) onPaired(a *attempt, r pairResult) {
	p := &s.pairing
	p.calling = nil
	h := r.holder
	listed := slices.Contains(p.holders, h)
	result := "ok"
	if r.err != nil || r.epoch != a.epoch {
		result = "failed"
	}
	s.r.metrics.pairings.WithLabelValues(result).Inc()
	refused := r.err != nil && !unanswered(r.err)
	switch {
	case !listed && (refused || r.epoch != a.epoch):
		h.hold.Drop()
		if h.node() != a.node && !s.assigned(h.node()) {
			s.release(h.node(), r.epoch)
		}
	case refused || r.epoch != a.epoch:
	case !listed:
		s.assign(h)
		s.rec.update(func(i *SessionInfo) { i.Holder = h.node().ID() })
	case h == p.pending:
		p.paired = time.Now()
	}
}

// drainPaired takes in the outcome of a Pair call that has ended.
func (s *session) drainPaired(a *attempt) {
	select {
	case r := <-s.pairing.results:
		s.onPaired(a, r)
	default:
	}
}
