// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"time"

	"google.golang.org/grpc"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/router/fleet"
)

const (
	prepareTimeout = 2 * time.Second
	parkTimeout    = 2 * time.Second
	// prepareHold is how long a holder keeps a context for a session that is about to come.
	prepareHold = 5 * time.Second
	// coverPatience is how long a planned takeover waits, after the fence, for what the parked run captured to reach
	// its holder; coverPoll is how often it looks.
	coverPatience = 500 * time.Millisecond
	coverPoll     = 10 * time.Millisecond
)

// Results of moves.
const (
	moveDone     = "moved"
	moveRefused  = "refused"  // nothing has happened
	moveReturned = "returned" // the target failed, and the session goes on where it was
	moveLost     = "lost"     // the session was interrupted on the way
	moveEnded    = "ended"    // the session ended before
)

// Move is what became of a planned takeover.
type Move struct {
	Session string `json:"session"`
	Result  string `json:"result"`
	// Reason says why the session wasn't moved.
	Reason string `json:"reason,omitempty"`
	From   string `json:"from"`
	To     string `json:"to,omitempty"`
	// Delivered is d at the fence, Index the first output token that the new node decoded.
	Delivered   int   `json:"delivered"`
	Index       int   `json:"index"`
	PauseMillis int64 `json:"pause_ms"`
}

// order asks a session to move.
type order struct {
	cause Cause
	// lost is set if there is nothing to move: the engine is lost.
	lost *loss
	// done gets one Move; it has a place for it.
	done chan Move
}

// moving is a session's planned takeover.
type moving struct {
	order *order
	// target is who was asked to prepare; prepared has a place for its answer.
	target   *holder
	epoch    fence.Epoch
	prepared chan prepared
	// from is the node that was left, and parked its answer, once the gate was raised.
	from   *fleet.Node
	parked *parking
	d      int
}

// prepared is a holder's answer.
type prepared struct {
	boundary int
	err      error
}

// parking is a run that was asked to stop and to keep its state.
type parking struct {
	epoch fence.Epoch
	// answered is closed when the agent has answered, refused is set before.
	answered chan struct{}
	refused  error
}

// settle answers the order.
func (s *session) settle(m Move) {
	if s.moving == nil {
		return
	}
	m.Session = s.id.String()
	if s.moving.from != nil && m.From == "" {
		m.From = s.moving.from.ID()
	}
	m.Delivered = max(m.Delivered, s.moving.d)
	s.r.metrics.moves.WithLabelValues(m.Result).Inc()
	s.moving.order.done <- m
	s.moving = nil
}

// startMove asks the standby to prepare. The run goes on meanwhile.
func (s *session) startMove(a *attempt, o *order) {
	if s.moving != nil {
		o.done <- Move{Session: s.id.String(), Result: moveRefused, Reason: "the session is being moved already", From: a.node.ID()}
		return
	}
	s.moving = &moving{order: o, epoch: a.epoch, prepared: make(chan prepared, 1)}
	refuse := func(reason string) { s.settle(Move{Result: moveRefused, Reason: reason, From: a.node.ID()}) }
	if a.reply != nil {
		refuse("it runs on an upstream without an agent")
		return
	}
	var target *holder
	for _, h := range s.pairing.holders {
		if h.proven && !h.lost {
			target = h
			break
		}
	}
	if target == nil || !s.protected {
		refuse("it is not protected: no holder has its state")
		return
	}
	s.moving.target = target
	if !s.prepare(target, a.epoch, s.moving.prepared) {
		refuse("too many calls are pending")
	}
}

// prepare asks a holder in the background.
func (s *session) prepare(target *holder, epoch fence.Epoch, answer chan<- prepared) bool {
	client := target.node().Client()
	request := &seguev1.PrepareRequest{Session: s.id[:], Epoch: uint64(epoch), HoldMs: uint32(prepareHold.Milliseconds())}
	return s.r.background.call("prepare", 1, prepareTimeout, func(ctx context.Context) error {
		got, err := client.Prepare(ctx, request)
		answer <- prepared{int(got.GetBoundary()), err}
		return err
	}, "session", s.id, "agent", target.node().ID())
}

