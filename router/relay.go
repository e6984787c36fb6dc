// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"google.golang.org/grpc"

	upstream "github.com/seguekv/segue/engines/openai"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/router/fleet"
	"github.com/seguekv/segue/router/journal"
	"github.com/seguekv/segue/router/openai"
)

// relayed is what a session on upstreams has beside the others.
type relayed struct {
	// reason is why the session isn't on an agent.
	reason string
	// preamble are events without content, which wait for content: they commit to nothing. waiting is their size.
	preamble [][]byte
	waiting  int
	// bytes of events with content.
	bytes int
}

// reply is what an upstream answers to one attempt.
type reply struct {
	transcript *upstream.Transcript
	// progress is when content last came, or the attempt began.
	progress time.Time
	content  bool
	silence  Silence
	stream   bool
	// buffers are lent to events on their way from the reader: one in each place of the channel, one with either end.
	buffers [][]byte
	events  []upstream.Event
	next    int
}

// allowed is how long the reply may go on without content.
func (r *reply) allowed() time.Duration {
	bound := r.silence.Decode
	switch {
	case !r.stream:
		bound = r.silence.Whole
	case !r.content:
		bound = r.silence.Prefill
	}
	return time.Until(r.progress.Add(bound))
}

const (
	// messagesAhead is how many messages a reader may be ahead of its session.
	messagesAhead = 8
	// preambleLimit bounds what waits for content, in bytes.
	preambleLimit = 1 << 20
)

// relayPaths are the API's.
var relayPaths = [...]string{openai.Chat: "/v1/chat/completions", openai.Completion: "/v1/completions"}

// choices is how many a request asks for: n for each prompt. 0: that can't be told, and is the upstream's matter.
func choices(kind openai.Kind, body []byte) int {
	n := int64(1)
	if v := gjson.GetBytes(body, "n"); v.Exists() && v.Type != gjson.Null {
		n = v.Int()
	}
	if prompt := gjson.GetBytes(body, "prompt"); kind == openai.Completion && prompt.IsArray() {
		if list := prompt.Array(); len(list) > 0 && list[0].Type != gjson.Number { // else the ids of one
			n = min(n, upstream.MaxChoices) * int64(len(list))
		}
	}
	if n < 1 || n > upstream.MaxChoices {
		return 0
	}
	return int(n)
}

// relay runs the request on the claim's upstream.
func (s *session) relay(ctx context.Context, kind string, claim *fleet.Claim) *attempt {
	target := claim.Node.Handle().(server)
	s.relayed.preamble, s.relayed.waiting, s.relayed.bytes = nil, 0, 0
	envelope := upstream.Envelope{
		ID: s.envelope.ID, Model: s.envelope.Model, Created: s.envelope.Created, Fingerprint: s.envelope.Fingerprint,
		Tenant: s.tenant, Session: s.id.String(), IncludeUsage: s.req.IncludeUsage,
	}
	now := time.Now()
	a := &attempt{
		node: claim.Node, claim: claim, epoch: s.gate.Epoch(), kind: kind, messages: make(chan message, messagesAhead), heard: now, began: now,
		reply: &reply{
			transcript: upstream.NewTranscript(upstream.Rules{Envelope: envelope, Choices: choices(s.req.Kind, s.req.Body), HoldToolCalls: true}),
			progress:   now, silence: s.cfg.UpstreamSilence, stream: s.req.Stream, buffers: make([][]byte, messagesAhead+2), events: make([]upstream.Event, messagesAhead+2),
		},
	}
	s.record(a)
	header := http.Header{headerRequestID: {fmt.Sprintf("%s-%d", s.id, a.epoch)}}
	ctx, a.cancel = context.WithCancel(ctx)
	a.open = func(...grpc.CallOption) {
		s.readers.Go(func() { a.readReply(ctx, target, relayPaths[s.req.Kind], s.req.Body, envelope, header) })
	}
	a.open()
	return a
}

