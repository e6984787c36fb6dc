// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"testing"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/engines/sim"
)

// big plays an 8B model, without its time.
func big() sim.Config {
	c := sim.DefaultConfig()
	c.Step, c.PrefillToken = 0, 0
	return c
}

// BenchmarkModel_Step is the arithmetic of one step: the row, its digests, the candidates, the capture.
func BenchmarkModel_Step(b *testing.B) {
	c := big()
	row := make([]byte, c.KVBytesPerToken)
	const rows = 1024
	m := sim.NewModel(c)
	b.SetBytes(int64(c.KVBytesPerToken))
	b.ReportAllocs()
	pos := 0
	for b.Loop() {
		if pos == rows {
			if err := m.Reset(); err != nil {
				b.Fatal(err)
			}
			pos = 0
		}
		if err := m.Step(int32(pos), pos); err != nil {
			b.Fatal(err)
		}
		m.Logits()
		if err := m.Capture(pos, 1, row); err != nil {
			b.Fatal(err)
		}
		pos++
	}
}

// discard is a sink that only counts.
type discard struct{ tokens int }

func (d *discard) Prompt([]int32) error             { return nil }
func (d *discard) Prefilled(int, int, []byte) error { return nil }
func (d *discard) Token(engines.Token) error        { d.tokens++; return nil }

// BenchmarkEngine_Token is a token of a whole run, sampler and text included.
func BenchmarkEngine_Token(b *testing.B) {
	e := newEngine(b, big())
	job := engines.Job{Capture: true, Request: engines.Request{
		Model: "sim", Prompt: engines.Prompt{IDs: []int32{1, 2, 3}}, MaxTokens: 1000,
		Sampling: sampling.Params{Temperature: 0.8, TopP: 0.95, Seed: 1},
	}}
	b.SetBytes(int64(big().KVBytesPerToken))
	b.ReportAllocs()
	d := &discard{}
	for d.tokens < b.N {
		job.Request.MaxTokens = min(1000, b.N-d.tokens)
		if err := e.Run(b.Context(), job, d); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkModel_Load loads a state of 1,000 rows, 128 MiB.
func BenchmarkModel_Load(b *testing.B) {
	c := big()
	e := newEngine(b, c)
	r := enginetest.NewRecorder(mustDescribe(b, e).Geometry, true)
	job := engines.Job{Capture: true, Request: engines.Request{Model: "sim", Prompt: engines.Prompt{IDs: make([]int32, 1000)}, MaxTokens: 1}}
	if err := e.Run(b.Context(), job, r); err != nil {
		b.Fatal(err)
	}
	s, err := r.State(1)
	if err != nil {
		b.Fatal(err)
	}
	m := sim.NewModel(c)
	b.SetBytes(int64(s.Rows() * c.KVBytesPerToken))
	b.ReportAllocs()
	for b.Loop() {
		if err := m.Load(s); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExpand(b *testing.B) {
	row := make([]byte, 128<<10)
	b.SetBytes(int64(len(row)))
	seed := uint64(0)
	for b.Loop() {
		sim.Expand(row, seed)
		seed++
	}
}

func BenchmarkPiece(b *testing.B) {
	b.ReportAllocs()
	id := int32(sim.Words)
	for b.Loop() {
		sim.Piece(id)
		id = (id+7)%(sim.Vocabulary-sim.Words) + sim.Words
	}
}

func mustDescribe(t testing.TB, e engines.Engine) *engines.Description {
	t.Helper()
	d, err := e.Describe(t.Context())
	if err != nil {
		t.Fatalf("Describe: %v", err)
	}
	return d
}
