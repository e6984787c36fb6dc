// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

// session is one attempt of which this node is the primary.
type session struct {
	id     snapshot.SessionID
	epoch  fence.Epoch
	order  order
	digest snapshot.Digest // of the request
	desc   *engines.Description
	log    *slog.Logger
	began  time.Time

	// ctx is the attempt's life; cancel ends it with a cause.
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	changed chan struct{}
	seam    *seguev1.Seam
	prompt  *seguev1.Prompt
	tokens  []*seguev1.Token
	finish  *seguev1.Finish
	// ended is set when the engine's run is over; err is why, nil after a finish.
	ended bool
	err   error
	// prefilled and lastStep follow the engine.
	prefilled int
	lastStep  time.Time
	// atWindow says that the engine waits for the holder.
	atWindow bool

	outbox  *transfer.Outbox
	sender  *transfer.Sender
	memory  *snapshot.Reservation
	holder  *seguev1.Peer
	shield  protection
	changes []*seguev1.Protection // in the order they are announced
	// released is the number of tokens handed to a caller so far.
	released int
	// reader is the number of the feed that may send; an earlier one has been replaced. feeds is how many
	// are active.
	reader, feeds int
	orphan        *time.Timer
	// closed: outbox and memory are given back.
	closed bool
}

// order is what the router asked for, validated.
type order struct {
	request engines.Request
	mode    seguev1.ProtectionMode
	rules   rules
	holder  *seguev1.Peer
	require bool
}

func (o order) protects() bool { return o.mode != seguev1.ProtectionMode_PROTECTION_MODE_OFF }

func newSession(parent context.Context, id snapshot.SessionID, e fence.Epoch, o order, d *engines.Description, log *slog.Logger) *session {
	s := &session{
		id: id, epoch: e, order: o, desc: d, began: time.Now(), changed: make(chan struct{}),
		digest: engines.RequestDigest(o.request), holder: o.holder,
		log: log.With("session", id.String(), "epoch", uint64(e)),
	}
	s.lastStep = s.began
	s.ctx, s.cancel = context.WithCancelCause(parent)
	if o.protects() && o.holder == nil {
		s.shield = protection{state: unprotected, cause: causeNoHolder}
		s.announce()
	}
	return s
}

// resume makes s a continuation from state st: the restored tokens will be emitted again, and the caller
// gets them at once, whatever the new holder does.
func (s *session) resume(st *snapshot.State) {
	d := snapshot.IDsDigest(st.Prompt)
	s.prompt = &seguev1.Prompt{Tokens: uint32(len(st.Prompt)), Digest: d[:]}
	s.seam = &seguev1.Seam{
		Boundary: uint32(len(st.Output)), PromptTokens: uint32(len(st.Prompt)),
		RestoredRows: uint32(st.Rows()), RestoredBytes: uint64(st.Rows() * st.Geometry.RowBytes()),
	}
	s.prefilled = len(st.Prompt)
	if s.order.protects() && s.order.holder != nil {
		// Without a cause: the new holder's base is on its way.
		s.shield = protection{state: unprotected}
		s.announce()
	}
}

// broadcast wakes everyone who waits for a change. s.mu is held.
func (s *session) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// announce queues the present protection state for the caller. s.mu is held, or s isn't shared yet.
func (s *session) announce() {
	p := &seguev1.Protection{Protected: s.shield.state == protected, FromIndex: uint32(s.released), Cause: s.shield.cause, Detail: s.shield.detail}
	if s.holder != nil {
		p.Holder = s.holder.GetId()
	}
	s.changes = append(s.changes, p)
}

// run runs the attempt on e and returns when the engine has stopped.
func (s *session) run(e engines.Engine, from *snapshot.State, sink engines.Sink) {
	err := e.Run(s.ctx, engines.Job{Request: s.order.request, Capture: s.order.protects(), From: from}, sink)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.err == nil {
		s.err = err
	}
	if s.err == nil && s.finish == nil {
		s.err = fmt.Errorf("engine ended the run after %d tokens without a finish", len(s.tokens))
	}
	s.broadcast()
}

// fail ends the attempt with err, unless it has ended.
func (s *session) fail(err error) {
	s.mu.Lock()
	if s.err == nil && !s.ended {
		s.err = err
		s.broadcast()
	}
	s.mu.Unlock()
	s.cancel(err)
}

