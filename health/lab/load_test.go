// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lab_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/lab"
	"github.com/seguekv/segue/health/scrape"
)

// heavy is an hour of work of all sorts, which an engine is well with.
func heavy(seed uint64, length time.Duration) []lab.Phase {
	r := rand.New(rand.NewPCG(seed, 1))
	between := func(low, high time.Duration) time.Duration { return low + time.Duration(r.Int64N(int64(high-low))) }
	step := between(10*time.Millisecond, 150*time.Millisecond)
	var out []lab.Phase
	for total := time.Duration(0); total < length; {
		p := lab.Phase{Streams: 1 + r.IntN(8), Step: step}
		switch r.IntN(6) {
		case 0:
			p.State, p.For, p.Streams = lab.Idle, between(time.Second, 40*second), 0
		case 1:
			p.State, p.For, p.Streams, p.Queue = lab.Decode, between(time.Minute, 10*time.Minute), lab.DefaultPlaces, 1+r.IntN(100)
		case 2:
			p.State, p.For, p.Step = lab.PrefillChunked, between(10*second, 5*time.Minute), between(50*time.Millisecond, 900*time.Millisecond)
		case 3:
			p.State, p.For = lab.PrefillWhole, between(time.Second, 25*second)
		case 4:
			p.State, p.For, p.Slow = lab.Decode, between(10*second, time.Minute), between(10*time.Millisecond, 600*time.Millisecond)
		default:
			p.State, p.For = lab.Decode, between(10*second, 5*time.Minute)
		}
		// What comes before a long step was decoding, so that its requests are known.
		if p.State == lab.PrefillWhole {
			out = append(out, lab.Phase{State: lab.Decode, For: 5 * second, Streams: p.Streams, Step: step})
		}
		out = append(out, p)
		total += p.For
	}
	return out
}

// TestHeavyLoad_NoFalseAlarmAndNoProbe: next to what the naive check makes of the same hours.
func TestHeavyLoad_NoFalseAlarmAndNoProbe(t *testing.T) {
	each(t, func(t *testing.T, kind scrape.Kind) {
		var naive lab.NaiveResult
		for seed := range uint64(2) {
			e := scripted(t, kind, heavy(seed, time.Hour)...)
			for _, s := range play(t, e, nil) {
				if s.Verdict.Lost() || s.Verdict == health.Degraded {
					t.Fatalf("seed %d, %v", seed, s)
				}
			}
			quiet(t, e)
			from, to := e.Span()
			n := lab.Naive{Fails: 1}.Run(e, from, to)
			naive.FalseAlarms, naive.ProbesWhileBusy = naive.FalseAlarms+n.FalseAlarms, naive.ProbesWhileBusy+n.ProbesWhileBusy
		}
		if naive.FalseAlarms == 0 || naive.ProbesWhileBusy == 0 {
			t.Errorf("the load is none that the naive check minds: %+v", naive)
		}
	})
}

func BenchmarkPlay_Hour(b *testing.B) {
	for _, kind := range []scrape.Kind{scrape.VLLM, scrape.SGLang, scrape.LlamaCPP} {
		b.Run(fmt.Sprint(kind), func(b *testing.B) {
			for b.Loop() {
				e, err := lab.New(kind, origin, heavy(1, time.Hour)...)
				if err != nil {
					b.Fatal(err)
				}
				p := lab.Play{Engine: e, Health: health.Defaults(), ProbeTimeout: 5 * second}
				if err := p.Run(b.Context(), origin, origin.Add(time.Hour)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
