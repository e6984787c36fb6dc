// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lab_test

import (
	"slices"
	"testing"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/lab"
	"github.com/seguekv/segue/health/scrape"
)

// TestRestart_BetweenTwoReads: the new process's counters are lower, or other, and nothing is said of the old one's.
func TestRestart_BetweenTwoReads(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		again := busy
		again.Restarted = true
		e := scripted(t, kind, busy, again, lab.Phase{State: lab.Idle, For: 20 * second, Restarted: true})
		r := play(t, e, nil)
		if n := r.count(fresh); n != 2 {
			t.Errorf("%d new engines", n)
		}
		for _, s := range r {
			if s.Verdict.Lost() {
				t.Fatal(s)
			}
		}
		if n := r.in(lab.Idle, 0).count(asked); n != 1 {
			t.Errorf("%d probes of the idle new engine", n)
		}
		quiet(t, e)
	})
}

func TestDeath_IsFoundWithTheNextRead(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		back := busy
		back.Restarted = true
		e := scripted(t, kind, busy, lab.Phase{State: lab.Dead, For: 10 * second}, back)
		r := play(t, e, nil)
		r.in(lab.Dead, 0).reaches(t, health.Dead, 0, 300*time.Millisecond)
		if n := r.count(fresh); n != 1 {
			t.Errorf("%d new engines", n)
		}
		quiet(t, e)
	})
}

func TestCut_IsCutOff(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		e := scripted(t, kind, busy, lab.Phase{State: lab.Cut, For: 10 * second}, busy)
		r := play(t, e, nil)
		r.in(lab.Cut, 0).reaches(t, health.CutOff, 0, 300*time.Millisecond)
		if n := r.count(fresh); n != 0 {
			t.Errorf("%d new engines: it was the same process", n)
		}
	})
}

// TestHalfOpen_NeverPasses: with work on it the engine is held for hung, without for cut off; never for healthy.
func TestHalfOpen_NeverPasses(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		e := scripted(t, kind, busy, lab.Phase{State: lab.HalfOpen, For: time.Minute})
		_, within := hangs(kind)
		r := play(t, e, nil).in(lab.HalfOpen, within+2*second)
		r.only(t, health.Hung)
		e = scripted(t, kind, lab.Phase{State: lab.Idle, For: 10 * second}, lab.Phase{State: lab.HalfOpen, For: time.Minute})
		play(t, e, nil).in(lab.HalfOpen, 32*second).only(t, health.CutOff)
	})
}

// TestFailing_OnlyErrors is case E7.
func TestFailing_OnlyErrors(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		e := scripted(t, kind, busy, lab.Phase{State: lab.Failing, For: time.Minute})
		r := play(t, e, nil)
		after, within := hangs(kind)
		r.in(lab.Failing, 0).reaches(t, health.Dead, after, within)
		if s := r[len(r)-1]; !slices.Contains(s.Reasons, health.ReasonOnlyErrors) || e.Stats().Probes != 0 {
			t.Errorf("%v, %+v", s, e.Stats())
		}
	})
}

