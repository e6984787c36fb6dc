// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"fmt"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

// open gives the session its outbox, and the outbox to the holder. o takes m with it.
func (s *session) open(o *transfer.Outbox, m *snapshot.Reservation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Attached before anyone can see it: an unattached one means "no holder".
	if s.sender != nil {
		s.sender.Attach(o)
	}
	s.outbox, s.memory = o, m
	s.broadcast()
}

// attach assigns a holder and starts replicating to it, at once or when the base opens.
func (s *session) attach(to *transfer.Sender, holder *seguev1.Peer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed || s.err != nil:
		return snapshot.ErrUnknownSession
	case !s.order.protects():
		return &engines.RequestError{Field: "holder", Reason: "is useless for a session without protection"}
	case s.noRoom != nil:
		return s.noRoom
	case s.sender == to && (s.outbox == nil || !s.outbox.Status().Rejected):
		return nil // it replicates there already, and tries again by itself
	}
	old := s.sender
	s.sender, s.holder = to, holder
	if s.outbox != nil {
		if old != nil {
			old.Detach(s.outbox)
		}
		to.Attach(s.outbox)
	}
	if s.shield.state != pending || s.released > 0 {
		s.expect()
	}
	s.broadcast()
	return nil
}

// protect sets out the protection that the order asks for: to leads to its holder, err is why it doesn't.
func (s *session) protect(to *transfer.Sender, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.order.protects():
	case s.holder == nil:
		s.unprotect(causeNoHolder, "")
	case err != nil:
		s.unprotect(causeNoHolder, err.Error())
	default:
		s.sender = to
		if s.seam != nil {
			s.expect()
		}
	}
}

// expect makes the protection that of a session whose holder's base is on its way: tokens don't wait for it,
// unless the session must be protected. s.mu is held.
func (s *session) expect() {
	if s.order.require {
		s.shield = protection{}
		return
	}
	s.shield = protection{state: unprotected}
	s.announce()
}

// exhausted records that there is no memory for the session's base.
func (s *session) exhausted(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noRoom = err
	s.unprotect(causeStoreFull, err.Error())
}

// unprotect records that the session can't be protected. s.mu is held.
func (s *session) unprotect(cause, detail string) {
	s.shield = protection{state: unprotected, cause: cause, detail: detail}
	s.announce()
	s.broadcast()
}

// announce queues the present protection state for the caller. A session that must be protected and isn't ends
// with it. s.mu is held.
func (s *session) announce() {
	p := &seguev1.Protection{Protected: s.shield.state == protected, FromIndex: uint32(s.released), Cause: s.shield.cause, Detail: s.shield.detail}
	if s.holder != nil {
		p.Holder = s.holder.GetId()
	}
	s.changes = append(s.changes, p)
	if s.order.require && !p.GetProtected() {
		s.end(&UnprotectedError{Cause: p.GetCause(), Detail: p.GetDetail()})
	}
}

// refresh brings the protection state up to date and returns how long it holds if nothing happens (0: no
// bound). It ends the attempt when the holder says that the epoch is fenced. s.mu is held.
func (s *session) refresh(now time.Time) time.Duration {
	if s.outbox == nil {
		return 0
	}
	st := s.outbox.Status()
	s.committed = st.Committed
	if st.Rejected && st.Reason == seguev1.Reason_REASON_FENCED {
		s.end(fmt.Errorf("%w: the holder knows a higher epoch", fence.ErrStaleEpoch))
		return 0
	}
	changed, next := s.shield.update(s.order.rules, st, s.released, now)
	if changed {
		if s.shield.state != pending {
			s.announce()
		}
		s.broadcast()
	}
	return next
}

// guard keeps the protection state up to date until the attempt is closed, and reports each announcement.
func (s *session) guard(onChange func(*seguev1.Protection)) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for seen := 0; ; {
		s.mu.Lock()
		outer, inner := s.changed, s.outboxChanged()
		next := s.refresh(time.Now())
		closed, fresh := s.closed, s.changes[seen:]
		s.mu.Unlock()
		for _, p := range fresh {
			onChange(p)
			s.log.Info("protection changed", "protected", p.GetProtected(), "holder", p.GetHolder(), "cause", p.GetCause(), "detail", p.GetDetail())
		}
		seen += len(fresh)
		if closed {
			return
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
