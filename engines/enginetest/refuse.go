// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package enginetest

import (
	"errors"
	"testing"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/snapshot"
)

// silent is a sink that must not be called.
func silent(t *testing.T, r *Recorder) engines.Sink {
	return tap{r, func(e event, index int) error {
		t.Errorf("sink call %d, index %d of a refused run", e, index)
		return errors.New("enginetest: refused run calls its sink")
	}}
}

// refusedRequests sends requests that no engine can run.
func (s *suite) refusedRequests(t *testing.T) {
	good := s.greedy().request
	for _, c := range []struct {
		name   string
		change func(q *engines.Request)
	}{
		{"NoPrompt", func(q *engines.Request) { q.Prompt = engines.Prompt{} }},
		{"IDOutside", func(q *engines.Request) { q.Prompt = engines.Prompt{IDs: []int32{0, int32(s.d.Vocabulary)}} }},
		{"IDNegative", func(q *engines.Request) { q.Prompt = engines.Prompt{IDs: []int32{-1}} }},
		{"Temperature", func(q *engines.Request) { q.Sampling.Temperature = -1 }},
		{"MaxTokens", func(q *engines.Request) { q.MaxTokens = -1 }},
		{"MinTokens", func(q *engines.Request) { q.MinTokens = -1 }},
		{"EmptyStop", func(q *engines.Request) { q.Stop = []string{""} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := good
			c.change(&q)
			job := engines.Job{Request: q, Capture: true}
			err := s.run(t, s.first, job, silent(t, s.recorder(job)))
			if e, ok := errors.AsType[*engines.RequestError](err); !ok || e.Field == "" || e.Reason == "" {
				t.Errorf("Run: %v, want a *engines.RequestError with a field and a reason", err)
			}
		})
	}
	t.Run("TooLong", func(t *testing.T) {
		q := good
		q.Prompt = engines.Prompt{IDs: s.fill(t, s.d.ContextLength)}
		m := s.meter(s.first)
		before := m.read(t)
		job := engines.Job{Request: q, Capture: true}
		err := s.run(t, s.first, job, silent(t, s.recorder(job)))
		e, ok := errors.AsType[*engines.PromptTooLongError](err)
		if !ok || e.Tokens != s.d.ContextLength || e.Limit != s.d.ContextLength {
			t.Errorf("Run: %v, want a *engines.PromptTooLongError of %d tokens and as many positions", err, s.d.ContextLength)
		}
		m.expect(t, before, work{})
	})
	s.record(t, s.first, s.greedy().job())
}

// refusedStates continues states that don't fit the engine, the request or themselves.
func (s *suite) refusedStates(t *testing.T) {
	v := s.greedy()
	ref := s.record(t, s.first, v.job())
	n := s.o.Tokens / 2
	rb := s.d.Geometry.RowBytes()
	for _, c := range []struct {
		name   string
		change func(x *snapshot.State)
	}{
		{"NoGeometry", func(x *snapshot.State) { x.Geometry = snapshot.Geometry{} }},
		{"ElementType", func(x *snapshot.State) { x.Geometry.Layers[0].KType += "x" }},
		{"OneLayerMore", func(x *snapshot.State) {
			x.Geometry.Layers = append(x.Geometry.Layers, snapshot.LayerRows{KType: "f16", VType: "f16"})
		}},
		{"OneRowSize", func(x *snapshot.State) {
			// The bytes of the state stay as long as they must be.
			last := &x.Geometry.Layers[len(x.Geometry.Layers)-1]
			last.KBytes, last.VBytes = last.KBytes+last.VBytes, 0
		}},
		{"NoPrompt", func(x *snapshot.State) { x.Prompt = nil }},
		{"NoOutput", func(x *snapshot.State) { x.Output = nil; x.Sampler.Draws = 0 }},
		{"NoBlocks", func(x *snapshot.State) { x.Blocks = nil }},
		{"BlockMissing", func(x *snapshot.State) { x.Blocks = x.Blocks[1:] }},
		{"BlockMore", func(x *snapshot.State) { x.Blocks = append(x.Blocks, x.Blocks[0]) }},
		{"RowMissing", func(x *snapshot.State) {
			b := &x.Blocks[len(x.Blocks)-1]
			*b = (*b)[:len(*b)-rb]
		}},
		{"ByteMissing", func(x *snapshot.State) { x.Blocks[0] = x.Blocks[0][:len(x.Blocks[0])-1] }},
		{"Draws", func(x *snapshot.State) { x.Sampler.Draws++ }},
		{"Seed", func(x *snapshot.State) { x.Sampler.Seed++ }},
		{"PromptID", func(x *snapshot.State) { x.Prompt[0] = int32(s.d.Vocabulary) }},
		{"OutputID", func(x *snapshot.State) { x.Output[len(x.Output)-1] = -1 }},
		{"LongerThanContext", func(x *snapshot.State) {
			for len(x.Prompt)+len(x.Output) <= s.d.ContextLength {
				x.Output = append(x.Output, x.Output[0])
			}
			x.Sampler.Draws = uint64(len(x.Output))
			block := make([]byte, snapshot.BlockRows*rb)
			for x.Blocks = nil; len(x.Blocks)*snapshot.BlockRows < x.Rows(); {
				x.Blocks = append(x.Blocks, block)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			from := Clone(state(t, ref, n))
			c.change(from)
			m := s.meter(s.second)
			before := m.read(t)
			q := v.request
			q.MaxTokens, q.MinTokens = 0, 0
			err := s.run(t, s.second, engines.Job{Request: q, Capture: true, From: from}, silent(t, NewRecorder(s.d.Geometry, true)))
			if !errors.Is(err, engines.ErrState) {
				t.Errorf("Run: %v, want %v", err, engines.ErrState)
			}
			m.expect(t, before, work{})
		})
	}
	got := s.record(t, s.second, engines.Job{Request: v.request, Capture: true, From: state(t, ref, n)})
	if s.o.Deterministic {
		same(t, ref, got)
	}
}
