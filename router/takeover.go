// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router/policy"
)

// interruption is the end of an attempt that is being mended.
type interruption struct {
	end  ending
	from string
	// d is the number of accepted tokens at the fence.
	d int
	// heard is the last sign of life, fencedAt the decision.
	heard, fencedAt time.Time
	// freedAt is when another attempt could begin: at the fence, or after a wait for the old run.
	freedAt time.Time
	// repeated: the failure before this one had the same cause.
	repeated bool
	// clean is set if what was captured above that boundary may be spoilt.
	clean *uint32
	// refusals are the answers of the holders that were asked, without repetitions.
	refusals []string
	seam     *seguev1.Seam
}

const (
	// askAgain is how long a holder that can't take over at the moment is left alone, askSoonest the same when
	// the fleet has found it ready since. For one that is ready and full it grows from askSoonest to askAgain.
	askAgain   = 100 * time.Millisecond
	askSoonest = 10 * time.Millisecond
)

// recover fences what is left of an attempt and starts the next one, or says why there is none.
func (s *session) recover(ctx context.Context, a *attempt, end ending) (*attempt, *ending) {
	if a.kind != kindTakeover {
		end.refused = end.neverRan()
	}
	s.fence(a, end)
	for {
		facts := s.facts()
		action, why := policy.Decide(facts)
		switch action {
		case policy.Takeover:
			from := s.nextHolder()
			if failure := s.awaitEnds(ctx, from.node()); failure != nil {
				return nil, failure
			}
			if has, failure := s.awaitPlanned(ctx, from); failure != nil {
				return nil, failure
			} else if !has {
				s.forget(from.node())
				continue
			}
			if next := s.tryTakeover(ctx, from); next != nil {
				return next, nil
			}
			return nil, &ending{cause: CauseUnprotected, reason: seguev1.Reason_REASON_UNPROTECTED,
				detail: "no holder is left after " + string(s.lost.end.cause)}
		case policy.Wait:
			if failure := s.awaitHolder(ctx); failure != nil {
				return nil, failure
			}
		case policy.Retry:
			if failure := s.awaitEnds(ctx, nil); failure != nil {
				return nil, failure
			}
			if facts.Ran && !s.r.budget.take(facts.PrefillTokens) {
				continue // another session was faster
			}
			return s.retry(ctx)
		default:
			last := s.lost.end
			last.noRetry = why
			s.r.metrics.unretried.WithLabelValues(string(why)).Inc()
			return nil, &last
		}
	}
}

// facts for the decision.
func (s *session) facts() policy.Facts {
	retry := &s.cfg.Retry
	f := policy.Facts{
		Class: s.lost.end.class(), Ran: !s.lost.end.refused, Content: s.gate.ContentWritten(), Accepted: s.gate.Len(),
		Holders: s.unasked(), Waiting: s.waiting(time.Now()), Takeovers: s.takeovers, MaxTakeovers: s.cfg.MaxTakeovers,
		Unconfirmed: s.unconfirmed, Elsewhere: s.elsewhere(), Starts: s.starts, MaxAttempts: s.cfg.MaxAttempts, Repeated: s.lost.repeated,
		PrefillTokens: s.prefillTokens(), MaxPrefillTokens: retry.MaxPrefillTokens,
		Elapsed: time.Since(s.arrived), PrefillTime: s.prefillTime, MaxTime: retry.MaxTime,
	}
	if s.sdkRetry > 0 {
		f.MaxAttempts = min(f.MaxAttempts, retry.SDKAttempts)
	}
	f.Affordable = s.r.budget.affords(f.PrefillTokens)
	return f
}

