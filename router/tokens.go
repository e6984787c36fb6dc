// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/router/journal"
	"github.com/seguekv/segue/router/openai"
	"github.com/seguekv/segue/snapshot"
)

// delivery counts the tokens whose whole text was handed to the connection.
type delivery struct {
	// rawEnds of the accepted tokens: bytes of text produced up to each.
	rawEnds []int
	// handed is in bytes, delivered in tokens.
	handed, delivered int
}

func (d *delivery) accept(rawEnd int) { d.rawEnds = append(d.rawEnds, rawEnd) }

// hand records that text up to textEnd is handed over and returns how many tokens are delivered.
func (d *delivery) hand(textEnd int) int {
	d.handed = textEnd
	for d.delivered < len(d.rawEnds) && d.rawEnds[d.delivered] <= d.handed {
		d.delivered++
	}
	return d.delivered
}

// take takes in one message of the current attempt.
func (s *session) take(a *attempt, m message) (ending, outcome) {
	if m.end != nil {
		return *m.end, ended
	}
	if a.reply != nil {
		return s.takeReply(a, m)
	}
	a.heard = time.Now()
	if !a.answered {
		a.answered = true
		a.lease.Answered()
		if a.kind == kindTakeover {
			s.forget(a.node) // it is the primary, no longer a holder
			s.assign(a.holder)
		}
	}
	var end *ending
	switch e := m.event.GetEvent().(type) {
	case *seguev1.Event_Prompt:
		s.onPrompt(e.Prompt)
	case *seguev1.Event_Seam:
		end = s.onSeam(a, e.Seam)
	case *seguev1.Event_Protection:
		s.onProtection(e.Protection)
	case *seguev1.Event_Progress:
		s.onProgress(e.Progress)
	case *seguev1.Event_Token:
		end = s.onToken(a, e.Token)
	case *seguev1.Event_Finish:
		if end = s.onFinish(a, e.Finish); end == nil {
			return ending{}, finished
		}
	}
	if end != nil {
		return *end, ended
	}
	return ending{}, goOn
}

func malformed(format string, args ...any) *ending {
	return &ending{cause: CauseMalformedFrame, detail: fmt.Sprintf(format, args...)}
}

func (s *session) onPrompt(p *seguev1.Prompt) {
	s.prompt.tokens, s.prompt.digest = int(p.GetTokens()), p.GetDigest()
	s.rec.update(func(i *SessionInfo) { i.PromptTokens = int(p.GetTokens()) })
}

func (s *session) onSeam(a *attempt, e *seguev1.Seam) *ending {
	d := s.gate.Len()
	if a.kind != kindTakeover || s.lost == nil {
		return malformed("seam in a run from the prompt")
	}
	if int(e.GetBoundary()) < max(d, 1) {
		return malformed("boundary %d doesn't cover %d accepted tokens", e.GetBoundary(), d)
	}
	if clean := s.lost.clean; clean != nil && e.GetBoundary() > *clean {
		return malformed("boundary %d is above %d, the last that is surely sound", e.GetBoundary(), *clean)
	}
	if s.prompt.tokens == 0 {
		s.prompt.tokens = int(e.GetPromptTokens())
	}
	s.lost.seam = e
	s.takeovers++
	s.rec.update(func(i *SessionInfo) {
		i.PromptTokens, i.Watermarks = s.prompt.tokens, Watermarks{Captured: int(e.GetBoundary())}
		i.Seams = append(i.Seams, SeamInfo{
			Index: int(e.GetBoundary()), Delivered: d, From: s.lost.from, To: a.node.ID(), Epoch: uint64(a.epoch), Cause: s.lost.end.cause,
			FencedAt: stamp(s.lost.fencedAt), RestoredRows: int(e.GetRestoredRows()), RestoredBytes: int64(e.GetRestoredBytes()),
		})
	})
	return nil
}

// seamMissing reports a takeover that has yet to say where it resumes.
func (s *session) seamMissing(a *attempt) bool {
	return a.kind == kindTakeover && s.lost != nil && s.lost.seam == nil
}

func (s *session) onProgress(p *seguev1.Progress) {
	s.rec.update(func(i *SessionInfo) {
		i.Watermarks = Watermarks{Captured: int(p.GetCaptured()), Sent: int(p.GetSent()), Committed: int(p.GetCommitted())}
	})
}

