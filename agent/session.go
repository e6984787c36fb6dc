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
	// stopped is closed when the engine's run is over and its context is free.
	stopped chan struct{}

	mu      sync.Mutex
	changed chan struct{}
	seam    *seguev1.Seam
	prompt  *seguev1.Prompt
	tokens  []*seguev1.Token
	finish  *seguev1.Finish
	// err is why the attempt ends without handing out all tokens and a finish.
	err error
	// prefilled and lastStep follow the engine.
	prefilled int
	lastStep  time.Time
	// atWindow says that the engine waits for the holder.
	atWindow bool

	// outbox is nil before the base is open and after close; noRoom is why it never opens.
	outbox *transfer.Outbox
	noRoom error
	memory *snapshot.Reservation
	// sender leads to holder. The outbox, once there is one, is attached to it.
	sender  *transfer.Sender
	holder  *seguev1.Peer
	shield  protection
	changes []*seguev1.Protection // in the order they are announced
	// released is the number of tokens handed to a caller so far, here or before the takeover; committed is
	// the holder's, as of the last refresh.
	released, committed int
	// reader is the number of the feed that may send; an earlier one has been replaced. feeds is how many
	// are active.
	reader, feeds int
	orphan        *time.Timer
	tenure        tenure
	// marks are boundaries captured by earlier times. tainted: the run was ended because its device has lost data, and
	// nothing of it leaves any more.
	marks   []mark
	tainted bool
	// parked: the run was ended so that its state can be continued; outbox and memory have left.
	parked bool
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

// newSession makes an attempt, which the caller registers and runs, or ends and closes.
func newSession(parent context.Context, id snapshot.SessionID, e fence.Epoch, o order, d *engines.Description, t tenure, log *slog.Logger) *session {
	s := &session{
		id: id, epoch: e, order: o, desc: d, began: time.Now(),
		stopped: make(chan struct{}), changed: make(chan struct{}),
		digest: engines.RequestDigest(o.request), holder: o.holder, tenure: t,
		log: log.With("session", id.String(), "epoch", uint64(e)),
	}
	s.lastStep = s.began
	s.ctx, s.cancel = context.WithCancelCause(parent)
	return s
}

// resume makes s a continuation from state st, of which delivered tokens have left: the restored tokens will
// be emitted again.
func (s *session) resume(st *snapshot.State, delivered int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := snapshot.IDsDigest(st.Prompt)
	s.prompt = &seguev1.Prompt{Tokens: uint32(len(st.Prompt)), Digest: d[:]}
	s.seam = &seguev1.Seam{
		Boundary: uint32(len(st.Output)), PromptTokens: uint32(len(st.Prompt)),
		RestoredRows: uint32(st.Rows()), RestoredBytes: uint64(st.Rows() * st.Geometry.RowBytes()),
	}
	s.prefilled, s.released = len(st.Prompt), delivered
}

// broadcast wakes everyone who waits for a change. s.mu is held.
func (s *session) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// run runs the attempt on e and returns when the engine has stopped.
func (s *session) run(e engines.Engine, from *snapshot.State, sink engines.Sink) {
	err := e.Run(s.ctx, engines.Job{Request: s.order.request, Capture: s.order.protects(), From: from}, sink)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.finish == nil {
		err = fmt.Errorf("engine ended the run after %d tokens without a finish", len(s.tokens))
	}
	if s.err == nil && s.finish == nil {
		s.err = err
	}
	s.broadcast()
}

// fail ends the attempt with err, unless it has ended.
func (s *session) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(err)
}

// end is fail with s.mu held. A finish that is known but can't leave yet doesn't leave any more.
func (s *session) end(err error) {
	if s.err == nil {
		s.err = err
		s.broadcast()
	}
	s.cancel(err)
}

// close gives back what the attempt holds besides its log. Idempotent.
func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	if s.orphan != nil {
		s.orphan.Stop()
	}
	s.dropLease()
	if s.outbox != nil && s.sender != nil {
		s.sender.Detach(s.outbox)
	}
	s.outbox = nil
	if s.memory != nil {
		s.memory.Release()
	}
	s.broadcast()
}

// info describes the session for listings.
func (s *session) info() *seguev1.SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := &seguev1.SessionInfo{
		Session: s.id[:], Epoch: uint64(s.epoch), Role: "primary", Peer: s.holder.GetId(),
		Protected: s.shield.state == protected, PromptTokens: s.prompt.GetTokens(),
		Captured: uint32(len(s.tokens)), State: s.stateName(),
		LeaseMs: milliseconds(s.leaseLeft()),
	}
	if s.outbox != nil {
		st := s.outbox.Status()
		// A continuation has captured what it was restored with, also before its engine has emitted that again.
		i.Captured = max(i.Captured, uint32(st.Captured))
		i.Sent, i.Committed = uint32(st.Sent), uint32(st.Committed)
		i.Base = s.outbox.Base().Base
	}
	return i
}

// milliseconds rounds up.
func milliseconds(d time.Duration) uint32 {
	return uint32((d + time.Millisecond - 1) / time.Millisecond)
}

func (s *session) stateName() string {
	switch {
	case s.parked:
		return "parked"
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