// readReply hands on an upstream's answer until it ends or ctx does.
func (a *attempt) readReply(ctx context.Context, target server, path string, body []byte, e upstream.Envelope, header http.Header) {
	fail := func(err error) {
		end := upstreamEnding(err)
		a.send(ctx, message{end: &end})
	}
	prepared, err := upstream.Prepare(body, e.Model, upstream.Options{Stream: a.reply.stream, ContinuousUsage: target.continuous})
	if err != nil {
		fail(&upstream.EndError{Cause: upstream.CauseInvalidRequest, Detail: err.Error(), Deterministic: true, Status: http.StatusBadRequest})
		return
	}
	// After [DONE] the call outlives the attempt for a moment, so that its connection can be used again.
	call, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	outlive := context.AfterFunc(ctx, stop)
	answer, err := target.Open(call, path, prepared, header)
	if err != nil {
		fail(err)
		return
	}
	defer answer.Close()
	if !a.reply.stream {
		whole, err := answer.Body()
		if err != nil {
			fail(err)
			return
		}
		a.send(ctx, message{whole: whole})
		return
	}
	for {
		ev, err := answer.Next()
		if err != nil {
			a.send(ctx, message{broken: err})
			return
		}
		if ev.Comment {
			continue
		}
		done := ev.Done()
		if done {
			outlive() // who takes in the event ends ctx
		}
		if !a.send(ctx, message{chunk: a.reply.lend(ev)}) || done {
			return
		}
	}
}

// lend copies an event into a buffer that stays untouched until the session has taken it.
func (r *reply) lend(ev upstream.Event) *upstream.Event {
	b := append(r.buffers[r.next][:0], ev.Data...)
	r.buffers[r.next] = b
	e := &r.events[r.next]
	r.next = (r.next + 1) % len(r.buffers)
	*e = upstream.Event{Name: bytes.Clone(ev.Name), Data: b}
	return e
}

// upstreamEnding is what the end of an upstream's answer means here.
func upstreamEnding(err error) ending {
	e, ok := errors.AsType[*upstream.EndError](err)
	if !ok {
		return ending{cause: CauseReset, detail: err.Error(), private: true}
	}
	// Some clients look for the terminator anywhere in an event.
	detail := strings.ReplaceAll(e.Detail, "[DONE]", "its terminator")
	end := ending{cause: Cause(e.Cause), detail: detail, status: e.Status, object: e.Object, retryAfter: e.RetryAfter}
	switch e.Cause {
	case upstream.CauseConnect:
		end.refused, end.private = true, true
	case upstream.CauseNoCapacity, upstream.CauseNotReady:
		end.refused, end.said = true, true
	case upstream.CauseReset, upstream.CauseStall:
		end.private = true
	default:
		end.said = true
	}
	if e.Deterministic {
		end.cause = CauseInvalidRequest
	}
	if e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden {
		// The router's own key, not the client's.
		end.cause, end.detail, end.object = CauseEngineErrorEvent, "the upstream refused the router's key", nil
	}
	return end
}

// takeReply takes in one message of an attempt on an upstream.
func (s *session) takeReply(a *attempt, m message) (ending, outcome) {
	a.heard = time.Now()
	if m.whole != nil {
		return s.takeWhole(a, m.whole)
	}
	if m.broken != nil {
		return upstreamEnding(a.reply.transcript.End(m.broken)), ended
	}
	step, err := a.reply.transcript.Push(*m.chunk)
	switch {
	case err != nil:
		return upstreamEnding(err), ended
	case step.Done:
		return s.finishReply(a, a.reply.transcript.Final())
	}
	if step.Progress {
		s.progressed(a)
	}
	switch {
	case len(step.Emit) == 0:
		return ending{}, goOn
	case !step.Content && !s.gate.ContentWritten():
		if s.relayed.waiting += len(step.Emit); s.relayed.waiting > preambleLimit {
			return *malformed("over %d bytes of events without content", preambleLimit), ended
		}
		s.relayed.preamble = append(s.relayed.preamble, append([]byte(nil), step.Emit...))
		return ending{}, goOn
	}
	if !step.Content {
		return s.afterWrite(s.out.relay(step.Emit))
	}
	end := s.accept(a, step.Tokens, len(step.Emit))
	if end == nil {
		end = s.handRelay(step.Emit)
		a.reply.progress = time.Now() // a client that was slow to take it isn't the upstream's silence
	}
	if end != nil {
		return *end, ended
	}
	s.wrote()
	return ending{}, goOn
}

// progressed notes that content came.
func (s *session) progressed(a *attempt) {
	if !a.reply.content {
		a.reply.content = true
		a.claim.Succeed() // it answers: what others failed of there is over
		s.entry.Phase(journal.PhaseDecode)
		s.prefillTime = max(s.prefillTime, a.heard.Sub(a.began))
		s.mended(a, a.heard)
	}
	a.reply.progress = a.heard
	s.lastToken = a.heard
}

