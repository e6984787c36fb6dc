// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package enginetest

import (
	"testing"

	"github.com/seguekv/segue/engines"
)

// fresh tests runs without a state: order and lengths (by the recorder), counters, and repetition.
func (s *suite) fresh(t *testing.T) {
	for _, v := range s.variants(t) {
		t.Run(v.name, func(t *testing.T) {
			m := s.meter(s.first)
			before := m.read(t)
			r := s.record(t, s.first, v.job())
			p, n := len(r.PromptIDs()), len(r.IDs())
			m.expect(t, before, work{Prefilled: uint64(p), Steps: uint64(n - 1), Captured: uint64(p + n - 1)})
			if want := v.request.MinTokens; n < want {
				t.Errorf("%d tokens, want at least %d", n, want)
			}
			if len(v.request.Stop) > 0 && s.o.Deterministic && r.Finish() != engines.FinishStop {
				t.Errorf("finish is %q with stop strings %q in text %q", r.Finish(), v.request.Stop, r.Text())
			}

			before = m.read(t)
			plain := s.record(t, s.first, engines.Job{Request: v.request})
			m.expect(t, before, work{Prefilled: uint64(p), Steps: uint64(len(plain.IDs()) - 1)})
			if s.o.Deterministic {
				same(t, r, plain)
				same(t, r, s.record(t, s.second, v.job()))
			}
		})
	}
}

// fullContext fills a context: the request's limit doesn't say when, the context does.
func (s *suite) fullContext(t *testing.T) {
	if !s.o.FullContext {
		t.Skip("Options.FullContext is off")
	}
	const room = 5
	q := s.greedy().request
	q.Prompt = engines.Prompt{IDs: s.fill(t, s.d.ContextLength-room)}
	for _, limit := range []int{0, room + 100} {
		q.MaxTokens = limit
		r := s.recorder(engines.Job{Request: q, Capture: true})
		if err := s.run(t, s.first, engines.Job{Request: q, Capture: true}, r); err != nil {
			t.Fatalf("Run with MaxTokens %d: %v", limit, err)
		}
		if n := len(r.IDs()); n != room || r.Finish() != engines.FinishLength {
			t.Errorf("MaxTokens %d: %d tokens and finish %q, want the context's %d and %q", limit, n, r.Finish(), room, engines.FinishLength)
		}
		state, err := r.State(room - 1)
		if err != nil {
			t.Fatal(err)
		}
		job := engines.Job{Request: q, Capture: true, From: state}
		got := s.recorder(job)
		if err := s.run(t, s.second, job, got); err != nil {
			t.Fatalf("Run from the last boundary but one: %v", err)
		}
		if s.o.Deterministic {
			same(t, r, got)
		}
	}
}

// fill is a prompt of n ids, all of which a model has rendered.
func (s *suite) fill(t *testing.T, n int) []int32 {
	t.Helper()
	job := engines.Job{Request: s.greedy().request}
	job.Request.MaxTokens, job.Request.MinTokens = 1, 0
	some := s.record(t, s.first, job).PromptIDs()
	ids := make([]int32, 0, n+len(some))
	for len(ids) < n {
		ids = append(ids, some...)
	}
	return ids[:n]
}
