// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health_test

import (
	"testing"
	"time"

	"github.com/seguekv/segue/health"
)

// rested plays an idle engine until a probe is asked for.
func rested(t tester) *scene {
	t.Helper()
	s := newScene(t)
	s.during(2*s.cfg.IdleLimit, nil, nil)
	if s.probes != 1 {
		t.Fatalf("%d probes of a rested engine, want one that is outstanding", s.probes)
	}
	return s
}

// ended reads on with the probe's end, and until the next one is asked for.
func (s *scene) ended(how health.Probe) (a health.Assessment, next time.Duration) {
	s.t.Helper()
	s.next.Probe = how
	a = s.read()
	begin := s.now
	for probe := a.Probe; !probe; {
		if s.now.Sub(begin) > 2*s.cfg.IdleLimit {
			s.t.Fatal("no further probe")
		}
		probe = s.read().Probe
	}
	return a, s.now.Sub(begin)
}

// The request of a probe is no work: it neither withdraws the probe nor lets silence count.
func TestProbe_OwnRequestIsNoWork(t *testing.T) {
	s := rested(t)
	s.next.InFlight = 1
	s.during(s.cfg.Floor*2, nil, func(a health.Assessment) {
		want(t, a, health.Idle)
		if a.DropProbe || a.InFlight != 0 {
			t.Fatalf("drop %t, in flight %d: took the probe for work", a.DropProbe, a.InFlight)
		}
	})
	// Its prompt moves a counter: that is no work of others either.
	s.steps++
	if a := s.read(); a.DropProbe {
		t.Fatal("withdrawn for its own progress")
	}
	s.next.InFlight = 2
	if a := s.read(); !a.DropProbe || a.InFlight != 1 {
		t.Fatalf("drop %t, in flight %d, want the probe withdrawn for the other request", a.DropProbe, a.InFlight)
	}
	// Withdrawn is not over: until it says so there is no other, and one request more is its own.
	s.next.InFlight = 1
	s.during(2*s.cfg.IdleLimit, nil, nil)
	if s.probes != 1 {
		t.Fatalf("%d probes at once", s.probes)
	}
}

// One that fails isn't enough, and each comes later than the one before. What gets a token in between ends the row.
func TestProbe_OneFailureIsNotEnough(t *testing.T) {
	s := rested(t)
	var last time.Duration
	for i := range 4 {
		a, next := s.ended(health.ProbeFailed)
		if i == 0 {
			want(t, a, health.Idle)
		} else if i > 1 {
			want(t, a, health.Hung, health.ReasonProbeFailed)
		}
		if next <= last || next > s.cfg.IdleLimit {
			t.Fatalf("probe after %v, and after %v before", next, last)
		}
		last = next
	}
	s.next.InFlight = 1
	want(t, s.advance(), health.Busy)
	s.next.InFlight = 0
	s.next.Probe = health.ProbeFailed
	want(t, s.read(), health.Idle)
}

// With steps that can't be seen an engine that looks idle may be in a long prefill of others: failed probes say as much
// as silence there.
func TestProbe_FailuresOfTheBlindTakeLonger(t *testing.T) {
	s := newScene(t)
	s.next.Steps = false
	s.during(s.cfg.IdleLimit+2*s.cfg.Interval, nil, nil)
	begin := s.now
	var a health.Assessment
	for a.Verdict != health.Hung {
		if s.now.Sub(begin) > 2*s.cfg.BlindFloor {
			t.Fatalf("%v %v after %v", a.Verdict, a.Reasons, s.now.Sub(begin))
		}
		s.next.Probe = health.ProbeFailed
		a = s.read()
	}
	if took := s.now.Sub(begin); took < s.cfg.BlindFloor-s.cfg.Interval {
		t.Fatalf("hung after %v", took)
	}
}

// Failures that have a reason of their own are no evidence: one withdrawn for work, one during which the reader stood
// still, one that was sent to another process.
func TestProbe_FailuresThatSayNothing(t *testing.T) {
	for name, spoil := range map[string]func(*scene){
		"withdrawn": func(s *scene) { s.next.Ours.InFlight = 1; s.read(); s.next.Ours.InFlight = 0; s.read() },
		"own pause": func(s *scene) { s.now = s.now.Add(time.Minute); s.read() },
		"restart":   func(s *scene) { s.next.Incarnation += "b"; s.read() },
	} {
		t.Run(name, func(t *testing.T) {
			s := rested(t)
			for range 5 * s.cfg.Probes {
				spoil(s)
				s.next.Probe = health.ProbeFailed
				want(t, s.read(), health.Idle)
				s.during(s.cfg.IdleLimit, nil, func(a health.Assessment) { want(t, a, health.Idle) })
			}
		})
	}
	// A success on the old process isn't one of the new: that one gets a probe of its own.
	s := rested(t)
	s.next.Incarnation = "b"
	if a := s.read(); !a.DropProbe {
		t.Fatal("the old process's probe goes on")
	}
	if a, next := s.ended(health.ProbePassed); next > 0 {
		t.Fatalf("%v %v; the new process is probed after %v only", a.Verdict, a.Reasons, next)
	}
}

// Refused for want of room: the engine isn't asked again at once.
func TestProbe_RefusalIsRespected(t *testing.T) {
	s := rested(t)
	if a, next := s.ended(health.ProbeDropped); a.Verdict != health.Idle || next < s.cfg.IdleLimit-s.cfg.Interval {
		t.Fatalf("%v, next probe after %v", a.Verdict, next)
	}
}

// An engine that hung and lost its work isn't well before it shows life; if it can't be probed, it gets another chance
// after the idle limit.
func TestProbe_HungStaysHungWithoutWork(t *testing.T) {
	s := newScene(t)
	s.busy()
	s.until(health.Hung, 3*time.Second)
	s.next.InFlight = 0
	if a := s.read(); a.Verdict != health.Hung || !a.Probe {
		t.Fatalf("%v %v, probe %t", a.Verdict, a.Reasons, a.Probe)
	}
	s.next.Probe = health.ProbeDropped
	s.during(s.cfg.IdleLimit-2*s.cfg.Interval, nil, func(a health.Assessment) { want(t, a, health.Hung) })
	s.until(health.Idle, time.Second)
}