// onPrepared decides whether the run ends for the move.
func (s *session) onPrepared(a *attempt, p prepared) (ending, bool) {
	m := s.moving
	switch {
	case p.err != nil:
		end := classify(p.err, true, false)
		s.settle(Move{Result: moveRefused, Reason: end.public(), From: a.node.ID(), To: m.target.node().ID()})
	case m.epoch != a.epoch || !s.protected || m.target.lost || !s.assigned(m.target.node()):
		s.settle(Move{Result: moveRefused, Reason: "its protection changed meanwhile", From: a.node.ID(), To: m.target.node().ID()})
	default:
		return ending{cause: m.order.cause, detail: "planned", said: true, planned: true}, true
	}
	return ending{}, false
}

// park stops the fenced run of a planned move, which keeps its state there. Its lease goes on until it has answered: a
// run whose lease was given back ends, and nothing of it stays.
func (s *session) park(a *attempt) {
	m := s.moving
	m.from, m.d = a.node, s.gate.Len()
	m.parked = &parking{epoch: a.epoch, answered: make(chan struct{})}
	p, client, lease := m.parked, a.node.Client(), a.lease
	request := &seguev1.ParkRequest{Session: s.id[:], Epoch: uint64(a.epoch)}
	called := s.r.background.call("park", 1, parkTimeout, func(ctx context.Context) error {
		defer close(p.answered)
		defer lease.Revoke()
		_, p.refused = client.Park(ctx, request, grpc.WaitForReady(true))
		return p.refused
	}, "session", s.id, "agent", a.node.ID())
	if !called {
		lease.Revoke()
		p.refused = errNotCalled
		close(p.answered)
	}
	s.told(a.node)
	if !s.assigned(a.node) {
		h := &holder{hold: s.r.fleet.HoldOn(a.node), epoch: a.epoch, parked: p}
		s.pairing.holders = append(s.pairing.holders, h)
	}
}

// awaitPlanned waits, before the takeover of a planned move, for what the target lacks; or for the answer of a parked
// run, before it is asked to go on itself. false: from has nothing.
func (s *session) awaitPlanned(ctx context.Context, from *holder) (bool, *ending) {
	if p := from.parked; p != nil {
		select {
		case <-p.answered:
		case <-ctx.Done():
			end := contextEnding(ctx)
			return false, &end
		}
		return p.refused == nil, nil
	}
	if s.moving == nil || s.moving.target != from || s.wish != ProtectionAsync {
		return true, nil
	}
	deadline := time.Now().Add(coverPatience)
	for time.Now().Before(deadline) {
		answer := make(chan prepared, 1)
		if !s.prepare(from, s.moving.epoch, answer) {
			return true, nil
		}
		select {
		case p := <-answer:
			if p.err != nil || p.boundary >= max(s.gate.Len(), 1) {
				return true, nil
			}
		case <-ctx.Done():
			end := contextEnding(ctx)
			return false, &end
		}
		if failure := s.pause(ctx, time.Now().Add(coverPoll), nil); failure != nil {
			return false, failure
		}
	}
	return true, nil
}

// moved ends a planned move once an attempt goes on.
func (s *session) moved(a *attempt, seam *seguev1.Seam, pause time.Duration) {
	m := s.moving
	if m == nil || m.from == nil {
		return
	}
	result := Move{To: a.node.ID(), Index: int(seam.GetBoundary()), PauseMillis: pause.Milliseconds(), Result: moveDone}
	if a.node == m.from {
		result.Result, result.Reason = moveReturned, "the target could not go on"
	} else {
		// What is parked isn't needed any more.
		s.forget(m.from)
		s.cancelRun(m.from, m.parked.epoch)
	}
	s.settle(result)
}

// refuseOrders ends what was asked of a session that has ended. Those who ask later find no live session.
func (s *session) refuseOrders() {
	s.abandonMove(ending{cause: CauseClientGone, detail: "the session has ended"})
}

// abandonMove ends a planned move that didn't come about.
func (s *session) abandonMove(end ending) {
	if s.moving == nil {
		return
	}
	result := Move{Result: moveLost, Reason: end.public()}
	if s.moving.from == nil {
		result.Result = moveEnded
	}
	s.settle(result)
}
