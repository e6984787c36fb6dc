// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lab_test

import (
	"testing"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/lab"
	"github.com/seguekv/segue/health/scrape"
)

const second = time.Second

var busy = lab.Phase{State: lab.Decode, For: 20 * second, Streams: 4}

func with(p lab.Phase, s lab.State, d time.Duration) lab.Phase {
	p.State, p.For = s, d
	return p
}

// TestIdle_IsProbedOncePerIdleLimit: and its verdict is idle but for the read in which the probe shows.
func TestIdle_IsProbedOncePerIdleLimit(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		e := scripted(t, kind, lab.Phase{State: lab.Idle, For: 10 * time.Minute})
		r := play(t, e, nil)
		r.only(t, health.Idle, health.Busy)
		if n := e.Stats().Probes; n < 8 || n > 10 {
			t.Errorf("%d probes in 10 minutes", n)
		}
		if n := r.count(func(s saw) bool { return s.Verdict == health.Busy }); n > e.Stats().Probes {
			t.Errorf("busy %d times", n)
		}
		quiet(t, e)
	})
}

// TestBusy_IsHealthyAndNeverProbed: at 8 tokens a second too.
func TestBusy_IsHealthyAndNeverProbed(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		e := scripted(t, kind, lab.Phase{State: lab.Decode, For: 10 * time.Minute, Streams: 4, Step: 125 * time.Millisecond})
		r := play(t, e, nil)
		r.in(lab.Decode, second).only(t, health.Busy)
		if e.Stats().Probes != 0 {
			t.Errorf("%+v", e.Stats())
		}
	})
}

func TestQueueFull_IsBusyForMinutes(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		e := scripted(t, kind, lab.Phase{State: lab.Decode, For: 10 * time.Minute, Streams: lab.DefaultPlaces, Queue: 200, Step: 125 * time.Millisecond})
		r := play(t, e, nil)
		r.in(lab.Decode, second).only(t, health.Busy)
		quiet(t, e)
	})
}

// TestLongPrefill_InChunks is case E2: ten minutes of it.
func TestLongPrefill_InChunks(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		e := scripted(t, kind, busy, lab.Phase{State: lab.PrefillChunked, For: 10 * time.Minute, Step: 700 * time.Millisecond}, busy)
		r := play(t, e, nil)
		r[8:].only(t, health.Busy)
		if e.Stats().Probes != 0 {
			t.Errorf("%+v", e.Stats())
		}
	})
}

// TestLongPrefill_InOneStep: nothing moves for 20 s while others wait for their next token.
func TestLongPrefill_InOneStep(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		e := scripted(t, kind, busy, with(busy, lab.PrefillWhole, 20*second), busy)
		r := play(t, e, nil)
		still := r.in(lab.PrefillWhole, second)
		still.only(t, health.Busy)
		if n := still.count(func(s saw) bool { return s.Silence > 10*second }); n == 0 {
			t.Error("something moved in the long step")
		}
		r.in(lab.Decode, 2*second).only(t, health.Busy)
		quiet(t, e)
	})
}

// TestLongPrefill_OursInOneStep: minutes of it, on an engine that shows nothing at all of it.
func TestLongPrefill_OursInOneStep(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		e := scripted(t, kind, lab.Phase{State: lab.Idle, For: 20 * second}, lab.Phase{State: lab.PrefillWhole, For: 5 * time.Minute}, busy)
		ours := func(at time.Time) health.Ours {
			p, _ := e.Phase(at)
			switch p.State {
			case lab.PrefillWhole:
				return health.Ours{InFlight: 1, Prefilling: 1}
			case lab.Decode:
				return health.Ours{InFlight: 1, Delivered: uint64(at.Sub(origin) / lab.DefaultStep)}
			}
			return health.Ours{}
		}
		r := play(t, e, ours)
		for _, s := range r {
			if s.Verdict.Lost() {
				t.Fatal(s)
			}
		}
		if kind == scrape.VLLM {
			if n := r.in(lab.PrefillWhole, 0).count(func(s saw) bool { return s.reading.InFlight != 0 }); n != 0 {
				t.Errorf("%d pages show the request", n)
			}
		}
		quiet(t, e)
	})
}

func TestHangInDecode_IsFound(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		e := scripted(t, kind, busy, with(busy, lab.HangDecode, time.Minute))
		r := play(t, e, nil)
		after, within := hangs(kind)
		r.in(lab.HangDecode, 0).reaches(t, health.Hung, after, within)
		quiet(t, e)
	})
}

