// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"context"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// progressEvery is how often a caller hears of a run that produces nothing for it.
const progressEvery = 200 * time.Millisecond

// cursor is what a feed has sent.
type cursor struct {
	seam, prompt bool
	changes      int
	next         int // token
	finish       bool
}

// collect appends the events that are due after c, and reports whether the attempt is over for the caller and why. s.mu
// is held.
//
// INVARIANT: under sync, token i is collected only if the session is unprotected or committed >= i+1, and
// the state it is collected under is announced before it.
func (s *session) collect(c *cursor, out []*seguev1.Event) (_ []*seguev1.Event, over bool, err error) {
	s.refresh(time.Now())
	if s.seam != nil && !c.seam {
		out = append(out, &seguev1.Event{Event: &seguev1.Event_Seam{Seam: s.seam}})
	}
	c.seam = s.seam != nil
	if s.prompt != nil && !c.prompt {
		out = append(out, &seguev1.Event{Event: &seguev1.Event_Prompt{Prompt: s.prompt}})
		c.prompt = true
	}
	for ; c.changes < len(s.changes); c.changes++ {
		out = append(out, &seguev1.Event{Event: &seguev1.Event_Protection{Protection: s.changes[c.changes]}})
	}
	for n := s.releasable(); c.next < n; c.next++ {
		out = append(out, &seguev1.Event{Event: &seguev1.Event_Token{Token: s.tokens[c.next]}})
	}
	s.released = max(s.released, c.next)
	if s.finish != nil && c.next == len(s.tokens) {
		out = append(out, &seguev1.Event{Event: &seguev1.Event_Finish{Finish: s.finish}})
		return out, true, nil
	}
	if s.err != nil {
		return out, true, s.err
	}
	return out, false, nil
}

// releasable is the number of tokens that may leave. s.mu is held.
func (s *session) releasable() int {
	if s.outbox == nil || s.order.mode != seguev1.ProtectionMode_PROTECTION_MODE_SYNC || s.shield.state == unprotected {
		if s.order.mode == seguev1.ProtectionMode_PROTECTION_MODE_SYNC && s.shield.state == pending && s.order.holder != nil {
			return 0
		}
		return len(s.tokens)
	}
	return min(len(s.tokens), s.outbox.Status().Committed)
}

// feed sends events from index from on until the attempt ends, the caller goes, or another feed replaces
// this one. alive says whether the engine's process works on something.
func (s *session) feed(ctx context.Context, from int, grace time.Duration, alive func() bool, send func(*seguev1.Event) error) error {
	s.mu.Lock()
	s.reader++
	s.feeds++
	me := s.reader
	if s.orphan != nil {
		s.orphan.Stop()
		s.orphan = nil
	}
	s.broadcast()
	s.mu.Unlock()
	err := s.pump(ctx, me, from, alive, send)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feeds--
	s.broadcast()
	if s.reader == me && !s.closed && s.err == nil && err != nil {
		s.orphan = time.AfterFunc(grace, func() { s.fail(errOrphan) })
	}
	return err
}

func (s *session) pump(ctx context.Context, me, from int, alive func() bool, send func(*seguev1.Event) error) error {
	c := cursor{next: from}
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	var buf []*seguev1.Event
	for {
		s.mu.Lock()
		if s.reader != me {
			s.mu.Unlock()
			return errReplaced
		}
		outer, inner := s.changed, s.outboxChanged()
		events, over, err := s.collect(&c, buf[:0])
		s.mu.Unlock()
		for _, e := range events {
			if err := send(e); err != nil {
				return err
			}
		}
		buf = events
		if over {
			return err
		}
		if len(events) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-inner:
		case <-outer:
		case now := <-tick.C:
			if p := s.progress(now, alive); p != nil {
				if err := send(&seguev1.Event{Event: &seguev1.Event_Progress{Progress: p}}); err != nil {
					return err
				}
			}
		}
	}
}

// progress describes a run that is alive; nil if nothing proves that it is.
func (s *session) progress(now time.Time, alive func() bool) *seguev1.Progress {
	working := alive()
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &seguev1.Progress{PrefilledTokens: uint32(s.prefilled), Captured: uint32(len(s.tokens))}
	if s.outbox != nil {
		st := s.outbox.Status()
		p.Captured, p.Sent, p.Committed = uint32(st.Captured), uint32(st.Sent), uint32(st.Committed)
	}
	switch {
	case s.atWindow:
		p.WaitsFor = "window"
	case s.releasable() < len(s.tokens):
		p.WaitsFor = "commit"
	case !working && now.Sub(s.lastStep) > heardFresh:
		return nil
	}
	return p
}

// engineAlive reports whether e's process has spoken lately and is inside a compute call that isn't too long.
func (a *Agent) engineAlive(ctx context.Context, e LiveEngine) bool {
	if time.Since(e.LastHeard()) > heardFresh {
		return false
	}
	f, err := e.Observe(ctx)
	return err == nil && f.BusyMillis > 0 && time.Duration(f.BusyMillis)*time.Millisecond < a.cfg.StepLimit
}
