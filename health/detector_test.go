// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health_test

import (
	"math"
	"testing"
	"time"

	"github.com/seguekv/segue/health"
)

// The limit follows the gaps: an engine with a step every two seconds isn't hung after two and a half.
func TestDetector_LimitAdapts(t *testing.T) {
	s := newScene(t)
	s.next.InFlight = 1
	slow := 1500 * time.Millisecond
	s.advance()
	s.during(20*slow, func() {
		if s.now.Sub(epoch)%slow < s.cfg.Interval {
			s.steps++
		}
	}, s.never(health.Hung))
	s.advance()
	s.during(3*slow, nil, s.never(health.Hung))
	s.until(health.Hung, 4*slow)
	// Steps so slow that the limit is the ceiling, and no more.
	s = newScene(t)
	s.next.InFlight = 1
	s.advance()
	for range 10 {
		s.during(25*time.Second, nil, nil)
		s.steps++
		want(t, s.read(), health.Busy)
	}
	a, took := s.until(health.Hung, s.cfg.Ceiling+3*s.cfg.Interval)
	if a.Limit != s.cfg.Ceiling || took < s.cfg.Ceiling {
		t.Fatalf("hung after %v with limit %v", took, a.Limit)
	}
	// Another process has its own gaps.
	s.next.Incarnation = "b"
	if a = s.read(); a.Limit != s.cfg.Floor {
		t.Fatalf("limit %v from the gaps of another process", a.Limit)
	}
}

// The reader's own pauses are none of the engine's, whether between two reads or within one.
func TestDetector_OwnPauseIsNoSilence(t *testing.T) {
	for name, stop := range map[string]func(*scene) health.Assessment{
		"between": func(s *scene) health.Assessment { s.now = s.now.Add(time.Minute); return s.read() },
		"within": func(s *scene) health.Assessment {
			defer func(was time.Duration) { s.took = was }(s.took)
			s.took = time.Minute
			return s.read()
		},
		"back": func(s *scene) health.Assessment { s.now = s.now.Add(-time.Minute); return s.read() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.busy()
			for range 20 {
				s.during(s.cfg.Floor-s.cfg.Interval, nil, s.never(health.Hung))
				want(t, stop(s), health.Busy)
			}
			// The pauses weren't taken for gaps.
			s.steps++
			s.read()
			a, _ := s.until(health.Hung, s.cfg.Ceiling)
			if a.Limit > 4*s.cfg.Floor {
				t.Fatalf("limit %v", a.Limit)
			}
			// Nor is what was cut meanwhile lost, if it is back.
			s.next.Outcome = health.Cut
			want(t, stop(s), health.Unknown, health.ReasonCut, health.ReasonOwnPause)
			want(t, s.read(), health.CutOff)
		})
	}
}

// All of ours wait: healthy, while counters stand still for as long as it takes.
func TestDetector_WaitingIsNeverHung(t *testing.T) {
	s := newScene(t)
	s.busy()
	s.next.Ours = health.Ours{InFlight: 1, Waiting: 1}
	s.during(time.Hour, nil, func(a health.Assessment) { want(t, a, health.Waiting, health.ReasonAllWait) })
	s.next.Ours.Waiting = 0
	s.during(s.cfg.Floor-s.cfg.Interval, nil, s.never(health.Hung))
	s.until(health.Hung, 3*s.cfg.Interval)
}

// Bytes are trusted over counters: our tokens arrive, no counter moves. The counters are said to be broken after some
// reads, not for one that fell between a token and its count.
func TestDetector_DeliveredTokensCount(t *testing.T) {
	s := newScene(t)
	s.busy()
	s.next.Ours.InFlight = 1
	flagged := 0
	s.during(time.Minute, func() { s.next.Ours.Delivered++ }, func(a health.Assessment) {
		want(t, a, health.Busy, health.ReasonOurTokens)
		if a.CountersStuck {
			flagged++
		}
	})
	if flagged < 200 {
		t.Fatalf("flagged %d times", flagged)
	}
	s.next.Ours.Delivered++
	if a := s.advance(); a.CountersStuck {
		t.Fatal("flagged although a counter moved")
	}
	s.next.Ours.Delivered++
	if a := s.read(); a.CountersStuck {
		t.Fatal("flagged after one read")
	}
	// The same while reads time out, or the transport of the reads is gone.
	for _, outcome := range []health.Outcome{health.TimedOut, health.Failed, health.Cut} {
		s.next.Outcome = outcome
		s.during(time.Minute, func() { s.next.Ours.Delivered++ }, func(a health.Assessment) { want(t, a, health.Busy) })
	}
}

// Counters move and nothing of ours is answered.
func TestDetector_ZombieIsDegraded(t *testing.T) {
	s := newScene(t)
	s.busy()
	s.next.Ours.InFlight = 1
	s.during(s.cfg.Zombie-s.cfg.Interval, s.token, func(a health.Assessment) { want(t, a, health.Busy) })
	s.advance()
	s.during(time.Minute, func() {
		if s.now.Sub(epoch)%time.Second < s.cfg.Interval {
			s.token()
		}
	}, func(a health.Assessment) { want(t, a, health.Degraded, health.ReasonZombie) })
	s.next.Ours.Delivered++
	want(t, s.advance(), health.Busy)
}

// A queue that is full for minutes: none of ours has a token yet, and the engine works.
func TestDetector_QueueFullIsBusy(t *testing.T) {
	s := newScene(t)
	s.next.InFlight, s.next.Ours = 64, health.Ours{InFlight: 64, Prefilling: 64}
	s.read()
	s.during(10*time.Minute, s.token, func(a health.Assessment) { want(t, a, health.Busy) })
	if s.probes != 0 {
		t.Fatalf("%d probes", s.probes)
	}
}

