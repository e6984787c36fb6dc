// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health_test

import (
	"slices"
	"time"

	"github.com/seguekv/segue/health"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// tester is what testing and rapid have in common.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// scene plays an engine to a detector, one read after the other.
type scene struct {
	t   tester
	cfg health.Config
	d   *health.Detector
	now time.Time
	// took is how long a read takes.
	took time.Duration
	// next is what the next read yields, its times and counters aside.
	next  health.Reading
	steps float64 // counter: steps of the engine
	gen   float64 // counter: tokens put out
	// probes counts what was asked for, drops what was withdrawn.
	probes, drops int
}

// warmed is the configuration in which the floor holds from the first read, as after a few gaps.
func warmed() health.Config {
	c := health.Defaults()
	c.Cold = c.Floor
	return c
}

func newScene(t tester) *scene { return newSceneOf(t, warmed()) }

func newSceneOf(t tester, cfg health.Config) *scene {
	t.Helper()
	d, err := health.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &scene{
		t: t, cfg: cfg, d: d, now: epoch, took: 5 * time.Millisecond,
		next: health.Reading{Incarnation: "a", Steps: true},
	}
}

// read waits for an interval and reads once.
func (s *scene) read() health.Assessment {
	s.now = s.now.Add(s.cfg.Interval)
	r := s.next
	r.At = s.now
	took := s.took
	if r.Outcome == health.TimedOut {
		took = s.cfg.ReadTimeout
	}
	s.now = s.now.Add(took)
	r.Until = s.now
	if r.Outcome == health.Answered && r.Counters == nil {
		r.Counters = []health.Counter{{Name: "steps", Value: s.steps}, {Name: "gen", Value: s.gen, Tokens: true}}
	}
	if r.Outcome != health.Answered {
		r.InFlight, r.Counters = 0, nil
	}
	a := s.d.Observe(r)
	s.next.Probe = health.ProbeNone
	if a.Probe {
		s.probes++
	}
	if a.DropProbe {
		s.drops++
	}
	return a
}

// token is a step that puts a token out.
func (s *scene) token() { s.steps, s.gen = s.steps+1, s.gen+1 }

// during reads for that long and hands each assessment to see, after change, if there is one.
func (s *scene) during(long time.Duration, change func(), see func(health.Assessment)) {
	for end := s.now.Add(long); s.now.Before(end); {
		if change != nil {
			change()
		}
		a := s.read()
		if see != nil {
			see(a)
		}
	}
}

// until reads until the verdict is given, and returns how long that took.
func (s *scene) until(v health.Verdict, within time.Duration) (health.Assessment, time.Duration) {
	s.t.Helper()
	begin := s.now
	var a health.Assessment
	for s.now.Sub(begin) < within+s.cfg.Interval+s.cfg.ReadTimeout {
		if a = s.read(); a.Verdict == v {
			if took := s.now.Sub(begin); took > within {
				s.t.Fatalf("%v after %v, want it within %v", v, took, within)
			}
			return a, s.now.Sub(begin)
		}
	}
	s.t.Fatalf("no %v within %v, but %v %v", v, within, a.Verdict, a.Reasons)
	return a, 0
}

// never returns a see for during that tolerates none of the verdicts.
func (s *scene) never(verdicts ...health.Verdict) func(health.Assessment) {
	s.t.Helper()
	return func(a health.Assessment) {
		s.t.Helper()
		if slices.Contains(verdicts, a.Verdict) {
			s.t.Fatalf("after %v: %v %v (silence %v of %v)", s.now.Sub(epoch), a.Verdict, a.Reasons, a.Silence, a.Limit)
		}
	}
}

// busy plays a decode for a second: from then on something is in flight, and has moved.
func (s *scene) busy() {
	s.t.Helper()
	s.next.InFlight = 1
	s.during(time.Second, s.token, nil)
	want(s.t, s.advance(), health.Busy)
}

// advance reads once more, with a token.
func (s *scene) advance() health.Assessment { s.token(); return s.read() }

func want(t tester, a health.Assessment, v health.Verdict, reasons ...health.Reason) {
	t.Helper()
	if a.Verdict != v {
		t.Fatalf("%v %v, want %v %v", a.Verdict, a.Reasons, v, reasons)
	}
	for _, r := range reasons {
		if !slices.Contains(a.Reasons, r) {
			t.Fatalf("%v %v, want the reason %v", a.Verdict, a.Reasons, r)
		}
	}
}
