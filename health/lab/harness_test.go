// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lab_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/lab"
	"github.com/seguekv/segue/health/scrape"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var origin = time.Unix(1_800_000_000, 0)

func scripted(t *testing.T, kind scrape.Kind, script ...lab.Phase) *lab.Engine {
	t.Helper()
	e, err := lab.New(kind, origin, script...)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// saw is one assessment and the phase that it fell into.
type saw struct {
	health.Assessment
	reading health.Reading
	phase   lab.Phase
	into    time.Duration // since the phase began
	probes  int           // so far
}

func (s saw) String() string {
	var why []string
	for _, r := range s.Reasons {
		why = append(why, string(r))
	}
	return fmt.Sprintf("%v into %s: %s (%s), %d in flight, silent for %v of %v, %s", s.into, s.phase.State, s.Verdict, strings.Join(why, ", "), s.InFlight, s.Silence, s.Limit, s.Detail)
}

// record is a play from its beginning to its end.
type record []saw

func play(t *testing.T, e *lab.Engine, ours func(time.Time) health.Ours) record {
	t.Helper()
	var out record
	from, to := e.Span()
	p := lab.Play{Engine: e, Health: health.Defaults(), ProbeTimeout: 5 * time.Second, Ours: ours}
	p.Seen = func(r health.Reading, a health.Assessment) {
		phase, began := e.Phase(a.At)
		out = append(out, saw{a, r, phase, a.At.Sub(began), e.Stats().Probes})
	}
	if err := p.Run(t.Context(), from, to); err != nil {
		t.Fatal(err)
	}
	return out
}

// in takes what fell into phases of that state, from a time on that the reader needs to see it.
func (r record) in(state lab.State, from time.Duration) record {
	return slices.DeleteFunc(slices.Clone(r), func(s saw) bool { return s.phase.State != state || s.into < from })
}

// only checks that there was no other verdict, and at least one.
func (r record) only(t *testing.T, verdicts ...health.Verdict) {
	t.Helper()
	if len(r) == 0 {
		t.Error("nothing was read")
	}
	for _, s := range r {
		if !slices.Contains(verdicts, s.Verdict) {
			t.Errorf("not one of %v: %v", verdicts, s)
			return
		}
	}
}

// reaches checks that the verdict comes within that time of the phase, not before the other, and stays.
func (r record) reaches(t *testing.T, v health.Verdict, after, within time.Duration) {
	t.Helper()
	i := slices.IndexFunc(r, func(s saw) bool { return s.Verdict == v })
	switch {
	case i < 0:
		t.Errorf("never %v; last %v", v, r[max(len(r)-1, 0):])
	case r[i].into < after || r[i].into > within:
		t.Errorf("%v not between %v and %v: %v", v, after, within, r[i])
	default:
		r[i:].only(t, v)
	}
}

func (r record) count(f func(saw) bool) int {
	n := 0
	for _, s := range r {
		if f(s) {
			n++
		}
	}
	return n
}

func asked(s saw) bool { return s.Probe }
func fresh(s saw) bool { return s.NewEngine }

// quiet checks that nobody's work was disturbed, and no page was asked for that makes an engine work.
func quiet(t *testing.T, e *lab.Engine) {
	t.Helper()
	if s := e.Stats(); s.ProbesWhileBusy != 0 || s.Generated != 0 || s.Woken != 0 {
		t.Errorf("%+v", s)
	}
}

func each(t *testing.T, f func(*testing.T, scrape.Kind)) {
	t.Helper()
	for _, kind := range []scrape.Kind{scrape.VLLM, scrape.SGLang, scrape.LlamaCPP} {
		t.Run(kind.String(), func(t *testing.T) { f(t, kind) })
	}
}

// hangs is when a hang of an engine of that kind is found: where steps without output aren't counted it takes the limit for
// prompts.
func hangs(kind scrape.Kind) (after, within time.Duration) {
	if kind == scrape.VLLM {
		return 29 * time.Second, 31 * time.Second
	}
	return 1500 * time.Millisecond, 3 * time.Second
}
