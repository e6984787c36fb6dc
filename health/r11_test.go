// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health_test

import (
	"testing"
	"time"

	"github.com/seguekv/segue/health"
)

// Nothing in flight: healthy without a probe while the last token is young, then one.
func TestR11_idle(t *testing.T) {
	s := newScene(t)
	s.during(s.cfg.IdleLimit, nil, func(a health.Assessment) { want(t, a, health.Idle) })
	if s.probes != 0 {
		t.Fatalf("%d probes within the idle limit", s.probes)
	}
	s.during(s.cfg.IdleLimit, nil, func(a health.Assessment) { want(t, a, health.Idle) })
	if s.probes != 1 {
		t.Fatalf("%d probes, want one that is outstanding", s.probes)
	}
	s.next.Probe = health.ProbePassed
	want(t, s.read(), health.Idle, health.ReasonProbePassed)
	s.during(s.cfg.IdleLimit-s.cfg.Interval, nil, nil)
	if s.probes != 1 {
		t.Fatal("probed again within the idle limit of the token that the probe got")
	}
}

// In flight and moving: healthy for as long as it takes, and never probed.
func TestR11_busy(t *testing.T) {
	s := newScene(t)
	s.busy()
	s.during(time.Hour, func() { s.steps++ }, func(a health.Assessment) { want(t, a, health.Busy, health.ReasonProgress) })
	if s.probes != 0 {
		t.Fatalf("%d probes while busy", s.probes)
	}
}

// In flight and still: hung after the limit of silence and no sooner, and not probed.
func TestR11_hung(t *testing.T) {
	s := newScene(t)
	s.busy()
	s.during(s.cfg.Floor-s.cfg.Interval, nil, s.never(health.Hung))
	a, _ := s.until(health.Hung, 2*s.cfg.Interval+2*s.took)
	want(t, a, health.Hung, health.ReasonNoProgress)
	s.during(time.Minute, nil, func(a health.Assessment) { want(t, a, health.Hung) })
	if s.probes != 0 {
		t.Fatalf("%d probes with something in flight", s.probes)
	}
	want(t, s.advance(), health.Busy)
}

// One pause proves nothing, even if it is longer than the limit of silence; nor does one after a void read.
func TestDetector_OnePauseIsNeverEnough(t *testing.T) {
	for name, void := range map[string]bool{"progress": false, "void": true} {
		t.Run(name, func(t *testing.T) {
			cfg := warmed()
			cfg.Interval, cfg.Floor, cfg.Factor = 2*time.Second, 2*time.Second, 1
			s := newSceneOf(t, cfg)
			s.took = time.Millisecond
			s.next.InFlight = 1
			s.during(10*time.Second, s.token, nil)
			s.took *= 5
			if void {
				s.now = s.now.Add(time.Minute)
				want(t, s.read(), health.Busy, health.ReasonQuiet)
			}
			a := s.read()
			if a.Silence <= a.Limit {
				t.Fatalf("the pause of %v isn't longer than the limit %v: nothing is shown", a.Silence, a.Limit)
			}
			want(t, a, health.Busy, health.ReasonQuiet)
			want(t, s.read(), health.Hung)
		})
	}
}

// Another incarnation: said at once, its counters aren't compared, and it is probed once if it is idle.
func TestR11_restarted(t *testing.T) {
	s := newScene(t)
	s.busy()
	s.next.Incarnation, s.next.InFlight = "b", 0
	s.steps += 1000
	a := s.read()
	if !a.NewEngine || a.Verdict != health.Idle || !a.Probe {
		t.Fatalf("new engine %t, %v %v, probe %t; want a new idle engine and a probe", a.NewEngine, a.Verdict, a.Reasons, a.Probe)
	}
	if a = s.read(); a.NewEngine || a.Probe {
		t.Fatal("said twice")
	}
}

