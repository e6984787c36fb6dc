// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health_test

import (
	"testing"
	"time"

	"github.com/seguekv/segue/health"
)

// The HTTP side answers, the step loop is frozen: hung within the bound.
func TestCase_E1_HealthGreenEngineFrozen(t *testing.T) {
	s := newScene(t)
	s.busy()
	a, took := s.until(health.Hung, s.cfg.Floor+2*s.cfg.Interval+s.cfg.ReadTimeout)
	want(t, a, health.Hung, health.ReasonNoProgress)
	if took > 3*time.Second {
		t.Fatalf("hung after %v", took)
	}
}

// A prefill of ten minutes with counters that move, also those of a source that counts only its tokens: never unhealthy,
// never probed. Where nothing moves, knowing that it is a prefill of ours must do.
func TestCase_E2_LongPrefill(t *testing.T) {
	for name, moves := range map[string]bool{"chunked": true, "blind": false} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.busy()
			s.next.Steps = moves
			s.next.Ours = health.Ours{InFlight: 1, Prefilling: 1}
			if !moves {
				s.next.InFlight = 0 // an unchunked prefill of vLLM isn't even counted
			}
			s.during(10*time.Minute-s.cfg.Interval, func() {
				if moves {
					s.steps++
				}
			}, func(a health.Assessment) {
				if a.Verdict != health.Busy && a.Verdict != health.Unknown {
					t.Fatalf("after %v: %v %v", s.now.Sub(epoch), a.Verdict, a.Reasons)
				}
			})
			if s.probes != 0 {
				t.Fatalf("%d probes", s.probes)
			}
		})
	}
}

// What tells of the slots never answers, though the port is open: hung, when something is in flight; nobody is dead.
func TestCase_E4_SlotsNeverAnswer(t *testing.T) {
	s := newScene(t)
	s.busy()
	s.next.Steps = false
	s.advance()
	s.next.Outcome = health.TimedOut
	s.during(s.cfg.BlindFloor-s.cfg.ReadTimeout-s.cfg.Interval, nil, s.never(health.Hung, health.Dead, health.CutOff))
	a, _ := s.until(health.Hung, 2*(s.cfg.ReadTimeout+s.cfg.Interval)+s.cfg.Interval)
	want(t, a, health.Hung, health.ReasonNoAnswer)
}

// 503 to everything, and the process stays: its work is moved, since it counts as dead.
func TestCase_E7_ErrorsForEver(t *testing.T) {
	s := newScene(t)
	s.busy()
	s.next.Outcome, s.next.Alive, s.next.Detail = health.Failed, true, "503"
	want(t, s.read(), health.Unknown, health.ReasonOnlyErrors)
	a, _ := s.until(health.Dead, s.cfg.Floor+3*s.cfg.Interval)
	want(t, a, health.Dead, health.ReasonOnlyErrors)
	if a.Detail != "503" {
		t.Fatalf("detail %q", a.Detail)
	}
	s.during(time.Hour, nil, func(a health.Assessment) { want(t, a, health.Dead) })
	if s.probes != 0 {
		t.Fatalf("%d probes of an engine that answers nothing but errors", s.probes)
	}
	// One that has never been ready loads, for as long as the start budget lasts.
	s = newScene(t)
	s.next.Outcome = health.Failed
	s.during(s.cfg.StartBudget, nil, func(a health.Assessment) { want(t, a, health.Starting) })
	s.until(health.Dead, time.Second)
}

// Asleep for an hour: not one probe, with and without the engine's counters.
func TestCase_E8_SleepingIsNeverWoken(t *testing.T) {
	s := newScene(t)
	s.busy()
	s.next.InFlight, s.next.Sleeping = 0, true
	s.during(time.Hour, nil, func(a health.Assessment) {
		want(t, a, health.Sleeping)
		if a.Probe {
			t.Fatal("a probe would wake it")
		}
	})
	// One that falls asleep with a probe under way is let sleep.
	s.next.Sleeping = false
	s.during(2*s.cfg.IdleLimit, nil, nil)
	if s.probes != 1 {
		t.Fatalf("%d probes, want one outstanding", s.probes)
	}
	s.next.Sleeping = true
	if a := s.read(); !a.DropProbe {
		t.Fatal("the probe goes on")
	}
}