// refresh brings the protection state up to date and returns how long it holds. s.mu is held.
func (s *session) refresh(now time.Time) time.Duration {
	if s.outbox == nil || s.closed {
		return 0
	}
	st := s.outbox.Status()
	changed, next := s.shield.update(s.order.rules, st, s.released, now)
	if changed {
		if s.shield.state != pending {
			s.announce()
		}
		s.broadcast()
	}
	return next
}

// guard keeps the protection state up to date until the attempt is closed. It ends the attempt when the
// holder says that the epoch is fenced, or when the session must be protected and isn't.
func (s *session) guard(onChange func(protected bool, cause string)) {
	last := pending
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		s.mu.Lock()
		outer, inner := s.changed, s.outboxChanged()
		next := s.refresh(time.Now())
		fenced := false
		if s.outbox != nil {
			st := s.outbox.Status()
			fenced = st.Rejected && st.Reason == seguev1.Reason_REASON_FENCED
		}
		closed, p := s.closed, s.shield
		s.mu.Unlock()
		if closed {
			return
		}
		if p.state != last && p.state != pending {
			onChange(p.state == protected, p.cause)
			s.log.Info("protection changed", "protected", p.state == protected, "cause", p.cause, "detail", p.detail)
			last = p.state
		}
		switch {
		case fenced:
			s.fail(fmt.Errorf("%w: the holder knows a higher epoch", fence.ErrStaleEpoch))
		case p.state == unprotected && s.order.require:
			s.fail(&UnprotectedError{Cause: p.cause, Detail: p.detail})
		}
		var due <-chan time.Time
		if next > 0 {
			timer.Reset(next)
			due = timer.C
		}
		select {
		case <-inner:
		case <-outer:
		case <-due:
		}
	}
}

// outboxChanged is closed at the next change of the outbox; nil without one. s.mu is held. It is taken
// before the state is read, so that no change in between is missed.
func (s *session) outboxChanged() <-chan struct{} {
	if s.outbox == nil {
		return nil
	}
	return s.outbox.Changed()
}

// attach assigns a holder and starts replicating to it. s.mu is not held.
func (s *session) attach(to *transfer.Sender, holder *seguev1.Peer) {
	s.mu.Lock()
	old, o := s.sender, s.outbox
	if o == nil || s.closed {
		s.mu.Unlock()
		return
	}
	if old == to && !o.Status().Rejected {
		s.mu.Unlock()
		return // it replicates there already, and tries again by itself
	}
	s.sender, s.holder = to, holder
	s.mu.Unlock()
	if old != nil {
		old.Detach(o)
	}
	to.Attach(o)
}

// close gives back what the attempt holds besides its log. Idempotent.
func (s *session) close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	sender, o, m := s.sender, s.outbox, s.memory
	if s.orphan != nil {
		s.orphan.Stop()
	}
	s.broadcast()
	s.mu.Unlock()
	if sender != nil {
		sender.Detach(o)
	}
	if m != nil {
		m.Release()
	}
}

// info describes the session for listings.
func (s *session) info() *seguev1.SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := &seguev1.SessionInfo{
		Session: s.id[:], Epoch: uint64(s.epoch), Role: "primary", Peer: s.holder.GetId(),
		Protected: s.shield.state == protected, PromptTokens: s.prompt.GetTokens(),
		Captured: uint32(len(s.tokens)), State: s.stateName(),
	}
	if s.outbox != nil {
		st := s.outbox.Status()
		i.Sent, i.Committed = uint32(st.Sent), uint32(st.Committed)
		i.Base = s.outbox.Base().Base
	}
	return i
}

func (s *session) stateName() string {
	switch {
	case s.finish != nil:
		return "finished"
	case s.err != nil:
		return "failed"
	case s.prompt == nil:
		return "queued"
	case len(s.tokens) == 0:
		return "prefill"
	}
	return "decode"
}

// UnprotectedError ends a session that must be protected and isn't.
type UnprotectedError struct {
	Cause, Detail string
}

func (e *UnprotectedError) Error() string {
	s := "agent: session is unprotected: " + e.Cause
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}