// fence raises the epoch, so that nothing of the attempt can be published any more, and only then deals
// with the rest of it.
func (s *session) fence(a *attempt, end ending) {
	s.drainPaired(a)
	epoch := s.gate.Epoch()
	if !s.gate.Closed() {
		// The gate is open and this goroutine owns it: the compare-and-set can't fail.
		if err := s.gate.Raise(epoch, epoch+1); err != nil {
			panic("router: raise epoch: " + err.Error())
		}
	}
	now := time.Now()
	node := a.node.ID()
	s.rec.update(func(i *SessionInfo) {
		i.Attempts[a.info].Cause, i.Attempts[a.info].Detail, i.Attempts[a.info].EndedAt = end.cause, end.detail, stamp(now)
		i.Protected = false
	})
	s.entry.EndAttempt(a.entry, string(end.cause), end.detail)
	again := a.kind == kindTakeover && !a.answered && s.unansweredTakeover(a, end, now)
	s.protected, s.unprotectedCause, s.pairing.pending, s.pairing.shunned = false, "", nil, ""
	gone := end.cause == CauseClientGone || end.cause == CauseRouterShutdown || end.cause == CauseUnjournalled // nothing of the replica's
	failed := !gone && !end.refused && !end.deterministic() && !end.planned
	// What is known against the node is said before its context is given back, and goes to whoever waits.
	if end.refused {
		s.refused(a, end)
	}
	if failed {
		if !slices.Contains(s.tried, node) {
			s.tried = append(s.tried, node)
		}
		s.refusers, s.patience = nil, time.Time{}
		s.blame(a, end)
		s.r.metrics.observe(s.r.metrics.detection, a.heard, now)
	}
	if end.planned {
		a.leave()
		s.park(a)
	} else {
		a.stop()
	}
	var acknowledged <-chan struct{}
	if !end.refused && !again && !end.planned && a.reply == nil {
		acknowledged = s.cancelRun(a.node, epoch)
	}
	if !gone {
		s.doubt(a, end, acknowledged)
	}
	if a.kind == kindTakeover && s.lost != nil && !gone {
		s.failedTakeover(node, end)
		if s.lost.seam == nil {
			return // the interruption that it was to mend is still open
		}
	}
	clean := end.clean
	if clean == nil && a.node.Health().Tainted {
		clean = new(uint32) // its own end, which says how far it counts, is lost
	}
	if clean == nil && s.lost != nil {
		clean = s.lost.clean // another holder may still have what this one has cut off
	}
	s.lost = &interruption{end: end, clean: clean, from: node, d: s.gate.Len(), heard: a.heard, fencedAt: now, freedAt: now, repeated: failed && end.cause == s.failedBy}
	if failed {
		s.failedBy = end.cause
	}
	if !end.planned {
		s.r.metrics.failures.WithLabelValues(end.class().String()).Inc()
	}
	for _, h := range s.pairing.holders {
		if h.waits() {
			h.asked, h.pause = false, 0
		}
	}
	if failed && s.wish != ProtectionOff && s.unasked() == 0 {
		s.r.metrics.takeovers.WithLabelValues(takeoverNone, string(end.cause)).Inc()
	}
}

// blame tells the fleet of a failure.
func (s *session) blame(a *attempt, end ending) {
	a.claim.Fail("a session failed: " + end.text())
	// A server that ended one answer badly may be well; one that broke off is asked.
	if a.reply == nil || end.class() == policy.Uncertain {
		a.node.Suspect(true, "a session failed: "+end.text())
	}
}

// refused undoes what was counted for an attempt that never ran.
func (s *session) refused(a *attempt, end ending) {
	node := a.node.ID()
	down := end.cause == CauseConnect || end.cause == CauseNotReady
	if a.kind != kindTakeover {
		if a.holder != nil {
			s.forget(a.holder.node())
		}
		s.starts--
		if a.reply != nil {
			s.tried = append(s.tried, node) // it was asked; what it says of itself can't be known to pass
		} else {
			s.refusers = append(s.refusers, node)
		}
		a.node.Suspect(down, "refused a session: "+end.text())
		if down {
			a.claim.Fail(end.text())
		}
	} else if down {
		a.node.Suspect(true, "refused a takeover: "+end.text())
	}
}

// failedTakeover records a takeover that came to nothing.
func (s *session) failedTakeover(node string, end ending) {
	level := slog.LevelDebug // a repetition
	if said := end.public(); !slices.Contains(s.lost.refusals, said) {
		s.lost.refusals = append(s.lost.refusals, said)
		level = slog.LevelInfo
	}
	result := takeoverFailed
	if end.refused {
		result = takeoverRefused
	}
	s.r.metrics.takeovers.WithLabelValues(result, string(end.cause)).Inc()
	s.log.Log(context.Background(), level, "takeover "+result, "from", s.lost.from, "to", node, "epoch", uint64(s.gate.Epoch())-1, "d", s.lost.d,
		"cause", s.lost.end.cause, "refusal", end.cause, "detail", end.detail)
}

