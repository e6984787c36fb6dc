// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package enginetest

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/snapshot"
)

// restore carries the states of a run's boundaries to the other engine, which must go on as the first did
// and compute only what wasn't.
func (s *suite) restore(t *testing.T) {
	for i, v := range s.variants(t) {
		t.Run(v.name, func(t *testing.T) {
			ref := s.record(t, s.first, v.job())
			limit := s.o.RestorePoints
			if i == 0 {
				limit = 0
			}
			for _, n := range boundaries(len(ref.IDs()), limit) {
				t.Run(fmt.Sprint(n), func(t *testing.T) { s.restoreAt(t, v.request, ref, n) })
			}
		})
	}
}

func (s *suite) restoreAt(t *testing.T, q engines.Request, ref *Recorder, n int) {
	m := s.meter(s.second)
	before := m.read(t)
	got := s.record(t, s.second, engines.Job{Request: q, Capture: true, From: state(t, ref, n)})
	fresh := uint64(len(got.IDs()) - n)
	rows := uint64(len(ref.PromptIDs()) + n - 1)
	m.expect(t, before, work{
		Steps: fresh, Captured: fresh,
		RestoredRows: rows, RestoredBytes: rows * uint64(s.d.Geometry.RowBytes()),
	})
	if s.o.Deterministic {
		same(t, ref, got)
		if got.Rows() != ref.Rows() {
			t.Errorf("%d rows at the end, reference has %d", got.Rows(), ref.Rows())
		}
	}
}

// chain hands a session over again and again: each engine goes on from what the other captured.
func (s *suite) chain(t *testing.T) {
	v := s.seeded()
	ref := s.record(t, s.first, v.job())
	r, e := ref, s.second
	for n := 2; n < s.o.Tokens; n += 3 {
		from := state(t, r, n)
		if s.o.Deterministic {
			sameState(t, state(t, ref, n), from)
		}
		r = s.record(t, e, engines.Job{Request: v.request, Capture: true, From: from})
		if s.o.Deterministic {
			same(t, ref, r)
		}
		if e == s.first {
			e = s.second
		} else {
			e = s.first
		}
	}
	plain := s.record(t, e, engines.Job{Request: v.request, From: state(t, ref, 2)})
	if s.o.Deterministic {
		same(t, ref, plain)
	}
}

// finishInState continues states that hold the request's finish already: nothing may be computed or loaded.
func (s *suite) finishInState(t *testing.T) {
	v := s.greedy()
	ref := s.record(t, s.first, v.job())
	n := s.o.Tokens / 2
	m := s.meter(s.second)
	none := func(t *testing.T, q engines.Request, from *snapshot.State) *Recorder {
		t.Helper()
		before := m.read(t)
		got := s.record(t, s.second, engines.Job{Request: q, Capture: true, From: from})
		m.expect(t, before, work{})
		return got
	}
	for _, limit := range []int{1, n - 1, n} {
		t.Run(fmt.Sprintf("Length%d", limit), func(t *testing.T) {
			q := v.request
			q.MaxTokens, q.MinTokens = limit, 0
			got := none(t, q, state(t, ref, n))
			if len(got.IDs()) != limit || got.Finish() != engines.FinishLength {
				t.Errorf("%d tokens and finish %q, want %d and %q", len(got.IDs()), got.Finish(), limit, engines.FinishLength)
			}
		})
	}
	t.Run("OneMore", func(t *testing.T) {
		q := v.request
		q.MaxTokens, q.MinTokens = n+1, 0
		got := s.record(t, s.second, engines.Job{Request: q, Capture: true, From: state(t, ref, n)})
		if s.o.Deterministic && len(got.IDs()) != n+1 {
			t.Errorf("%d tokens, want %d", len(got.IDs()), n+1)
		}
	})
	t.Run("Stop", func(t *testing.T) {
		q := s.stopped(t, ref).request
		got := none(t, q, state(t, ref, s.o.Tokens))
		if got.Finish() != engines.FinishStop {
			t.Errorf("finish is %q with stop strings %q in text %q", got.Finish(), q.Stop, got.Text())
		}
		if s.o.Deterministic {
			same(t, s.record(t, s.first, engines.Job{Request: q}), got)
		}
	})
	t.Run("Whole", func(t *testing.T) {
		same(t, ref, none(t, v.request, state(t, ref, s.o.Tokens)))
	})
}

func state(t *testing.T, r *Recorder, n int) *snapshot.State {
	t.Helper()
	s, err := r.State(n)
	if err != nil {
		t.Fatalf("State: %v", err)
	}
	if err := s.Validate(); err != nil {
		t.Fatalf("State: %v", err)
	}
	return s
}

func sameState(t *testing.T, want, got *snapshot.State) {
	t.Helper()
	if !cmp.Equal(want, got) {
		t.Errorf("states of %d tokens differ", len(want.Output))
	}
}