// onToken passes a token through the gate and what it releases to the client.
func (s *session) onToken(a *attempt, t *seguev1.Token) *ending {
	if s.seamMissing(a) {
		return malformed("token %d of a takeover without a seam", t.GetIndex())
	}
	before := s.gate.Len()
	fresh := int(t.GetIndex()) == before
	if fresh {
		if want := uint64(s.gate.TextEnd() + len(t.GetText())); t.GetTextEnd() != want {
			return malformed("token %d ends at text byte %d, want %d", t.GetIndex(), t.GetTextEnd(), want)
		}
		if !utf8.Valid(t.GetText()) {
			return malformed("text of token %d is not valid UTF-8", t.GetIndex())
		}
	}
	switch err := s.gate.Append(a.epoch, int(t.GetIndex()), t.GetId(), int(t.GetTextEnd())); {
	case errors.Is(err, fence.ErrStaleEpoch):
		return nil
	case err != nil:
		return malformed("%v", err)
	case !fresh:
		return nil // emitted again
	}
	now := time.Now()
	if before == 0 {
		a.claim.Succeed() // it answers: what others failed of there is over
		s.entry.Phase(journal.PhaseDecode)
		s.prefillTime = max(s.prefillTime, now.Sub(a.began))
	}
	a.claim.Progress(1)
	s.delivery.accept(int(t.GetRawEnd()))
	s.rec.update(func(i *SessionInfo) {
		i.AcceptedTokens, i.TextEnd, i.Phase = before+1, int(t.GetTextEnd()), phaseDecode
		i.Attempts[a.info].Accepted++
	})
	s.mended(a, now)
	s.lastToken = now
	if len(t.GetText()) == 0 {
		return nil
	}
	return s.hand(t.GetText(), int(t.GetTextEnd()))
}

// hand gives text to the output. For a stream that is the write to the client.
func (s *session) hand(text []byte, textEnd int) *ending {
	if s.delivery.handed == 0 {
		s.r.metrics.observe(s.r.metrics.firstText, s.arrived, time.Now())
	}
	from := s.delivery.delivered
	to := s.delivery.hand(textEnd)
	if s.out.streams() {
		if end := s.reserve(to); end != nil {
			return end
		}
		// INVARIANT: the mark precedes the write; from here on no retry is possible.
		s.gate.MarkContent()
	}
	if err := s.out.content(text, openai.Tokens{IDs: s.gate.Tokens()[from:to], First: from}); err != nil {
		return &ending{cause: CauseClientGone, detail: "write: " + err.Error()}
	}
	if s.out.streams() {
		s.wrote()
		s.counted(from, to)
	}
	return nil
}

// counted records delivered tokens.
func (s *session) counted(from, to int) {
	s.r.metrics.delivered.Add(float64(to - from))
	s.entry.Delivered(to)
	s.rec.update(func(i *SessionInfo) { i.DeliveredTokens, i.FirstDeltaSent = to, s.gate.ContentWritten() })
}

// onFinish closes the gate and ends the answer.
func (s *session) onFinish(a *attempt, f *seguev1.Finish) *ending {
	if r := f.GetReason(); r != "stop" && r != "length" {
		return malformed("finish reason %q", r)
	}
	if s.seamMissing(a) {
		return malformed("finish of a takeover without a seam")
	}
	n := s.gate.Len()
	usage := s.usage()
	if p := int(f.GetPromptTokens()); p > 0 {
		usage = openai.Usage{PromptTokens: p, CompletionTokens: n, TotalTokens: p + n}
	}
	err := s.gate.Finish(a.epoch, int(f.GetTokens()), f.GetReason(), fence.Usage{PromptTokens: usage.PromptTokens, OutputTokens: n})
	if err != nil {
		return malformed("finish: %v", err)
	}
	s.mended(a, time.Now())
	a.lease.Revoke()
	a.claim.Release() // the context isn't needed while the client reads the rest
	from := s.delivery.delivered
	sent := from
	if !s.out.streams() {
		sent = 0
	}
	if end := s.reserve(n); end != nil {
		return end
	}
	s.recordEnd(a, f.GetReason(), usage)
	if err := s.out.finish(f.GetReason(), usage, openai.Tokens{IDs: s.gate.Tokens()[from:], First: from}); err != nil {
		return &ending{cause: CauseClientGone, detail: "write: " + err.Error()}
	}
	s.delivery.delivered = n
	s.counted(sent, n)
	s.completed(a, f.GetReason(), usage)
	return nil
}

func (s *session) usage() openai.Usage {
	n := s.gate.Len()
	return openai.Usage{PromptTokens: s.prompt.tokens, CompletionTokens: n, TotalTokens: s.prompt.tokens + n}
}

func (s *session) outputDigest() []byte {
	d := snapshot.IDsDigest(s.gate.Tokens())
	return d[:]
}