// accept passes so many tokens, whose events have size bytes, through the gate. A token takes a byte at least: an
// upstream's count beyond that isn't believed.
func (s *session) accept(a *attempt, tokens, size int) *ending {
	s.relayed.bytes += size
	tokens = min(tokens, size)
	for range tokens {
		if err := s.gate.Append(a.epoch, s.gate.Len(), 0, s.relayed.bytes); err != nil {
			return malformed("%v", err)
		}
		s.delivery.accept(s.relayed.bytes)
	}
	a.claim.Progress(tokens)
	n := s.gate.Len()
	s.rec.update(func(i *SessionInfo) {
		i.AcceptedTokens, i.TextEnd, i.Phase = n, s.relayed.bytes, phaseDecode
		i.Attempts[a.info].Accepted += tokens
	})
	return nil
}

// handRelay writes an event with content, after those that wait for it.
func (s *session) handRelay(payload []byte) *ending {
	if s.delivery.handed == 0 {
		s.r.metrics.observe(s.r.metrics.firstText, s.arrived, time.Now())
	}
	from := s.delivery.delivered
	to := s.delivery.hand(s.relayed.bytes)
	if end := s.reserve(to); end != nil {
		return end
	}
	// INVARIANT: the mark precedes the write; from here on no retry is possible.
	s.gate.MarkContent()
	for _, p := range append(s.relayed.preamble, payload) {
		if err := s.out.relay(p); err != nil {
			return &ending{cause: CauseClientGone, detail: "write: " + err.Error()}
		}
	}
	s.relayed.preamble = nil
	s.counted(from, to)
	return nil
}

func (s *session) afterWrite(err error) (ending, outcome) {
	if err != nil {
		return ending{cause: CauseClientGone, detail: "write: " + err.Error()}, ended
	}
	s.wrote()
	return ending{}, goOn
}

// finishReply closes the gate and ends a stream that was judged to be good.
func (s *session) finishReply(a *attempt, f upstream.Final) (ending, outcome) {
	size := 0
	for _, c := range f.Chunks {
		size += len(c)
	}
	if end := s.accept(a, f.Tokens, size); end != nil {
		return *end, ended
	}
	usage := openai.Usage{CompletionTokens: s.gate.Len(), TotalTokens: s.gate.Len()}
	if f.UsageKnown {
		usage = openai.Usage(f.Usage)
	}
	finish := a.reply.transcript.FinishReason()
	if end := s.closeGate(a, finish, usage); end != nil {
		return *end, ended
	}
	from := s.delivery.delivered
	if end := s.reserve(s.gate.Len()); end != nil {
		return *end, ended
	}
	s.gate.MarkContent()
	for _, p := range append(s.relayed.preamble, f.Chunks...) {
		if err := s.out.relay(p); err != nil {
			return ending{cause: CauseClientGone, detail: "write: " + err.Error()}, ended
		}
	}
	s.recordEnd(a, finish, usage)
	if err := s.out.relayed(); err != nil {
		return ending{cause: CauseClientGone, detail: "write: " + err.Error()}, ended
	}
	s.delivery.delivered = s.gate.Len()
	s.counted(from, s.gate.Len())
	s.completed(a, finish, usage)
	return ending{}, finished
}

// takeWhole judges and writes an answer in one piece.
func (s *session) takeWhole(a *attempt, body []byte) (ending, outcome) {
	out, u, err := a.reply.transcript.Whole(body)
	if err != nil {
		return upstreamEnding(err), ended
	}
	s.progressed(a)
	usage, finish := openai.Usage(u), a.reply.transcript.FinishReason()
	if end := s.accept(a, max(usage.CompletionTokens, 1), len(body)); end != nil {
		return *end, ended
	}
	if end := s.closeGate(a, finish, usage); end != nil {
		return *end, ended
	}
	n := s.gate.Len()
	if end := s.reserve(n); end != nil {
		return *end, ended
	}
	s.recordEnd(a, finish, usage)
	if err := s.out.relay(out); err != nil {
		return ending{cause: CauseClientGone, detail: "write: " + err.Error()}, ended
	}
	s.delivery.delivered = n
	s.counted(0, n)
	s.completed(a, finish, usage)
	return ending{}, finished
}

// closeGate ends an upstream's run well.
func (s *session) closeGate(a *attempt, finish string, u openai.Usage) *ending {
	n := s.gate.Len()
	if err := s.gate.Finish(a.epoch, n, finish, fence.Usage{PromptTokens: u.PromptTokens, OutputTokens: n}); err != nil {
		return malformed("finish: %v", err)
	}
	s.prompt.tokens = u.PromptTokens
	for _, c := range a.reply.transcript.ToolCalls() {
		s.entry.Tool(c.ID, c.Name, c.Arguments)
	}
	s.mended(a, time.Now())
	a.claim.Release() // the place isn't needed while the client reads the rest
	return nil
}
