// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"errors"
	"fmt"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/fence"
)

// grantor is the random id of a router's process life.
type grantor [16]byte

// loan is a lease as a call brings it.
type loan struct {
	grantor grantor
	lease   fence.Lease
	// asked is when this agent asked for it, or else when the call came.
	asked time.Duration
}

// tenure is the lease of one run. The session's lock guards it.
type tenure struct {
	clock *fence.Clock
	// lapsed is called once, when the lease ends the run.
	lapsed func()
	// holds: there is a lease.
	holds   bool
	grantor grantor
	term    fence.Term
	timer   *time.Timer
}

// loanOf reads the lease of a call that came at now; nil when it brings none.
func (a *Agent) loanOf(l *seguev1.Lease, now time.Duration) (*loan, error) {
	if l.GetTtlMs() == 0 {
		return nil, nil
	}
	by, err := grantorOf(l.GetGrantor())
	if err != nil {
		return nil, err
	}
	out := &loan{grantor: by, lease: leaseOf(l.GetTtlMs(), l.GetMarginMs()), asked: now}
	if err := out.lease.Validate(); err != nil {
		return nil, invalid("lease", "%v", err)
	}
	if n := l.GetNumber(); n != 0 {
		if out.asked, err = a.askedAt(l.GetBootId(), n); err != nil {
			return nil, err
		}
	}
	if now-out.asked >= out.lease.Usable() {
		return nil, fmt.Errorf("%w: the call comes %v after the question that its lease answers", errLeaseEnded, now-out.asked)
	}
	return out, nil
}

func grantorOf(b []byte) (grantor, error) {
	if len(b) != len(grantor{}) {
		return grantor{}, invalid("grantor", "want %d bytes, got %d", len(grantor{}), len(b))
	}
	return grantor(b), nil
}

func leaseOf(ttlMillis, marginMillis uint32) fence.Lease {
	return fence.Lease{TTL: time.Duration(ttlMillis) * time.Millisecond, Margin: time.Duration(marginMillis) * time.Millisecond}
}

// askedAt is when this agent made the response with that number.
func (a *Agent) askedAt(boot []byte, number uint64) (time.Duration, error) {
	if string(boot) != string(a.self.Boot[:]) {
		return 0, fmt.Errorf("%w: it answers another boot of this agent", errLeaseEnded)
	}
	a.mu.Lock()
	asked, ok := a.asks.At(number)
	a.mu.Unlock()
	if !ok {
		return 0, fmt.Errorf("%w: it answers question %d, which is not known any more", errLeaseEnded, number)
	}
	return asked, nil
}

// take gives the run the lease of a call that started it or came back to it. The last caller is the grantor.
func (s *session) take(l *loan) {
	if l == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.err != nil {
		return
	}
	s.tenure.holds, s.tenure.grantor = true, l.grantor
	s.extend(l.asked, l.lease)
}

// renew extends the run's lease if it is of that grantor, and reports whether it is live.
func (s *session) renew(by grantor, asked time.Duration, l fence.Lease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.err != nil || !s.tenure.holds || s.tenure.grantor != by {
		return false
	}
	return s.extend(asked, l)
}

// extend counts the lease from asked on. s.mu is held.
func (s *session) extend(asked time.Duration, l fence.Lease) bool {
	t := &s.tenure
	if !t.term.Grant(t.clock.Elapsed(), asked, l) {
		s.lapse()
		return false
	}
	if t.timer == nil {
		t.timer = time.AfterFunc(t.term.Left(t.clock.Elapsed()), s.look)
	}
	return true
}

// look is what the timer does: it looks at the clock.
func (s *session) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.tenure
	if s.closed || s.err != nil || !t.holds {
		return
	}
	if left := t.term.Left(t.clock.Elapsed()); left > 0 {
		t.timer.Reset(left)
		return
	}
	s.lapse()
}

// lapse ends the run because its lease is over. s.mu is held.
func (s *session) lapse() {
	if s.err == nil {
		s.tenure.lapsed()
	}
	s.end(errLeaseEnded)
}

// mayGoOn reports whether anything of the run may leave. It looks at the clock, and ends the run if its lease is over.
func (s *session) mayGoOn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parked || s.tainted {
		return false
	}
	t := &s.tenure
	if !t.holds || t.term.Live(t.clock.Elapsed()) {
		return true
	}
	s.lapse()
	return false
}

// whyOver is the error of a run that may not go on.
func (s *session) whyOver() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parked || s.tainted {
		return s.err
	}
	return errLeaseEnded
}

// dropLease ends the lease of a run that is over. s.mu is held.
func (s *session) dropLease() {
	if s.tenure.timer != nil {
		s.tenure.timer.Stop()
	}
	s.tenure.holds = errors.Is(s.err, errLeaseEnded) // then nothing leaves any more, to nobody
}

// leaseLeft is what is left of the lease; 0 without one. s.mu is held.
func (s *session) leaseLeft() time.Duration {
	if t := &s.tenure; t.holds {
		return t.term.Left(t.clock.Elapsed())
	}
	return 0
}

// runStatus describes a run whose lease is of that grantor; nil for any other.
func (s *session) runStatus(by grantor) *seguev1.RunStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.err != nil || !s.tenure.holds || s.tenure.grantor != by {
		return nil
	}
	return &seguev1.RunStatus{
		Session: s.id[:], Epoch: uint64(s.epoch), Phase: s.stateName(), Prefilled: uint32(s.prefilled), Captured: uint32(len(s.tokens)),
	}
}

// heldBy reports whether the run's lease is of that grantor.
func (s *session) heldBy(by grantor) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tenure.holds && s.tenure.grantor == by
}

// renewals answers one Renew call: it takes the grants, ends what the grantor has done with, and asks again.
func (a *Agent) renewals(r *seguev1.RenewRequest) (*seguev1.RenewResponse, error) {
	by, err := grantorOf(r.GetGrantor())
	if err != nil {
		return nil, err
	}
	if len(r.GetGrants()) > 0 {
		asked, unknown := a.askedAt(r.GetBootId(), r.GetNumber())
		for _, g := range r.GetGrants() {
			id, e, err := key(g.GetSession(), g.GetEpoch())
			if err != nil {
				return nil, err
			}
			l := leaseOf(g.GetTtlMs(), g.GetMarginMs())
			if err := l.Validate(); err != nil {
				return nil, invalid("grants", "%v", err)
			}
			s := a.find(id, e)
			a.metrics.renewal(unknown == nil && s != nil && s.renew(by, asked, l))
		}
	}
	for _, run := range r.GetEnded() {
		if err := a.disown(by, run); err != nil {
			return nil, err
		}
	}
	// INVARIANT: the clock is read before the runs are, and the response leaves after both.
	now := a.clock.Elapsed()
	a.mu.Lock()
	out := &seguev1.RenewResponse{BootId: a.self.Boot[:], Number: a.asks.Ask(now)}
	a.mu.Unlock()
	for _, s := range a.all() {
		if run := s.runStatus(by); run != nil {
			out.Runs = append(out.Runs, run)
		}
	}
	return out, nil
}

// disown ends a run that its grantor has done with.
func (a *Agent) disown(by grantor, r *seguev1.Run) error {
	id, e, err := key(r.GetSession(), r.GetEpoch())
	if err != nil {
		return err
	}
	if s := a.find(id, e); s != nil && s.heldBy(by) {
		s.fail(fmt.Errorf("%w: %d, its grantor has done with it", fence.ErrStaleEpoch, e))
	}
	return nil
}
