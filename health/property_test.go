// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/seguekv/segue/health"
)

// history draws readings of any kind, with times that jump and counters that come, go and fall.
func history(t *rapid.T, cfg health.Config) []health.Reading {
	now := epoch
	steps, gen := 10.0, 10.0
	delivered := uint64(0)
	out := make([]health.Reading, rapid.IntRange(1, 60).Draw(t, "readings"))
	for i := range out {
		now = now.Add(rapid.SampledFrom([]time.Duration{
			cfg.Interval, cfg.Interval, cfg.Interval, cfg.Interval / 5, cfg.Interval + cfg.Slack, cfg.IdleLimit, time.Hour, -time.Second,
		}).Draw(t, "pause"))
		r := health.Reading{
			At:          now,
			Outcome:     health.Outcome(rapid.SampledFrom([]int{0, 0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 6, 7, -1}).Draw(t, "outcome")),
			Incarnation: rapid.SampledFrom([]string{"", "a", "a", "a", "a", "b"}).Draw(t, "incarnation"),
			Alive:       rapid.Bool().Draw(t, "alive"),
			Proxy:       rapid.IntRange(0, 19).Draw(t, "proxy") == 0,
			Loading:     rapid.IntRange(0, 9).Draw(t, "loading") == 0,
			Sleeping:    rapid.IntRange(0, 9).Draw(t, "sleeping") == 0,
			Steps:       rapid.IntRange(0, 4).Draw(t, "steps") > 0,
			Probe:       health.Probe(rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3, 4}).Draw(t, "probe")),
		}
		if rapid.IntRange(0, 2).Draw(t, "has work") == 0 {
			r.InFlight = rapid.IntRange(-1, 3).Draw(t, "in flight")
			r.Ours.InFlight = rapid.IntRange(0, 2).Draw(t, "ours")
			r.Ours.Waiting = rapid.IntRange(0, r.Ours.InFlight).Draw(t, "waiting")
			r.Ours.Prefilling = rapid.IntRange(0, r.Ours.InFlight-r.Ours.Waiting).Draw(t, "prefilling")
			delivered += uint64(rapid.IntRange(0, 1).Draw(t, "delivered"))
		}
		r.Ours.Delivered = delivered
		took := rapid.SampledFrom([]time.Duration{time.Millisecond, time.Millisecond, cfg.ReadTimeout, cfg.ReadTimeout + 2*cfg.Slack, -time.Second}).Draw(t, "took")
		now = now.Add(took)
		r.Until = now
		steps += rapid.SampledFrom([]float64{0, 0, 0, 1, 5, -3}).Draw(t, "step")
		gen += rapid.SampledFrom([]float64{0, 0, 0, 1}).Draw(t, "emit")
		odd := rapid.SampledFrom([]float64{0, 0, 0, math.NaN(), math.Inf(1), math.Inf(-1)}).Draw(t, "odd")
		r.Counters = []health.Counter{
			{Name: "steps", Value: steps + odd}, {Name: "gen", Value: gen, Tokens: true}, {Name: "slots", Value: float64(r.InFlight), Gauge: true},
		}
		r.Counters = r.Counters[rapid.SampledFrom([]int{0, 0, 0, 1, 3}).Draw(t, "gone"):]
		out[i] = r
	}
	return out
}

func observe(t *rapid.T, cfg health.Config, readings []health.Reading) []health.Assessment {
	d, err := health.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]health.Assessment, len(readings))
	for i, r := range readings {
		out[i] = d.Observe(r)
	}
	return out
}

// same compares assessments but for the times at which they were made, and the silence of those of an earlier time.
func same(t *rapid.T, what string, a, b []health.Assessment) {
	for i := range a {
		b[i].At = a[i].At
	}
	if diff := cmp.Diff(a, b); diff != "" {
		t.Fatalf("%s:\n%s", what, diff)
	}
}

