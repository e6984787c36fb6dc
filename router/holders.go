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
	cancelTimeout  = 5 * time.Second
	releaseTimeout = 2 * time.Second
)

// holder is a node that was told to hold the session and may still hold it.
type holder struct {
	hold *fleet.Hold
	// epoch of the run whose base it was told to take.
	epoch fence.Epoch
	// proven: that run's primary announced its base as complete. lost: it has fallen behind since.
	proven, lost bool
	// parked is set for the run that the session left on a planned move.
	parked *parking
	// asked: a takeover was asked for since it was assigned.
	asked bool
	// refusedAt is when it was asked in vain for a reason that passes; zero when the answer is final.
	refusedAt time.Time
	// pause is how long it is left alone after that if the fleet finds it ready.
	pause time.Duration
}

func (h *holder) node() *fleet.Node { return h.hold.Node }

func (h *holder) peer() *seguev1.Peer {
	if h == nil {
		return nil
	}
	return h.node().Peer()
}

// waits reports a holder that may be asked again.
func (h *holder) waits() bool { return h.asked && !h.refusedAt.IsZero() }

// rank orders holders by what they are likely to cover.
func (h *holder) rank() int {
	switch {
	case h.parked != nil:
		return 3 // only if nobody else can go on
	case h.proven && !h.lost:
		return 0
	case h.proven:
		return 1
	}
	return 2 // its base was on its way when last heard of
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
	return &holder{hold: hold, epoch: s.gate.Epoch()}
}

// chooseNext picks the holder of a run that from is asked to take over. What it holds of an older run goes when
// the new run's base comes: nodes with something to ask for are left alone while others will do, and those that
// aren't known to be behind until the session can't go on without.
func (s *session) chooseNext(from *holder) *holder {
	var held, covering []string
	for _, h := range s.pairing.holders {
		if h == from || h.asked && !h.waits() {
			continue
		}
		held = append(held, h.node().ID())
		if !h.lost {
			covering = append(covering, h.node().ID())
		}
	}
	tiers := [][]string{held, covering}
	if s.mustProtect() {
		tiers = append(tiers, nil)
	}
	for _, avoid := range tiers {
		if h := s.chooseHolder(from.node(), append(avoid, s.lost.from)...); h != nil {
			return h
		}
	}
	return nil
}

// told remembers that n may come to hold the session: it hears of the session's end.
func (s *session) told(n *fleet.Node) {
	if !slices.Contains(s.pairing.told, n) {
		s.pairing.told = append(s.pairing.told, n)
	}
}

// assign makes h the newest holder. What the node holds of an earlier run is released, as h's base may be long
// in coming.
func (s *session) assign(h *holder) {
	if h == nil {
		return
	}
	p := &s.pairing
	s.told(h.node())
	if old := s.forget(h.node()); old != nil && old.epoch < h.epoch {
		s.release(h.node(), old.epoch)
	}
	p.holders = slices.Insert(p.holders, 0, h)
	now := time.Now()
	p.pending, p.since, p.paired = h, now, now
}

func (s *session) assigned(n *fleet.Node) bool {
	return slices.ContainsFunc(s.pairing.holders, func(h *holder) bool { return h.node() == n })
}

// forget takes a node off the list without a word to it, and returns what was there.
func (s *session) forget(n *fleet.Node) *holder {
	p := &s.pairing
	i := slices.IndexFunc(p.holders, func(h *holder) bool { return h.node() == n })
	if i < 0 {
		return nil
	}
	h := p.holders[i]
	p.holders = slices.Delete(p.holders, i, i+1)
	h.hold.Drop()
	if p.pending == h {
		p.pending = nil
	}
	return h
}

// giveUp releases every holder: what they hold belongs to a run that is given up.
func (s *session) giveUp() {
	for _, h := range s.pairing.holders {
		h.hold.Drop()
		s.release(h.node(), h.epoch)
	}
	s.pairing.holders, s.pairing.pending = nil, nil
}

// unpair ends the session's dealings. Every node that was ever told to hold it is told to take nothing of it any
// more, so that neither a base that is still on its way nor the tail of an orphan stays anywhere. Until here a
// former holder keeps what it has: it may be asked for a takeover. A run that finished ends by itself.
func (s *session) unpair() {
	p := &s.pairing
	for _, h := range p.holders {
		h.hold.Drop()
	}
	if p.calling != nil {
		p.calling.hold.Drop()
	}
	for _, n := range p.told {
		if n != s.finishedOn {
			s.cancelRun(n, s.gate.Epoch())
		}
	}
	p.holders, p.calling, p.told = nil, nil, nil
}

// release frees what a node holds of runs up to epoch.
func (s *session) release(node *fleet.Node, epoch fence.Epoch) {
	client := node.Client()
	s.r.background.call("release", 2, releaseTimeout, func(ctx context.Context) error {
		_, err := client.Release(ctx, &seguev1.ReleaseRequest{Session: s.id[:], Epoch: uint64(epoch)}, grpc.WaitForReady(true))
		return err
	}, "session", s.id, "agent", node.ID())
}

// cancelRun tells an agent that runs up to epoch are over, its own and those it holds. The channel is closed when the
// agent has answered.
func (s *session) cancelRun(node *fleet.Node, epoch fence.Epoch) (acknowledged <-chan struct{}) {
	client, done := node.Client(), make(chan struct{})
	s.r.background.call("cancel", 2, cancelTimeout, func(ctx context.Context) error {
		_, err := client.Cancel(ctx, &seguev1.CancelRequest{Session: s.id[:], Epoch: uint64(epoch)}, grpc.WaitForReady(true))
		if err == nil {
			close(done)
		}
		return err
	}, "session", s.id, "agent", node.ID(), "epoch", uint64(epoch))
	return done
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

// nextHolder is the best holder to ask; among equals the newest.
func (s *session) nextHolder() *holder {
	var best *holder
	for _, h := range s.pairing.holders {
		if !h.asked && (best == nil || h.rank() < best.rank()) {
			best = h
		}
	}
	return best
}

// holderAt is the list's entry for a node, or nil.
func (s *session) holderAt(n *fleet.Node) *holder {
	for _, h := range s.pairing.holders {
		if h.node() == n {
			return h
		}
	}
	return nil
}