// Work that comes to an idle engine has its whole limit; so has what waited while it slept or loaded.
func TestDetector_SilenceBeginsWithWork(t *testing.T) {
	for name, before := range map[string]func(*health.Reading){
		"idle":     func(r *health.Reading) { r.InFlight = 0 },
		"sleeping": func(r *health.Reading) { r.Sleeping, r.InFlight = true, 1 },
		"loading":  func(r *health.Reading) { r.Loading, r.InFlight = true, 1 },
		"cut":      func(r *health.Reading) { r.Outcome = health.Cut },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.busy()
			was := s.next
			before(&s.next)
			s.during(50*time.Second, nil, s.never(health.Hung))
			s.next = was
			s.next.InFlight = 1
			s.during(s.cfg.Floor-s.cfg.Interval, nil, s.never(health.Hung))
			s.until(health.Hung, 4*s.cfg.Interval)
		})
	}
}

// A sign of a lost device: progress is due in one short window. What moved before it doesn't count.
func TestDetector_DemandShortensTheLimit(t *testing.T) {
	s := newScene(t)
	s.busy()
	s.d.Demand(s.now.Add(s.cfg.Interval / 2))
	want(t, s.advance(), health.Busy)
	a, _ := s.until(health.Hung, s.cfg.Demand+2*s.cfg.Interval)
	if a.Limit != s.cfg.Demand {
		t.Fatalf("limit %v", a.Limit)
	}
	s.advance()
	if a = s.read(); a.Limit < s.cfg.Floor {
		t.Fatalf("limit %v after progress", a.Limit)
	}
}

// Counters that aren't numbers, come, go or change places are no progress, no restart, and hide nothing else.
func TestDetector_OddCounters(t *testing.T) {
	c := func(name string, v float64) health.Counter { return health.Counter{Name: name, Value: v} }
	cfg := warmed()
	cfg.Floor = 10 * time.Second
	s := newSceneOf(t, cfg)
	s.next.InFlight = 1
	for i, list := range [][]health.Counter{
		{c("a", 5), c("b", 7)}, {c("a", math.NaN()), c("b", 7)}, {c("a", math.Inf(1)), c("b", 7)}, {c("a", 3), c("b", 7)}, {c("b", 7)}, {c("b", 7), c("a", 9)},
		{c("a", 9), c("b", 7)}, {c("a", 9), c("b", math.Inf(-1)), c("d", 3)}, {},
	} {
		s.next.Counters = list
		if a := s.read(); a.NewEngine || a.Verdict != health.Unknown {
			t.Fatalf("list %d: new engine %t, %v %v", i, a.NewEngine, a.Verdict, a.Reasons)
		}
	}
	s.next.Counters = []health.Counter{c("x", 1), c("b", 7)}
	s.read()
	s.next.Counters = []health.Counter{c("b", 8)}
	want(t, s.read(), health.Busy, health.ReasonProgress)
	s.next.Counters = []health.Counter{c("y", 1), c("b", 2)}
	if a := s.read(); !a.NewEngine {
		t.Fatal("a counter fell, and it is the same process")
	}
	s.next.Counters = []health.Counter{{Name: "g", Value: 5, Gauge: true}}
	s.read()
	s.next.Counters = []health.Counter{{Name: "g", Value: 2, Gauge: true}}
	if a := s.read(); a.NewEngine || a.Verdict != health.Busy {
		t.Fatalf("a gauge fell: new engine %t, %v", a.NewEngine, a.Verdict)
	}
}

// The start budget is that of one start: of a process that wasn't there before, or loads anew.
func TestDetector_StartBudgetIsOfOneStart(t *testing.T) {
	s := newScene(t)
	s.next.Incarnation = ""
	s.next.Outcome = health.Refused
	s.during(2*s.cfg.StartBudget, nil, func(a health.Assessment) { want(t, a, health.Dead) })
	s.next.Outcome, s.next.Loading = health.Answered, true
	s.during(s.cfg.StartBudget-s.cfg.Interval, nil, func(a health.Assessment) { want(t, a, health.Starting) })
	s.until(health.Hung, time.Second)
	s.next.Loading = false
	s.during(2*s.cfg.StartBudget, nil, nil)
	s.next.Loading = true
	want(t, s.read(), health.Starting)
	// A process that runs and opens its port late is starting; one that had it open is dead.
	s = newScene(t)
	s.next.Outcome, s.next.Alive = health.Refused, true
	s.during(s.cfg.StartBudget-s.cfg.Interval, nil, func(a health.Assessment) { want(t, a, health.Starting) })
	s.until(health.Dead, time.Second)
	s.next.Outcome = health.Opaque
	s.read()
	s.next.Outcome = health.Refused
	want(t, s.read(), health.Dead)
}

// An engine with nothing in flight that stops answering is out of reach, not dead; where a long batch stops the answers
// too, it takes longer.
func TestDetector_SilentIdleEngine(t *testing.T) {
	for name, steps := range map[string]bool{"steps": true, "blind": false} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.next.Steps = steps
			s.read()
			s.next.Outcome, s.next.Steps = health.TimedOut, false
			limit := s.cfg.Floor
			if !steps {
				limit = s.cfg.BlindFloor
			}
			s.during(limit-s.cfg.ReadTimeout, nil, func(a health.Assessment) { want(t, a, health.Unknown) })
			s.until(health.CutOff, 3*(s.cfg.ReadTimeout+s.cfg.Interval))
			s.during(time.Hour, nil, func(a health.Assessment) { want(t, a, health.CutOff) })
		})
	}
}