// TestSleeping_IsNotWoken is case E8: an hour of it.
func TestSleeping_IsNotWoken(t *testing.T) {
	for _, kind := range []scrape.Kind{scrape.VLLM, scrape.LlamaCPP} {
		t.Run(kind.String(), func(t *testing.T) {
			e := scripted(t, kind, lab.Phase{State: lab.Idle, For: 10 * second}, lab.Phase{State: lab.Sleeping, For: time.Hour})
			r := play(t, e, nil)
			r.in(lab.Sleeping, second).only(t, health.Sleeping)
			if s := e.Stats(); s != (lab.Stats{}) {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestLoading_IsStarting: llama-server says so; the others' port isn't open yet, which without knowledge of the process is
// being dead.
func TestLoading_IsStarting(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		idle := lab.Phase{State: lab.Idle, For: 20 * second}
		e := scripted(t, kind, lab.Phase{State: lab.Loading, For: time.Minute}, idle)
		want := health.Dead
		if kind == scrape.LlamaCPP {
			want = health.Starting
		}
		r := play(t, e, nil)
		r.in(lab.Loading, 0).only(t, want)
		r.in(lab.Idle, second).only(t, health.Idle, health.Busy)
		quiet(t, e)
	})
}

func TestLoading_ForTooLongIsHung(t *testing.T) {
	e := scripted(t, scrape.LlamaCPP, lab.Phase{State: lab.Loading, For: 16 * time.Minute})
	play(t, e, nil).reaches(t, health.Hung, 15*time.Minute, 15*time.Minute+second)
}

// TestNoMetrics_IsReachableAndProbedWhenWeHaveNothingThere: what others do there can't be seen.
func TestNoMetrics_IsReachableAndProbedWhenWeHaveNothingThere(t *testing.T) {
	for _, kind := range []scrape.Kind{scrape.VLLM, scrape.LlamaCPP, scrape.OpenAI} {
		t.Run(kind.String(), func(t *testing.T) {
			e := scripted(t, kind, lab.Phase{State: lab.Idle, For: 10 * time.Minute, NoMetrics: true})
			play(t, e, nil).only(t, health.Reachable)
			if n := e.Stats().Probes; n < 8 || n > 10 {
				t.Errorf("%d probes", n)
			}
			ours := func(time.Time) health.Ours { return health.Ours{InFlight: 1, Prefilling: 1} }
			e = scripted(t, kind, lab.Phase{State: lab.Idle, For: 5 * time.Minute, NoMetrics: true})
			play(t, e, ours)
			if n := e.Stats().Probes; n != 0 {
				t.Errorf("%d probes while ours was in flight", n)
			}
		})
	}
}

func TestNoMetrics_IdleHangIsFoundByProbes(t *testing.T) {
	e := scripted(t, scrape.OpenAI, lab.Phase{State: lab.HangDecode, For: 5 * time.Minute, NoMetrics: true})
	r := play(t, e, nil)
	r.reaches(t, health.Hung, time.Minute, 100*second)
}

func TestProxy_IsNeverProbed(t *testing.T) {
	e := scripted(t, scrape.Proxy, lab.Phase{State: lab.Idle, For: time.Hour})
	r := play(t, e, nil)
	r.only(t, health.Reachable)
	if s := e.Stats(); s != (lab.Stats{}) || !slices.Contains(r[9].Reasons, health.ReasonProxy) {
		t.Errorf("%+v, %v", s, r[9])
	}
}

// TestZombie_CountersMoveAndOursGetsNothing.
func TestZombie_CountersMoveAndOursGetsNothing(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		e := scripted(t, kind, with(busy, lab.Decode, time.Minute))
		r := play(t, e, func(time.Time) health.Ours { return health.Ours{InFlight: 1, Delivered: 5} })
		r.reaches(t, health.Degraded, 30*second, 32*second)
	})
}

func TestWaiting_AllOfOursWaits(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		e := scripted(t, kind, busy, with(busy, lab.HangDecode, time.Minute))
		r := play(t, e, func(time.Time) health.Ours { return health.Ours{InFlight: 4, Waiting: 4} })
		r.in(lab.HangDecode, second).only(t, health.Waiting)
	})
}

// TestNaive_HoldsABusyEngineForHung: the same load that the counters show as busy.
func TestNaive_HoldsABusyEngineForHung(t *testing.T) {
	full := lab.Phase{State: lab.Decode, For: 40 * time.Minute, Streams: lab.DefaultPlaces, Queue: 4, Step: 125 * time.Millisecond}
	e := scripted(t, scrape.VLLM, busy, full, lab.Phase{State: lab.Idle, For: 20 * time.Minute}, busy)
	from, to := e.Span()
	n := lab.Naive{}.Run(e, from, to)
	if n.FalseAlarms == 0 || n.ProbesWhileBusy < 7 || n.Found != 0 || n.Unanswered < 5 {
		t.Errorf("%+v", n)
	}
	r := play(t, e, nil)
	for _, s := range r {
		if s.Verdict.Lost() {
			t.Fatal(s)
		}
	}
	quiet(t, e)
}

func TestNaive_FindsAHangLate(t *testing.T) {
	e := scripted(t, scrape.VLLM, busy, with(busy, lab.HangDecode, time.Hour))
	from, to := e.Span()
	if n := (lab.Naive{}).Run(e, from, to); n.Found == 0 || n.FalseAlarms != 0 {
		t.Errorf("%+v", n)
	}
}
