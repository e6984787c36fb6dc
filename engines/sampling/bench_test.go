// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling_test

import (
	"math/rand/v2"
	"testing"

	"github.com/seguekv/segue/engines/sampling"
)

// logits49152 has the shape of a language model's: a wide bell and a few likely ids.
func logits49152() sampling.Logits {
	r := rand.New(rand.NewPCG(3, 4))
	v := make([]float32, 49152)
	for i := range v {
		v[i] = float32(r.NormFloat64()*2.5 - 2)
	}
	for range 30 {
		v[r.IntN(len(v))] = float32(8 + r.Float64()*8)
	}
	return sampling.Logits{Values: v}
}

func BenchmarkSampler(b *testing.B) {
	l := logits49152()
	flat := sampling.Logits{Values: make([]float32, len(l.Values))}
	eog := func(id int32) bool { return id == 2 }
	for _, c := range []struct {
		name   string
		p      sampling.Params
		l      sampling.Logits
		banned func(int32) bool
	}{
		{"greedy", sampling.Params{}, l, nil},
		{"greedy/ban", sampling.Params{}, l, eog},
		{"top_k=40,top_p=0.95", sampling.Params{Temperature: 0.8, TopK: 40, TopP: 0.95}, l, nil},
		{"top_k=40,ban", sampling.Params{Temperature: 0.8, TopK: 40}, l, eog},
		{"top_k=40,penalties", sampling.Params{Temperature: 0.8, TopK: 40, RepetitionPenalty: 1.1, PresencePenalty: 0.1}, l, nil},
		{"top_k=1000", sampling.Params{Temperature: 0.8, TopK: 1000}, l, nil},
		{"top_p=0.95", sampling.Params{Temperature: 0.8, TopP: 0.95}, l, nil},
		{"top_p=0.95,ban", sampling.Params{Temperature: 0.8, TopP: 0.95}, l, eog},
		{"min_p=0.05", sampling.Params{Temperature: 0.8, MinP: 0.05}, l, nil},
		{"all", sampling.Params{Temperature: 1}, l, nil},
		{"flat,top_p=0.95", sampling.Params{Temperature: 1, TopP: 0.95}, flat, nil},
		{"flat,top_k=40", sampling.Params{Temperature: 1, TopK: 40}, flat, nil},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := sampling.New(c.p)
			prompt := make([]int32, 1000)
			for i := range prompt {
				prompt[i] = int32(i * 7)
			}
			s.SetPrompt(prompt)
			s.Sample(c.l, c.banned)
			b.ReportAllocs()
			for b.Loop() {
				s.Sample(c.l, c.banned)
			}
		})
	}
}

func TestSampler_DoesNotAllocate(t *testing.T) {
	l := logits49152()
	for _, p := range []sampling.Params{{}, {Temperature: 1}, {Temperature: 0.8, TopK: 40, TopP: 0.95}, {Temperature: 0.8, TopK: 1000, TopP: 0.9}} {
		s := sampling.New(p)
		s.Sample(l, nil)
		if n := testing.AllocsPerRun(20, func() { s.Sample(l, nil) }); n > 0 {
			t.Errorf("%+v: %v allocations in a draw, want 0", p, n)
		}
	}
}