// TestHangInPrefill_IsFound: vLLM looks idle then; what is known of our own requests counts.
func TestHangInPrefill_IsFound(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		e := scripted(t, kind, busy, lab.Phase{State: lab.Idle, For: 5 * second}, lab.Phase{State: lab.HangPrefill, For: 20 * time.Minute})
		after, within := hangs(kind)
		var ours func(time.Time) health.Ours
		if kind == scrape.VLLM {
			after, within = 9*time.Minute, 11*time.Minute
			ours = func(at time.Time) health.Ours {
				if p, _ := e.Phase(at); p.State == lab.HangPrefill {
					return health.Ours{InFlight: 1, Prefilling: 1}
				}
				return health.Ours{}
			}
		}
		r := play(t, e, ours)
		r.in(lab.HangPrefill, 0).reaches(t, health.Hung, after, within)
		quiet(t, e)
	})
}

// TestHangInPrefill_OfOthersOnVLLMIsFoundByProbes: with nothing to see, the idle limit and two probes find it.
func TestHangInPrefill_OfOthersOnVLLMIsFoundByProbes(t *testing.T) {
	e := scripted(t, scrape.VLLM, lab.Phase{State: lab.Idle, For: 5 * second}, lab.Phase{State: lab.HangPrefill, For: 5 * time.Minute})
	r := play(t, e, nil)
	r.in(lab.HangPrefill, 0).reaches(t, health.Hung, time.Minute, 100*second)
}

// TestSlotsHang_WhileHealthAnswers is case E4.
func TestSlotsHang_WhileHealthAnswers(t *testing.T) {
	e := scripted(t, scrape.LlamaCPP, busy, with(busy, lab.SlotsHang, time.Minute))
	if a := e.Get("/health", origin.Add(30*second)); a.Status != 200 {
		t.Fatalf("/health: %+v", a)
	}
	if a := e.Get("/slots", origin.Add(30*second)); !a.Never {
		t.Fatalf("/slots: %+v", a)
	}
	r := play(t, e, nil)
	after, within := hangs(scrape.LlamaCPP)
	r.in(lab.SlotsHang, 0).reaches(t, health.Hung, after, within)
}

// TestSlotsHang_BeforeTheFirstRead: that its queue is silent says that something is in flight.
func TestSlotsHang_BeforeTheFirstRead(t *testing.T) {
	e := scripted(t, scrape.LlamaCPP, with(busy, lab.SlotsHang, time.Minute))
	r := play(t, e, nil)
	r.in(lab.SlotsHang, 0).reaches(t, health.Hung, 29*second, 33*second)
	if e.Stats().Probes != 0 {
		t.Errorf("%+v", e.Stats())
	}
}

// TestFrozenMetrics_BytesAreTrusted: our tokens arrive.
func TestFrozenMetrics_BytesAreTrusted(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		e := scripted(t, kind, busy, with(busy, lab.Frozen, time.Minute))
		r := play(t, e, func(at time.Time) health.Ours {
			return health.Ours{InFlight: 1, Delivered: uint64(at.Sub(origin) / lab.DefaultStep)}
		})
		frozen := r.in(lab.Frozen, second)
		frozen.only(t, health.Busy)
		if n := frozen.count(func(s saw) bool { return s.CountersStuck }); n < len(frozen)*9/10 {
			t.Errorf("the flag was raised %d times of %d", n, len(frozen))
		}
	})
}

func TestSlowMetrics_IsBusy(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		slow := busy
		slow.Slow, slow.For = 700*time.Millisecond, time.Minute
		e := scripted(t, kind, busy, slow)
		r := play(t, e, nil)
		r[8:].only(t, health.Busy)
	})
}

// TestMetricsTimeOut_IsNoProgressAndNotDead: pages take longer than a read may.
func TestMetricsTimeOut_IsNoProgressAndNotDead(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		slow := with(busy, lab.PrefillWhole, time.Minute)
		slow.Slow = 2 * second
		e := scripted(t, kind, busy, slow)
		r := play(t, e, nil)
		r[8:].only(t, health.Busy, health.Hung)
		if n := r.count(func(s saw) bool { return s.Verdict == health.Hung }); n == 0 {
			t.Error("a minute without progress was nothing")
		}
		for _, s := range r.in(lab.PrefillWhole, 0) {
			if s.Verdict == health.Hung && s.into < 20*second {
				t.Fatal(s)
			}
		}
	})
}
