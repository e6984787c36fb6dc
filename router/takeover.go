// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"slices"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// interruption is the end of an attempt that is being mended.
type interruption struct {
	end  ending
	from string
	// d is the number of accepted tokens at the fence.
	d int
	// heard is the last sign of life, fencedAt the decision.
	heard, fencedAt time.Time
	refusals        []string
	seam            *seguev1.Seam
}

// recover fences what is left of an attempt and starts the next one, or says why there is none.
func (s *session) recover(ctx context.Context, a *attempt, end ending) (*attempt, *ending) {
	if a.kind != kindTakeover {
		end.refused = end.neverRan()
	}
	s.fence(a, end)
	switch decide(s.facts()) {
	case actTakeover:
		if next := s.tryTakeover(ctx); next != nil {
			return next, nil
		}
		return nil, &ending{cause: CauseUnprotected, reason: seguev1.Reason_REASON_UNPROTECTED,
			detail: "no holder is left after " + string(s.lost.end.cause)}
	case actRetry:
		return s.retry(ctx)
	}
	last := s.lost.end
	return nil, &last
}

// facts for the decision.
func (s *session) facts() facts {
	return facts{
		end: s.lost.end, content: s.gate.ContentWritten(), holders: s.unasked(), elsewhere: s.r.fleet.Len() - len(s.tried),
		starts: s.starts, maxAttempts: s.cfg.MaxAttempts, takeovers: s.takeovers, maxTakeovers: s.cfg.MaxTakeovers,
	}
}

// fence raises the epoch, so that nothing of the attempt can be published any more, and only then deals
// with the rest of it.
func (s *session) fence(a *attempt, end ending) {
	epoch := s.gate.Epoch()
	if !s.gate.Closed() {
		// The gate is open and this goroutine owns it: the compare-and-set can't fail.
		if err := s.gate.Raise(epoch, epoch+1); err != nil {
			panic("router: raise epoch: " + err.Error())
		}
	}
	now := time.Now()
	a.stop()
	node := a.node.ID()
	s.rec.update(func(i *SessionInfo) {
		i.Attempts[a.info].Cause, i.Attempts[a.info].Detail, i.Attempts[a.info].EndedAt = end.cause, end.detail, stamp(now)
		i.Protected = false
	})
	s.protected, s.unprotectedCause, s.pairing.pending = false, "", nil
	gone := end.cause == CauseClientGone || end.cause == CauseRouterShutdown
	failed := !gone && !end.refused && !end.deterministic()
	if end.refused {
		s.refused(a, end)
	} else {
		s.cancelRun(a.node, epoch)
	}
	if failed {
		if !slices.Contains(s.tried, node) {
			s.tried = append(s.tried, node)
		}
		s.refusers, s.patience = nil, time.Time{}
		a.node.Suspect(true, "a session failed: "+end.text())
		s.r.metrics.observe(s.r.metrics.detection, a.heard, now)
	}
	if a.kind == kindTakeover && s.lost != nil && !gone {
		s.failedTakeover(node, end)
		if s.lost.seam == nil {
			return // the interruption that it was to mend is still open
		}
	}
	s.lost = &interruption{end: end, from: node, d: s.gate.Len(), heard: a.heard, fencedAt: now}
	if failed && s.wish != ProtectionOff && s.unasked() == 0 {
		s.r.metrics.takeovers.WithLabelValues(takeoverNone, string(end.cause)).Inc()
	}
}

// refused undoes what was counted for an attempt that never ran.
func (s *session) refused(a *attempt, end ending) {
	node := a.node.ID()
	if a.holder != nil {
		s.forget(a.holder.hold.Node.ID())
	}
	down := end.cause == CauseConnect || end.cause == CauseNotReady
	if a.kind != kindTakeover {
		s.starts--
		s.refusers = append(s.refusers, node)
		a.node.Suspect(down, "refused a session: "+end.text())
	} else if down {
		a.node.Suspect(true, "refused a takeover: "+end.text())
	}
}

// failedTakeover records a takeover that came to nothing.
func (s *session) failedTakeover(node string, end ending) {
	s.lost.refusals = append(s.lost.refusals, end.public())
	result := takeoverFailed
	if end.refused {
		result = takeoverRefused
	}
	s.r.metrics.takeovers.WithLabelValues(result, string(end.cause)).Inc()
	s.log.Info("takeover "+result, "from", s.lost.from, "to", node, "epoch", uint64(s.gate.Epoch())-1, "d", s.lost.d,
		"cause", s.lost.end.cause, "refusal", end.cause, "detail", end.detail)
}

// tryTakeover asks the best holder that is left. Nil: the session must stay protected and no node is left
// to hold it.
func (s *session) tryTakeover(ctx context.Context) *attempt {
	from := s.nextHolder()
	next := s.chooseHolder(from.hold.Node, s.lost.from)
	if next == nil && s.mustProtect() {
		return nil
	}
	from.asked = true
	s.takeovers++
	s.assign(next)
	return s.takeover(ctx, from, next)
}

// retry starts over from the prompt.
func (s *session) retry(ctx context.Context) (*attempt, *ending) {
	// The decision looked at the same mark: nothing was written.
	if err := s.gate.Restart(s.gate.Epoch() + 1); err != nil {
		panic("router: restart: " + err.Error())
	}
	kind := kindRetry
	if s.starts == 0 {
		kind = kindGenerate // nothing has run yet
	} else {
		s.r.metrics.retries.WithLabelValues(string(s.lost.end.cause)).Inc()
		s.log.Warn("retry", "from", s.lost.from, "epoch", uint64(s.gate.Epoch()), "cause", s.lost.end.cause, "discarded", s.lost.d, "refusals", s.lost.refusals)
	}
	for _, h := range s.pairing.holders {
		h.asked = true // what they hold belongs to the run that is given up
	}
	s.delivery = delivery{}
	s.prompt.tokens, s.prompt.digest = 0, nil
	s.out.reset()
	s.rec.update(func(i *SessionInfo) {
		i.AcceptedTokens, i.TextEnd, i.PromptTokens, i.Watermarks = 0, 0, 0, Watermarks{}
	})
	return s.place(ctx, kind)
}

// mended closes the interruption once the new attempt has yielded something, and tells its story.
func (s *session) mended(a *attempt, now time.Time) {
	l := s.lost
	if l == nil {
		return
	}
	s.lost = nil
	if a.kind != kindTakeover || l.seam == nil {
		return
	}
	s.r.metrics.takeovers.WithLabelValues(takeoverOK, string(l.end.cause)).Inc()
	s.r.metrics.observe(s.r.metrics.pause, s.lastToken, now)
	s.rec.update(func(i *SessionInfo) {
		if n := len(i.Seams); n > 0 {
			i.Seams[n-1].ResumedAt = stamp(now)
		}
	})
	s.log.Info("takeover", "from", l.from, "to", a.node.ID(), "epoch", uint64(a.epoch), "cause", l.end.cause, "detail", l.end.detail,
		"d", l.d, "c", l.seam.GetBoundary(), "restored_rows", l.seam.GetRestoredRows(), "restored_bytes", l.seam.GetRestoredBytes(),
		"detect", l.fencedAt.Sub(l.heard), "resume", now.Sub(l.fencedAt), "refusals", l.refusals)
}