// Counters of two processes are never compared: what is higher than the old one's is no progress.
func TestDetector_CountersOfTwoProcesses(t *testing.T) {
	s := newScene(t)
	s.busy()
	s.next.Incarnation = "b"
	s.steps, s.gen = s.steps+50, s.gen+50
	if a := s.read(); a.Verdict != health.Unknown || !a.NewEngine {
		t.Fatalf("%v %v: took the other process's counters for progress", a.Verdict, a.Reasons)
	}
	// The same when the first word of the new process has no counters.
	s.next.Incarnation, s.next.Outcome = "c", health.TimedOut
	s.read()
	s.next.Outcome = health.Answered
	s.steps += 50
	if a := s.read(); a.Verdict != health.Unknown {
		t.Fatalf("%v %v: took the other process's counters for progress", a.Verdict, a.Reasons)
	}
	// And without a name: an answer after a refusal.
	s.next.Incarnation = ""
	s.advance()
	s.next.Outcome = health.Refused
	want(t, s.read(), health.Dead, health.ReasonRefused)
	s.next.Outcome = health.Answered
	if a := s.advance(); !a.NewEngine || a.Verdict != health.Unknown {
		t.Fatalf("new engine %t, %v %v", a.NewEngine, a.Verdict, a.Reasons)
	}
	// With the name of the old process it is the old one.
	s.next.Incarnation = "d"
	s.read()
	s.next.Outcome = health.Refused
	s.read()
	s.next.Outcome = health.Answered
	if a := s.read(); a.NewEngine {
		t.Fatal("the same process is new")
	}
}

// No metrics: our own stream is what there is, and probes only when it is not.
func TestR11_no_metrics(t *testing.T) {
	s := newScene(t)
	s.next = health.Reading{Outcome: health.Opaque, Ours: health.Ours{InFlight: 1}}
	s.during(10*time.Second, func() { s.next.Ours.Delivered++ }, nil)
	s.during(s.cfg.BlindFloor-s.cfg.Interval, nil, s.never(health.Hung))
	s.until(health.Hung, 2*time.Second)
	if s.probes != 0 {
		t.Fatalf("%d probes with something of ours in flight", s.probes)
	}
	s.next.Ours.InFlight = 0
	want(t, s.read(), health.Hung)
	if s.probes != 1 {
		t.Fatal("no probe of a hung engine whose work was taken away")
	}
	s.next.Probe = health.ProbePassed
	want(t, s.read(), health.Reachable, health.ReasonNoMetrics)
}

// A proxy is there or not. Neither its counters nor silence say anything, and it is never probed.
func TestR11_proxy(t *testing.T) {
	s := newScene(t)
	s.next.Proxy, s.next.InFlight = true, 2
	names := []string{"a", "b"}
	s.during(time.Hour, func() {
		s.steps = 100 - s.steps
		names[0], names[1] = names[1], names[0]
		s.next.Incarnation = names[0]
	}, func(a health.Assessment) {
		want(t, a, health.Reachable, health.ReasonProxy)
		if a.NewEngine {
			t.Fatal("a proxy has no incarnation")
		}
	})
	s.next.Ours = health.Ours{InFlight: 1}
	s.during(20*time.Minute, nil, s.never(health.Hung, health.Degraded))
	if s.probes != 0 {
		t.Fatalf("%d probes of a proxy", s.probes)
	}
	s.next.Outcome = health.Refused
	want(t, s.read(), health.Dead)
}

// Refused is dead now. No answer takes the limit of silence, and is never called dead.
func TestR11_unreachable(t *testing.T) {
	s := newScene(t)
	s.next = health.Reading{Outcome: health.Refused}
	want(t, s.read(), health.Dead, health.ReasonRefused)
	s = newScene(t)
	s.next = health.Reading{Outcome: health.TimedOut}
	want(t, s.read(), health.Unknown, health.ReasonNoAnswer)
	a, _ := s.until(health.CutOff, s.cfg.Floor+2*(s.cfg.Interval+s.cfg.ReadTimeout))
	want(t, a, health.CutOff, health.ReasonNoAnswer)
	s.during(time.Hour, nil, s.never(health.Dead, health.Hung))
	if s.probes != 0 {
		t.Fatalf("%d probes of what can't be reached", s.probes)
	}
}

// Sleeping: no probe, neither for the idle limit nor for a sign of a lost device, and no hang.
func TestR11_sleeping(t *testing.T) {
	s := newScene(t)
	s.next.Sleeping = true
	s.d.Demand(s.now)
	s.during(time.Hour, nil, func(a health.Assessment) { want(t, a, health.Sleeping) })
	s.next.InFlight = 1
	s.during(time.Hour, nil, func(a health.Assessment) { want(t, a, health.Sleeping) })
	if s.probes != 0 {
		t.Fatalf("%d probes of a sleeping engine", s.probes)
	}
}
