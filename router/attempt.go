// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"time"

	"google.golang.org/grpc"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	upstream "github.com/seguekv/segue/engines/openai"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/router/events"
	"github.com/seguekv/segue/router/fleet"
)

// attempt is one agent working on a session. All fields but messages belong to the session's goroutine.
type attempt struct {
	node  *fleet.Node
	claim *fleet.Claim
	lease *fleet.Lease
	epoch fence.Epoch
	kind  string
	// holder was named in the attempt's call, or nil. A run from the prompt has it assigned before, a takeover
	// once there is reason to believe that it began.
	holder *holder
	// messages has a few places, so that the reader isn't woken for every event of a burst; a reader that
	// finds it full waits, and so does the agent.
	messages chan message
	// open makes the call and starts its reader. Called again after the reader's end, it repeats the call.
	open   func(...grpc.CallOption)
	cancel context.CancelFunc
	// answered: at least one event came.
	answered bool
	// broken is the end of the stream that was repeated, or nil.
	broken *ending
	// heard is when the last event came, or when the attempt began.
	heard, began time.Time
	info         int // index in the record's attempts
	entry        int // number in the journal
	// reply is set for attempts on upstreams, lease for those on agents.
	reply *reply
}

// judge is how the attempt ended: a repeated call that came to nothing doesn't undo the first one, which may
// have reached the agent.
func (a *attempt) judge(end ending) ending {
	if a.broken == nil || a.answered {
		return end
	}
	switch end.cause {
	case CauseConnect, CauseStall, CauseReset:
		return *a.broken
	}
	return end
}

// message is an event, or the end of the stream.
type message struct {
	// A token is lent until the session has taken the message.
	event *seguev1.Event
	end   *ending
	// An upstream's: one event, the whole answer, or the error that ended the events.
	chunk  *upstream.Event
	whole  []byte
	broken error
}

// read opens the stream and hands on its events until it ends or ctx does. Only the first end counts; the
// owner stops listening then.
func (a *attempt) read(ctx context.Context, open func(context.Context) (grpc.ClientStream, error)) {
	stream, err := open(ctx)
	opened := err == nil
	answered := false
	// INVARIANT: nothing is decoded into a message that the session hasn't done with: it works on one, and the channel
	// holds messagesAhead at most.
	var lent [messagesAhead + 2]events.Message
	for next := 0; err == nil; next = (next + 1) % len(lent) {
		m := &lent[next]
		if err = stream.RecvMsg(m); err == nil {
			answered = true
			if !a.send(ctx, message{event: m.Event()}) {
				return
			}
		}
	}
	end := classify(err, opened, answered)
	a.send(ctx, message{end: &end})
}

func (a *attempt) send(ctx context.Context, m message) bool {
	select {
	case a.messages <- m:
		return true
	case <-ctx.Done():
		return false
	}
}

// leave ends the reader and gives the context back; the lease goes on.
func (a *attempt) leave() {
	a.cancel()
	a.claim.Release()
}

// stop ends the reader, the lease's renewals and gives the context back. Later calls do nothing.
func (a *attempt) stop() {
	a.cancel()
	if a.lease != nil {
		a.lease.Revoke()
	}
	a.claim.Release()
}

// begin starts an attempt under the gate's epoch.
func (s *session) begin(ctx context.Context, kind string, claim *fleet.Claim, h *holder, call func(context.Context, *seguev1.Lease, ...grpc.CallOption) (grpc.ClientStream, error)) *attempt {
	now := time.Now()
	a := &attempt{
		node: claim.Node, claim: claim, lease: claim.Node.Lend(s.id, s.gate.Epoch()), epoch: s.gate.Epoch(), kind: kind, holder: h,
		messages: make(chan message, messagesAhead), heard: now, began: now,
	}
	ctx, a.cancel = context.WithCancel(ctx)
	s.record(a)
	a.open = func(opts ...grpc.CallOption) {
		s.readers.Go(func() {
			a.read(ctx, func(ctx context.Context) (grpc.ClientStream, error) {
				return call(ctx, a.lease.Quote(), append(opts, grpc.ForceCodecV2(events.NewCodec()))...)
			})
		})
	}
	a.open()
	return a
}

// record notes an attempt that is about to begin.
func (s *session) record(a *attempt) {
	s.attempts++
	holder := ""
	if a.holder != nil {
		holder = a.holder.node().ID()
	}
	s.rec.update(func(i *SessionInfo) {
		a.info = len(i.Attempts)
		i.Attempts = append(i.Attempts, AttemptInfo{
			Node: a.node.ID(), Epoch: uint64(a.epoch), Kind: a.kind, FromIndex: s.gate.Len(), StartedAt: stamp(a.began),
		})
		i.Primary, i.Holder, i.Epoch = a.node.ID(), holder, uint64(a.epoch)
		if i.Phase == phaseQueued || a.kind == kindRetry {
			i.Phase = phasePrefill
		}
	})
	s.begun(a)
}

// generate runs the prompt on the claim's node.
func (s *session) generate(ctx context.Context, kind string, claim *fleet.Claim, h *holder) *attempt {
	client := claim.Node.Client()
	request := &seguev1.GenerateRequest{
		Session: s.id[:], Epoch: uint64(s.gate.Epoch()), Request: s.wire, Protection: protectionModes[s.wish], Holder: h.peer(),
		RequireProtection: s.mustProtect(), Window: uint32(s.cfg.Window), CommitTimeoutMs: uint32(s.cfg.CommitTimeout.Milliseconds()),
	}
	return s.begin(ctx, kind, claim, h, func(ctx context.Context, lease *seguev1.Lease, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		request.Lease = lease
		return client.Generate(ctx, request, opts...)
	})
}

// takeover continues at d on a holder.
func (s *session) takeover(ctx context.Context, from, h *holder) *attempt {
	node := from.node()
	client := node.Client()
	request := &seguev1.TakeoverRequest{
		Session: s.id[:], Epoch: uint64(s.gate.Epoch()), Delivered: uint32(s.gate.Len()), PromptDigest: s.prompt.digest,
		OutputDigest: s.outputDigest(), TextEnd: uint64(s.gate.TextEnd()), Request: s.wire, Protection: protectionModes[s.wish], Holder: h.peer(),
		RequireProtection: s.mustProtect(), Window: uint32(s.cfg.Window), CommitTimeoutMs: uint32(s.cfg.CommitTimeout.Milliseconds()),
	}
	if s.lost != nil {
		request.CleanBoundary = s.lost.clean
	}
	claim := s.r.fleet.Occupy(node)
	claim.Expect(s.outstanding() - s.gate.Len())
	return s.begin(ctx, kindTakeover, claim, h, func(ctx context.Context, lease *seguev1.Lease, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		request.Lease = lease
		return client.Takeover(ctx, request, opts...)
	})
}