// A verdict is a function of the readings: again and at another time they give the same.
func TestDetector_OnlyReadingsCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := warmed()
		readings := history(t, cfg)
		first := observe(t, cfg, readings)
		same(t, "played again", first, observe(t, cfg, readings))
		by := time.Duration(rapid.Int64Range(-int64(24*365*time.Hour), int64(24*365*time.Hour)).Draw(t, "by"))
		for i := range readings {
			readings[i].At, readings[i].Until = readings[i].At.Add(by), readings[i].Until.Add(by)
		}
		same(t, "at another time", first, observe(t, cfg, readings))
	})
}

// What a counter of another process says doesn't matter: with another starting point for each process all is the same.
func TestDetector_ProcessesAreNeverCompared(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := warmed()
		readings := history(t, cfg)
		incarnation := "a"
		for i := range readings {
			if readings[i].Incarnation == "" {
				readings[i].Incarnation = incarnation
			}
			incarnation = readings[i].Incarnation
		}
		first := observe(t, cfg, readings)
		by := map[string]float64{
			"a": float64(rapid.IntRange(-1000, 1000).Draw(t, "of a")), "b": float64(rapid.IntRange(-1000, 1000).Draw(t, "of b")),
		}
		for i := range readings {
			moved := make([]health.Counter, len(readings[i].Counters))
			for j, c := range readings[i].Counters {
				c.Value += by[readings[i].Incarnation]
				moved[j] = c
			}
			readings[i].Counters = moved
		}
		same(t, "with other starting points", first, observe(t, cfg, readings))
	})
}

// A probe is asked for only of an engine that is known to have nothing to do, and while none is outstanding. It is
// withdrawn as soon as there is work.
func TestDetector_ProbesOnlyTheIdle(t *testing.T) {
	asked, dropped := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		cfg := warmed()
		d, err := health.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		outstanding := false
		for i, r := range history(t, cfg) {
			if rapid.IntRange(0, 9).Draw(t, "demand") == 0 {
				d.Demand(r.At)
			}
			a := d.Observe(r)
			outstanding = outstanding && r.Probe == health.ProbeNone
			busy := r.Ours.InFlight > 0 || r.Outcome == health.Answered && !r.Proxy && (r.InFlight > 1 || r.InFlight > 0 && !outstanding)
			known := r.Outcome == health.Answered || r.Outcome == health.Opaque
			if a.Probe && (busy || !known || outstanding || r.Proxy || r.Loading || r.Sleeping) {
				t.Fatalf("reading %d: probe with outstanding=%t of %+v", i, outstanding, r)
			}
			if outstanding && !a.DropProbe && (busy || !known || a.NewEngine || r.Proxy) {
				t.Fatalf("reading %d: the probe goes on, of %+v", i, r)
			}
			if a.DropProbe && !outstanding {
				t.Fatalf("reading %d: dropped what isn't outstanding", i)
			}
			if a.Probe {
				outstanding = true
				asked++
			}
			if a.DropProbe {
				dropped++
			}
		}
	})
	if asked == 0 || dropped == 0 {
		t.Fatalf("%d probes asked for, %d dropped: nothing is shown", asked, dropped)
	}
}

// While the reader itself stood still nothing is lost but what is known to be.
func TestDetector_VoidReadsLoseNothing(t *testing.T) {
	voids := 0
	rapid.Check(t, func(t *rapid.T) {
		cfg := warmed()
		readings := history(t, cfg)
		for i, a := range observe(t, cfg, readings) {
			r := readings[i]
			void := r.Until.Before(r.At) || r.Until.Sub(r.At) > cfg.ReadTimeout+cfg.Slack
			if i > 0 {
				pause := r.At.Sub(readings[i-1].Until)
				void = void || pause < 0 || pause > cfg.Interval+cfg.Slack
			}
			if !void {
				continue
			}
			voids++
			if a.Verdict.Lost() && r.Outcome != health.Refused && r.Outcome != health.Gone {
				t.Fatalf("reading %d is void, and %v %v", i, a.Verdict, a.Reasons)
			}
		}
	})
	if voids == 0 {
		t.Fatal("no void read: nothing is shown")
	}
}

