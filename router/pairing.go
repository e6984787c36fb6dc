// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/router/fleet"
)

const (
	// pairEvery is the shortest time between two Pair calls of a session; after a failure it doubles up to
	// pairSlowest, because every pairing sends a whole base.
	pairEvery   = time.Second
	pairSlowest = 8 * time.Second
	// basePatience is how long a base may be on its way, once tokens flow, before another holder is tried.
	// The primary judges its holder by itself, but says so only when its verdict changes.
	basePatience = 30 * time.Second

	cancelTimeout  = 5 * time.Second
	releaseTimeout = 2 * time.Second
	pairTimeout    = 2 * time.Second
)

// holder is a node that was told to hold the session and not yet told to release it.
type holder struct {
	hold *fleet.Hold
	// asked: a takeover was asked for since it was assigned.
	asked bool
}

func (h *holder) peer() *seguev1.Peer {
	if h == nil {
		return nil
	}
	return h.hold.Node.Peer()
}

// pairing is a session's dealings with holders.
type pairing struct {
	// holders, newest first: the standby, then those whose hold is older.
	holders []*holder
	// pending was chosen at since and its base isn't complete yet; nil when the primary has said how it went.
	pending *holder
	since   time.Time
	// next is the earliest time of the next Pair call.
	next time.Time
	wait time.Duration
	// barred maps a node to the boot id under which it can't hold this session.
	barred map[string]string
	// calling: a Pair call is under way; its outcome comes by results, which has one place for it.
	calling bool
	results chan pairResult
}

type pairResult struct {
	epoch fence.Epoch
	hold  *fleet.Hold
	err   error
}

// chooseHolder picks a holder for a run on primary; nil when there is none or none is wanted.
func (s *session) chooseHolder(primary *fleet.Node, avoid ...string) *holder {
	if s.wish == ProtectionOff {
		return nil
	}
	for id, boot := range s.pairing.barred {
		if s.r.fleet.Node(id).Boot() == boot {
			avoid = append(avoid, id)
		}
	}
	hold := s.r.fleet.PickHolder(primary, avoid)
	if hold == nil {
		return nil
	}
	return &holder{hold: hold}
}

// assign makes h the newest holder.
func (s *session) assign(h *holder) {
	if h == nil {
		return
	}
	p := &s.pairing
	s.forget(h.hold.Node.ID())
	p.holders = slices.Insert(p.holders, 0, h)
	p.pending, p.since = h, time.Now()
}

func (s *session) assigned(n *fleet.Node) bool {
	return slices.ContainsFunc(s.pairing.holders, func(h *holder) bool { return h.hold.Node == n })
}

// forget takes a node off the list without a word to it.
func (s *session) forget(id string) {
	s.pairing.holders = slices.DeleteFunc(s.pairing.holders, func(h *holder) bool {
		if h.hold.Node.ID() != id {
			return false
		}
		h.hold.Drop()
		if s.pairing.pending == h {
			s.pairing.pending = nil
		}
		return true
	})
}

func (s *session) releaseNode(node *fleet.Node, epoch uint64) {
	client := node.Client()
	s.r.background.call("release", 2, releaseTimeout, func(ctx context.Context) error {
		_, err := client.Release(ctx, &seguev1.ReleaseRequest{Session: s.id[:], Epoch: epoch}, grpc.WaitForReady(true))
		return err
	}, "session", s.id, "agent", node.ID())
}

// cancelRun tells an agent that its run of epoch is over. Nobody waits for it.
func (s *session) cancelRun(node *fleet.Node, epoch fence.Epoch) {
	client := node.Client()
	s.r.background.call("cancel", 1, cancelTimeout, func(ctx context.Context) error {
		_, err := client.Cancel(ctx, &seguev1.CancelRequest{Session: s.id[:], Epoch: uint64(epoch)}, grpc.WaitForReady(true))
		return err
	}, "session", s.id, "agent", node.ID(), "epoch", uint64(epoch))
}

// unasked counts holders that a takeover could ask.
func (s *session) unasked() int {
	n := 0
	for _, h := range s.pairing.holders {
		if !h.asked {
			n++
		}
	}
	return n
}

// nextHolder is the best holder to ask: the newest.
func (s *session) nextHolder() *holder {
	for _, h := range s.pairing.holders {
		if !h.asked {
			return h
		}
	}
	return nil
}

