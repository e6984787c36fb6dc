// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/scrape"
)

func one(inFlight int, tokens float64) scrape.Engine {
	return scrape.Engine{InFlight: inFlight, Open: -1, Idle: math.NaN(), Counters: []health.Counter{{Name: "tokens", Value: tokens, Tokens: true}}}
}

func several(engines ...scrape.Engine) scrape.Facts {
	for i := range engines {
		engines[i].Name = fmt.Sprint(i)
	}
	return scrape.Facts{Kind: scrape.VLLM, Engines: engines, Incarnation: "a"}
}

// moves says for each page whether a counter of its reading moved.
func moves(pages ...scrape.Facts) string {
	var track scrape.Track
	var before []health.Counter
	var out strings.Builder
	for _, f := range pages {
		r := track.Reading(f)
		moved := false
		for i, c := range r.Counters {
			moved = moved || i < len(before) && before[i].Value != c.Value
		}
		if moved {
			out.WriteString("m")
		} else {
			out.WriteString("-")
		}
		before = r.Counters
	}
	return out.String()
}

// TestTrack_OneOfSeveralEnginesHangs: the others can't hide it; one without work doesn't hold them up.
func TestTrack_OneOfSeveralEnginesHangs(t *testing.T) {
	if got := moves(several(one(1, 1), one(1, 1)), several(one(1, 2), one(1, 2)), several(one(1, 3), one(1, 3))); got != "-mm" {
		t.Errorf("both move: %s", got)
	}
	if got := moves(several(one(1, 1), one(1, 1)), several(one(1, 2), one(1, 2)), several(one(1, 3), one(1, 2)), several(one(1, 4), one(1, 2)), several(one(1, 5), one(1, 2))); got != "-m---" {
		t.Errorf("the second hangs: %s", got)
	}
	if got := moves(several(one(1, 1), one(0, 7)), several(one(1, 2), one(0, 7)), several(one(1, 3), one(0, 7))); got != "-mm" {
		t.Errorf("the second is idle: %s", got)
	}
	if got := moves(several(one(1, 1), one(1, 1)), several(one(1, 2), one(1, 1)), several(one(1, 2), one(1, 2)), several(one(1, 3), one(1, 2)), several(one(1, 3), one(1, 3))); got != "--m-m" {
		t.Errorf("they take turns: %s", got)
	}
}

// TestTrack_OneOfSeveralEnginesRestarts: none of its counters is compared with the old one's.
func TestTrack_OneOfSeveralEnginesRestarts(t *testing.T) {
	var track scrape.Track
	a := track.Reading(several(one(1, 50), one(1, 50)))
	b := track.Reading(several(one(1, 51), one(1, 2)))
	c := track.Reading(several(one(1, 52)))
	if a.Incarnation == b.Incarnation || a.Incarnation == "" {
		t.Errorf("%q, then %q", a.Incarnation, b.Incarnation)
	}
	if c.InFlight != 1 {
		t.Errorf("%+v", c)
	}
}

func sgl(running, open int, idle, tokens float64) scrape.Facts {
	e := one(running, tokens)
	e.Open, e.Idle = open, idle
	return scrape.Facts{Kind: scrape.SGLang, Engines: []scrape.Engine{e}}
}

// inFlights are the numbers of requests of a row of pages.
func inFlights(pages ...scrape.Facts) string {
	var track scrape.Track
	var out []int
	for _, f := range pages {
		out = append(out, track.Reading(f).InFlight)
	}
	return fmt.Sprint(out)
}