// The limit of silence stays between its bounds.
func TestDetector_LimitIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := warmed()
		cfg.Factor = rapid.Float64Range(1, 1000).Draw(t, "factor")
		readings := history(t, cfg)
		for i, a := range observe(t, cfg, readings) {
			r := readings[i]
			low, high := cfg.Floor, max(cfg.Ceiling, cfg.BlindPrefill)
			if r.Ours.Prefilling == 0 {
				high = max(cfg.Ceiling, cfg.BlindFloor)
			}
			if a.Limit != 0 && (a.Limit < low || a.Limit > high) {
				t.Fatalf("reading %d: limit %v, not between %v and %v", i, a.Limit, low, high)
			}
		}
	})
}

// Whoever shows progress once in each limit of silence is never hung, whatever else the reads find.
func TestDetector_ProgressIsNeverHung(t *testing.T) {
	quiet := 0
	rapid.Check(t, func(t *rapid.T) {
		cfg := warmed()
		cfg.Interval, cfg.ReadTimeout = 100*time.Millisecond, 100*time.Millisecond
		s := newSceneOf(t, cfg)
		shown, before := s.now, s.steps
		for range rapid.IntRange(20, 200).Draw(t, "reads") {
			s.next.Outcome = rapid.SampledFrom([]health.Outcome{health.Answered, health.Answered, health.TimedOut, health.Failed}).Draw(t, "outcome")
			s.took = time.Duration(rapid.Int64Range(0, int64(cfg.ReadTimeout)).Draw(t, "took"))
			s.next.InFlight = rapid.IntRange(1, 3).Draw(t, "in flight")
			if s.now.Add(2*(cfg.Interval+cfg.ReadTimeout)).Sub(shown) > cfg.Floor {
				s.next.Outcome = health.Answered
				s.steps++
			}
			a := s.read()
			if s.steps != before {
				shown, before = s.now, s.steps
			} else {
				quiet++
			}
			if a.Verdict.Lost() {
				t.Fatalf("%v %v, silence %v of %v", a.Verdict, a.Reasons, a.Silence, a.Limit)
			}
		}
	})
	if quiet == 0 {
		t.Fatal("each read showed progress: nothing is shown")
	}
}

// Whatever was before: an engine that has something in flight and stands still is hung after the limit of silence.
func TestDetector_FrozenIsHung(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := warmed()
		readings := history(t, cfg)
		d, err := health.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range readings {
			d.Observe(r)
		}
		outcome, took := health.Answered, time.Millisecond
		now := readings[len(readings)-1].Until
		var begin time.Time
		for i := 0; ; i++ {
			r := health.Reading{At: now.Add(cfg.Interval), Outcome: outcome, Incarnation: "a", Steps: true, InFlight: 2}
			r.Ours.Delivered = readings[len(readings)-1].Ours.Delivered
			r.Counters = []health.Counter{{Name: "steps", Value: 5000}}
			if i > 0 && rapid.Bool().Draw(t, "times out") {
				r.Outcome, r.InFlight, r.Counters = health.TimedOut, 0, nil
				took = cfg.ReadTimeout
			}
			r.Until = r.At.Add(took)
			now = r.Until
			a := d.Observe(r)
			if i == 0 {
				begin = now
			}
			if a.Verdict == health.Hung {
				return
			}
			if bound := max(a.Limit, 2*(cfg.Interval+cfg.ReadTimeout)) + cfg.Interval + cfg.ReadTimeout; now.Sub(begin) > bound {
				t.Fatalf("after %v: %v %v, limit %v", now.Sub(begin), a.Verdict, a.Reasons, a.Limit)
			}
		}
	})
}