// onProtection takes in what the primary says about the session's protection.
func (s *session) onProtection(e *seguev1.Protection) {
	p := &s.pairing
	s.protected, s.unprotectedCause = e.GetProtected(), e.GetCause()
	state := "unprotected"
	if e.GetProtected() {
		state = "protected"
	}
	s.r.metrics.changes.WithLabelValues(state).Inc()
	s.rec.update(func(i *SessionInfo) {
		i.Protected = e.GetProtected()
		if e.GetHolder() != "" {
			i.Holder = e.GetHolder()
		}
		i.logProtection(ProtectionInfo{
			Protected: e.GetProtected(), Holder: e.GetHolder(), FromIndex: int(e.GetFromIndex()), Cause: e.GetCause(), Detail: e.GetDetail(),
		})
	})
	switch {
	case e.GetProtected():
		p.pending, p.wait = nil, 0
	case e.GetCause() != "":
		// Without a cause the base is merely on its way.
		s.bar(e)
		if p.pending != nil && (e.GetHolder() == "" || e.GetHolder() == p.pending.hold.Node.ID()) {
			p.pending = nil
		}
	}
}

// bar excludes a holder whose state can never be loaded by or from this session's primary.
func (s *session) bar(e *seguev1.Protection) {
	switch Cause(e.GetCause()) {
	case CauseFingerprintMismatch, CauseGeometryMismatch:
	default:
		return
	}
	if node := s.r.fleet.Node(e.GetHolder()); node != nil {
		if s.pairing.barred == nil {
			s.pairing.barred = map[string]string{}
		}
		s.pairing.barred[e.GetHolder()] = node.Boot()
	}
}

// repair gives a session that lost its holder, or never had one, a new one, in the background.
func (s *session) repair(a *attempt) {
	p := &s.pairing
	now := time.Now()
	if s.wish == ProtectionOff || s.protected || p.calling || !a.answered || now.Before(p.next) {
		return
	}
	var avoid []string
	if p.pending != nil {
		if s.gate.Len() == 0 {
			p.since = now // prefill and base take what they take
		}
		if now.Sub(p.since) < basePatience {
			return
		}
		avoid = append(avoid, p.pending.hold.Node.ID())
	}
	h := s.chooseHolder(a.node, avoid...)
	if h == nil {
		return
	}
	p.wait = min(max(2*p.wait, pairEvery), pairSlowest)
	p.next = now.Add(p.wait)
	client, epoch := a.node.Client(), a.epoch
	p.calling = s.r.background.call("pair", 1, pairTimeout, func(ctx context.Context) error {
		_, err := client.Pair(ctx, &seguev1.PairRequest{Session: s.id[:], Epoch: uint64(epoch), Holder: h.peer()})
		p.results <- pairResult{epoch, h.hold, err}
		return err
	}, "session", s.id, "agent", a.node.ID())
	if !p.calling {
		h.hold.Drop()
	}
}

// onPaired takes in the outcome of a Pair call. A failed one may have reached the holder.
func (s *session) onPaired(a *attempt, r pairResult) {
	s.pairing.calling = false
	if r.err != nil || r.epoch != a.epoch {
		s.r.metrics.pairings.WithLabelValues("failed").Inc()
		r.hold.Drop()
		if r.hold.Node != a.node && !s.assigned(r.hold.Node) {
			s.releaseNode(r.hold.Node, uint64(r.epoch))
		}
		return
	}
	s.r.metrics.pairings.WithLabelValues("ok").Inc()
	s.assign(&holder{hold: r.hold})
	s.rec.update(func(i *SessionInfo) { i.Holder = r.hold.Node.ID() })
}

// unpair ends the session's dealings: it releases every holder, and one that a Pair call is fetching once
// that has ended. Until here a former holder keeps what it has: it may be asked for a takeover.
func (s *session) unpair() {
	for _, h := range s.pairing.holders {
		h.hold.Drop()
		s.releaseNode(h.hold.Node, uint64(s.gate.Epoch()))
	}
	s.pairing.holders = nil
	if !s.pairing.calling {
		return
	}
	s.pairing.calling = false
	results := s.pairing.results
	epoch := uint64(s.gate.Epoch())
	s.r.background.call("release", 1, pairTimeout+releaseTimeout, func(ctx context.Context) error {
		r := <-results
		r.hold.Drop()
		_, err := r.hold.Node.Client().Release(ctx, &seguev1.ReleaseRequest{Session: s.id[:], Epoch: epoch})
		return err
	}, "session", s.id)
}