// tryTakeover asks a holder. Nil: the session must stay protected and no node is left to hold it.
func (s *session) tryTakeover(ctx context.Context, from *holder) *attempt {
	next := s.chooseNext(from)
	if next == nil && s.mustProtect() {
		return nil
	}
	from.asked, from.refusedAt = true, time.Time{}
	if next != nil {
		s.told(next.node())
	}
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
	s.giveUp()
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
	s.moved(a, l.seam, now.Sub(s.lastToken))
	s.rec.update(func(i *SessionInfo) {
		if n := len(i.Seams); n > 0 {
			i.Seams[n-1].ResumedAt = stamp(now)
		}
	})
	s.log.Info("takeover", "from", l.from, "to", a.node.ID(), "epoch", uint64(a.epoch), "cause", l.end.cause, "detail", l.end.detail,
		"d", l.d, "c", l.seam.GetBoundary(), "restored_rows", l.seam.GetRestoredRows(), "restored_bytes", l.seam.GetRestoredBytes(),
		"detect", l.fencedAt.Sub(l.heard), "resume", now.Sub(l.fencedAt), "refusals", l.refusals)
}

// unansweredTakeover settles what a takeover whose agent said nothing but no leaves behind: whether the next
// holder counts as assigned, and whether this one may be asked again, which it reports. To cancel its run, if there
// is one, would also drop what it holds.
func (s *session) unansweredTakeover(a *attempt, end ending, now time.Time) (again bool) {
	if h := s.holderAt(a.node); h != nil && end.passes() {
		pause := askSoonest
		if end.cause == CauseNoCapacity {
			pause = min(max(2*h.pause, askSoonest), askAgain)
		}
		h.refusedAt, h.pause, again = now, pause, true
	}
	switch {
	case a.holder == nil:
	case !end.refused && !s.assigned(a.holder.node()):
		s.assign(a.holder)
	default:
		a.holder.hold.Drop()
	}
	return again
}

// repeat makes a takeover's call once more, under the same epoch, when its stream broke before the first event:
// the agent may have begun, and then only this call finds it. It returns how long the next event may take, at
// least bound. While nobody else can be asked and a retry would lose something, the call waits for the connection.
func (s *session) repeat(a *attempt, end ending, bound time.Duration) (time.Duration, bool) {
	if a.kind != kindTakeover || a.answered || a.broken != nil || end.cause != CauseReset {
		return 0, false
	}
	a.broken = &end
	f := s.facts()
	others := f.Holders + f.Waiting
	f.Waiting++ // this one
	if action, _ := policy.Decide(f); others > 0 || action != policy.Wait {
		a.open()
		return bound, true
	}
	a.open(grpc.WaitForReady(true))
	return max(bound, time.Until(s.lost.freedAt.Add(s.cfg.TakeoverWait))), true
}

// waiting counts holders whose refusal may pass in time.
func (s *session) waiting(now time.Time) int {
	if s.lost == nil || !now.Before(s.lost.freedAt.Add(s.cfg.TakeoverWait)) {
		return 0
	}
	n := 0
	for _, h := range s.pairing.holders {
		if h.waits() {
			n++
		}
	}
	return n
}

// awaitHolder returns when a holder should be asked again, or none any more, or with the session's end.
func (s *session) awaitHolder(ctx context.Context) *ending {
	for {
		readied := s.r.fleet.Readied()
		now := time.Now()
		wake := s.lost.freedAt.Add(s.cfg.TakeoverWait)
		if !now.Before(wake) {
			return nil
		}
		for _, h := range s.pairing.holders {
			if !h.waits() {
				continue
			}
			due := h.refusedAt.Add(askAgain)
			if h.node().Ready() {
				due = h.refusedAt.Add(h.pause)
			}
			if !now.Before(due) {
				h.asked = false
				return nil
			}
			if due.Before(wake) {
				wake = due
			}
		}
		if failure := s.pause(ctx, wake, readied); failure != nil {
			return failure
		}
	}
}

// pause waits until the time, or for the channel, and keeps the client's connection alive meanwhile.
func (s *session) pause(ctx context.Context, until time.Time, early <-chan struct{}) *ending {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-early:
	case <-s.idleC():
		if err := s.keepAlive(); err != nil {
			return &ending{cause: CauseClientGone}
		}
	case <-ctx.Done():
		end := contextEnding(ctx)
		return &end
	}
	return nil
}