// TestTrack_SGLangGaugesAreLate: they say 3 for 30 s after the last request, and an aborted one is open for ever. Idle
// seconds that grow say what is so.
func TestTrack_SGLangGaugesAreLate(t *testing.T) {
	if got := inFlights(sgl(3, 3, 10, 5), sgl(3, 3, 10, 6), sgl(3, 1, 10.2, 7), sgl(3, 1, 10.45, 7), sgl(3, 1, 10.7, 7)); got != "[3 3 3 0 0]" {
		t.Error(got)
	}
	// A request comes to the idle scheduler, which hangs with it: the gauges say nothing of it yet.
	if got := inFlights(sgl(0, 0, 10, 5), sgl(0, 0, 10.2, 5), sgl(0, 0, 10.4, 5), sgl(0, 1, 10.4, 5), sgl(0, 1, 10.4, 5)); got != "[0 0 0 1 1]" {
		t.Error(got)
	}
	// It sleeps for a second at a time while it is idle: after one round that is known.
	if got := inFlights(sgl(0, 1, 10, 5), sgl(0, 1, 11, 5), sgl(0, 1, 11, 5), sgl(0, 1, 11, 5), sgl(0, 1, 12, 5), sgl(0, 1, 12, 5), sgl(0, 1, 12, 5), sgl(0, 1, 13, 5)); got != "[1 0 1 1 0 0 0 0]" {
		t.Error(got)
	}
	// Older versions don't count idle seconds: what isn't open isn't in flight.
	if got := inFlights(sgl(3, 0, math.NaN(), 5), sgl(3, 2, math.NaN(), 5)); got != "[0 2]" {
		t.Error(got)
	}
}

// TestTrack_StepsNeedAKnownRate: silence is a sign only where a step is known to be short.
func TestTrack_StepsNeedAKnownRate(t *testing.T) {
	facts := func(kind scrape.Kind, rate float64, stepwise bool) scrape.Facts {
		return scrape.Facts{Kind: kind, Engines: []scrape.Engine{one(1, 1)}, PromptRate: rate, Stepwise: stepwise}
	}
	for _, c := range []struct {
		f     scrape.Facts
		chunk int
		want  bool
	}{
		{facts(scrape.LlamaCPP, 3000, true), 0, true},
		{facts(scrape.LlamaCPP, 300, true), 0, false},
		{facts(scrape.LlamaCPP, 0, true), 0, false},
		{facts(scrape.SGLang, 9000, true), 8192, true},
		{facts(scrape.SGLang, 9000, true), 0, false},
		{facts(scrape.SGLang, 9000, true), -1, false},
		{facts(scrape.SGLang, 5000, true), 8192, false},
		{facts(scrape.VLLM, 9000, false), 2048, false},
	} {
		track := scrape.Track{Chunk: c.chunk}
		if got := track.Reading(c.f).Steps; got != c.want {
			t.Errorf("%v at %v a second in chunks of %d: %v", c.f.Kind, c.f.PromptRate, c.chunk, got)
		}
	}
}

// TestTrack_Balancer: process lives that come back aren't restarts.
func TestTrack_Balancer(t *testing.T) {
	for lives, want := range map[string]bool{
		"aaaa": false, "aabbcc": false, "ab": false, "aba": false, "abab": true, "abcabc": true, "abcdefghijklmnop": false, "aabbaabb": true,
	} {
		var track scrape.Track
		var r health.Reading
		for _, life := range lives {
			r = track.Reading(scrape.Facts{Kind: scrape.VLLM, Engines: []scrape.Engine{one(1, 1)}, Incarnation: string(life)})
		}
		if track.Balancer() != want || r.Proxy != want || want && r.Outcome != health.Opaque {
			t.Errorf("%s: %v, %+v", lives, track.Balancer(), r)
		}
	}
}

func TestTrack_SleepingAndLoading(t *testing.T) {
	var track scrape.Track
	if r := track.Reading(scrape.Facts{Kind: scrape.LlamaCPP, Sleeping: true}); !r.Sleeping || r.Outcome != health.Answered || r.InFlight != 0 {
		t.Errorf("%+v", r)
	}
	if r := track.Reading(scrape.Facts{Kind: scrape.LlamaCPP, Loading: true}); !r.Loading {
		t.Errorf("%+v", r)
	}
}
