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
}

// collect appends the events that are due after c, and reports whether the attempt is over for the caller and
// why. s.mu is held.
//
// INVARIANT: under sync, token i is first collected only if the session is unprotected or committed >= i+1, and
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
	n := s.releasable()
	for ; c.next < n; c.next++ {
		out = append(out, &seguev1.Event{Event: &seguev1.Event_Token{Token: s.tokens[c.next]}})
	}
	s.released = max(s.released, n) // also what a caller has skipped
	if s.finish != nil && n == len(s.tokens) && c.next >= n {
		out = append(out, &seguev1.Event{Event: &seguev1.Event_Finish{Finish: s.finish}})
		return out, true, nil
	}
	if s.err != nil {
		return out, true, s.err
	}
	return out, false, nil
}

// releasable is the number of tokens that may leave, as of the last refresh. Under sync nothing new leaves once
// the attempt was ended from outside. s.mu is held.
func (s *session) releasable() int {
	n := len(s.tokens)
	switch {
	case s.tainted:
		return min(n, s.released)
	case s.order.mode != seguev1.ProtectionMode_PROTECTION_MODE_SYNC:
		return n
	case s.ctx.Err() != nil:
		return min(n, s.released)
	case s.shield.state == unprotected:
		return n
	}
	return min(n, s.committed)
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
		s.orphan = time.AfterFunc(grace, func() { s.abandon(me) })
	}
	return err
}

// abandon ends the attempt unless a feed came after feed last.
func (s *session) abandon(last int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reader == last {
		s.end(errOrphan)
	}
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
			// INVARIANT: between a stop of this process and whatever leaves next the clock is read, and nothing leaves of a
			// run that was parked since it was collected.
			if !s.mayGoOn() {
				return s.whyOver()
			}
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
		case <-tick.C:
			if p := s.progress(alive); p != nil && s.mayGoOn() {
				if err := send(&seguev1.Event{Event: &seguev1.Event_Progress{Progress: p}}); err != nil {
					return err
				}
			}
		}
	}
}

// progress describes a run that is alive; nil if nothing proves that it is.
func (s *session) progress(alive func() bool) *seguev1.Progress {
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
	case !working && time.Since(s.lastStep) > heardFresh:
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
