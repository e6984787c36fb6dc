// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/snapshot"
)

var nan, inf = float32(math.NaN()), float32(math.Inf(1))

func paramsGen() *rapid.Generator[sampling.Params] {
	return rapid.Custom(func(t *rapid.T) sampling.Params {
		p := sampling.Params{
			Temperature:       rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0, 2), rapid.Just(1e-310)).Draw(t, "temperature"),
			TopK:              rapid.OneOf(rapid.Just(0), rapid.IntRange(1, 8), rapid.IntRange(1, 700)).Draw(t, "top_k"),
			TopP:              rapid.OneOf(rapid.Just(1.0), rapid.Float64Range(0, 1)).Draw(t, "top_p"),
			MinP:              rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0, 1)).Draw(t, "min_p"),
			RepetitionPenalty: rapid.OneOf(rapid.Just(1.0), rapid.Float64Range(0.1, 3)).Draw(t, "repetition_penalty"),
			PresencePenalty:   rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(-2, 2)).Draw(t, "presence_penalty"),
			FrequencyPenalty:  rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(-2, 2)).Draw(t, "frequency_penalty"),
			Seed:              rapid.Uint64().Draw(t, "seed"),
		}
		if rapid.Bool().Draw(t, "biased") {
			p.LogitBias = rapid.MapOf(rapid.Int32Range(0, 40), rapid.Float64Range(-100, 100)).Draw(t, "logit_bias")
		}
		return p
	})
}

// valueGen has many ties, and values that are no candidates.
func valueGen() *rapid.Generator[float32] {
	return rapid.OneOf(
		rapid.Float32Range(-20, 20),
		rapid.Map(rapid.IntRange(-3, 3), func(i int) float32 { return float32(i) }),
		rapid.SampledFrom([]float32{0, float32(math.Copysign(0, -1)), math.MaxFloat32, -math.MaxFloat32, nan, inf, -inf}),
	)
}

func logitsGen() *rapid.Generator[sampling.Logits] {
	return rapid.Custom(func(t *rapid.T) sampling.Logits {
		if rapid.IntRange(0, 9).Draw(t, "size") == 0 { // enough candidates for the radix selection
			r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "values"), 0))
			v := make([]float32, 600)
			for i := range v {
				v[i] = float32(math.Round(r.NormFloat64()*16) / 8)
			}
			return sampling.Logits{Values: v}
		}
		l := sampling.Logits{Values: rapid.SliceOfN(valueGen(), 1, 40).Draw(t, "logits")}
		if rapid.Bool().Draw(t, "listed") {
			l.IDs = rapid.SliceOfNDistinct(rapid.Int32Range(0, 60), len(l.Values), len(l.Values), rapid.ID[int32]).Draw(t, "ids")
		}
		return l
	})
}

func banGen() *rapid.Generator[func(int32) bool] {
	return rapid.Custom(func(t *rapid.T) func(int32) bool {
		switch rapid.IntRange(0, 4).Draw(t, "ban") {
		case 0, 1:
			return nil
		case 2:
			return func(int32) bool { return true }
		default:
			ids := rapid.SliceOfN(rapid.Int32Range(0, 40), 0, 20).Draw(t, "banned")
			return func(id int32) bool { return slices.Contains(ids, id) }
		}
	})
}

func TestSampler_EqualsReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := paramsGen().Draw(t, "params")
		prompt := rapid.SliceOfN(rapid.Int32Range(0, 60), 0, 10).Draw(t, "prompt")
		s, r := sampling.New(p), &reference{p: p, prompt: prompt}
		s.SetPrompt(prompt)
		for i := range rapid.IntRange(1, 12).Draw(t, "draws") {
			l, banned := logitsGen().Draw(t, "l"), banGen().Draw(t, "b")
			before := slices.Clone(l.Values)
			got, want := s.Sample(l, banned), r.sample(l, banned)
			if got != want {
				t.Fatalf("draw %d = %d, want %d", i, got, want)
			}
			for j := range before {
				if math.Float32bits(before[j]) != math.Float32bits(l.Values[j]) {
					t.Fatalf("draw %d changed logit %d", i, j)
				}
			}
			if got, want := s.State(), (snapshot.Sampler{Seed: p.Seed, Draws: uint64(i) + 1}); got != want {
				t.Fatalf("state %+v, want %+v", got, want)
			}
		}
	})
}

func TestSampler_ReplayGivesTheSameDraws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := paramsGen().Draw(t, "params")
		prompt := rapid.SliceOfN(rapid.Int32Range(0, 40), 0, 10).Draw(t, "prompt")
		steps := rapid.SliceOfN(logitsGen(), 2, 12).Draw(t, "steps")
		cut := rapid.IntRange(0, len(steps)-1).Draw(t, "cut")

		whole := sampling.New(p)
		whole.SetPrompt(prompt)
		var ids []int32
		for _, l := range steps {
			ids = append(ids, whole.Sample(l, nil))
		}

		resumed := sampling.New(p)
		resumed.SetPrompt(prompt)
		for _, id := range ids[:cut] {
			resumed.Accept(id)
		}
		for i, l := range steps[cut:] {
			if got := resumed.Sample(l, nil); got != ids[cut+i] {
				t.Fatalf("after %d replayed ids draw %d = %d, want %d", cut, cut+i, got, ids[cut+i])
			}
		}
		if got, want := resumed.State(), whole.State(); got != want {
			t.Fatalf("state %+v, want %+v", got, want)
		}
	})
}

func TestSampler_OrderOfListedCandidatesDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := paramsGen().Draw(t, "params")
		v := rapid.SliceOfN(valueGen(), 1, 40).Draw(t, "logits")
		ids := make([]int32, len(v))
		for i := range ids {
			ids[i] = int32(i)
		}
		order := rapid.Permutation(ids).Draw(t, "order")
		shuffled := make([]float32, len(v))
		for i, id := range order {
			shuffled[i] = v[id]
		}
		a, b := sampling.New(p), sampling.New(p)
		for range 3 {
			x := a.Sample(sampling.Logits{Values: v}, nil)
			y := b.Sample(sampling.Logits{IDs: order, Values: shuffled}, nil)
			if x != y {
				t.Fatalf("dense draw %d, shuffled draw %d", x, y)
			}
		}
	})
}

func TestSampler_NotFiniteIsNeverDrawn(t *testing.T) {
	bad := []float32{nan, inf, -inf}
	rapid.Check(t, func(t *rapid.T) {
		p := paramsGen().Draw(t, "params")
		v := rapid.SliceOfN(rapid.SampledFrom(bad), 1, 40).Draw(t, "logits")
		good := rapid.IntRange(0, len(v)-1).Draw(t, "good")
		v[good] = rapid.Float32Range(-math.MaxFloat32, math.MaxFloat32).Draw(t, "value")
		if got := sampling.New(p).Sample(sampling.Logits{Values: v}, nil); got != int32(good) {
			t.Fatalf("drew %d, the only finite logit is %d", got, good)
		}
	})
}

func TestSampler_WithoutCandidates(t *testing.T) {
	all := func(int32) bool { return true }
	not2 := func(id int32) bool { return id != 2 }
	for _, p := range []sampling.Params{{}, {Temperature: 1}, {Temperature: 1, TopK: 2}, {Temperature: 1, TopP: 0.5}} {
		for _, c := range []struct {
			name   string
			l      sampling.Logits
			banned func(int32) bool
			want   int32
		}{
			{"none", sampling.Logits{}, nil, -1},
			{"ids without values", sampling.Logits{IDs: []int32{1}}, nil, -1},
			{"values without ids", sampling.Logits{IDs: []int32{}, Values: []float32{1}}, nil, -1},
			{"all NaN", sampling.Logits{Values: []float32{nan, nan, nan}}, nil, 0},
			{"all NaN, some banned", sampling.Logits{Values: []float32{nan, inf, -inf}}, not2, 2},
			{"all banned", sampling.Logits{Values: []float32{1, 2, 3}}, all, 0},
			{"all banned, listed", sampling.Logits{IDs: []int32{7, 5, 6}, Values: []float32{1, 2, 3}}, all, 5},
		} {
			s := sampling.New(p)
			if got := s.Sample(c.l, c.banned); got != c.want {
				t.Errorf("%s: drew %d, want %d", c.name, got, c.want)
			}
			if got, want := s.State().Draws, uint64(1); c.want >= 0 && got != want {
				t.Errorf("%s: %d draws, want %d", c.name, got, want)
			}
		}
	}
}

func TestSampler_GreedyTakesTheLowestIDOfTies(t *testing.T) {
	s := sampling.New(sampling.Params{})
	if got := s.Sample(sampling.Logits{IDs: []int32{9, 4, 7}, Values: []float32{2, 2, 2}}, nil); got != 4 {
		t.Errorf("drew %d, want 4", got)
	}
	negative := float32(math.Copysign(0, -1))
	if got := s.Sample(sampling.Logits{Values: []float32{negative, 0}}, nil); got != 0 {
		t.Errorf("drew %d, want 0: -0 equals 0", got)
	}
}

func TestSampler_CutsAreExact(t *testing.T) {
	ln2 := float32(math.Ln2)
	for _, c := range []struct {
		name   string
		p      sampling.Params
		values []float32
		want   []int32
	}{
		{"top-p reached exactly", sampling.Params{TopP: 0.5}, []float32{1, 1, 1, 1}, []int32{0, 1}},
		{"top-p just not reached", sampling.Params{TopP: math.Nextafter(0.5, 1)}, []float32{1, 1, 1, 1}, []int32{0, 1, 2}},
		{"top-p just not reached by a third", sampling.Params{TopP: 1.0/3 + 1e-15}, []float32{1, 1, 1}, []int32{0, 1}},
		{"top-p below the first", sampling.Params{TopP: 1e-300}, []float32{1, 2, 2}, []int32{1}},
		{"top-p of what top-k keeps", sampling.Params{TopK: 2, TopP: 0.5}, []float32{1, 1, 1, 1}, []int32{0}},
		{"top-k ties to the lower id", sampling.Params{TopK: 2}, []float32{1, 3, 1, 1}, []int32{0, 1}},
		{"top-k of one", sampling.Params{TopK: 1}, []float32{1, 3, 3}, []int32{1}},
		{"top-k above the number of candidates", sampling.Params{TopK: 9}, []float32{1, 1}, []int32{0, 1}},
		{"min-p reached exactly", sampling.Params{MinP: 0.5}, []float32{0, ln2, 0}, []int32{0, 1, 2}},
		{"min-p just not reached", sampling.Params{MinP: math.Nextafter(0.5, 1)}, []float32{0, ln2, 0}, []int32{1}},
		{"min-p after top-p", sampling.Params{TopP: 0.9, MinP: 0.4}, []float32{0, ln2, 0}, []int32{0, 1, 2}},
		{"min-p 1", sampling.Params{MinP: 1}, []float32{0, 1, 1}, []int32{1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.p.Temperature = 1
			s := sampling.New(c.p)
			var got []int32
			for range 200 {
				if id := s.Sample(sampling.Logits{Values: c.values}, nil); !slices.Contains(got, id) {
					got = append(got, id)
				}
			}
			slices.Sort(got)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("ids drawn (-want +got)\n%s", d)
			}
		})
	}
}

// A radix selection happens with more than HeapLimit kept candidates only.
func TestSampler_LargeTopKTiesToTheLowerID(t *testing.T) {
	const k = sampling.HeapLimit + 10
	s := sampling.New(sampling.Params{Temperature: 1, TopK: k})
	flat := sampling.Logits{Values: make([]float32, 2*k)}
	highest := int32(0)
	for range 10 * k {
		highest = max(highest, s.Sample(flat, nil))
	}
	if highest != k-1 {
		t.Errorf("highest id drawn %d, want %d", highest, k-1)
	}
}

func TestSampler_FrequenciesFollowProbabilities(t *testing.T) {
	logits := sampling.Logits{Values: []float32{0, 1, 2, 3, -1, 2}}
	const draws = 20000
	for _, p := range []sampling.Params{
		{Temperature: 1},
		{Temperature: 0.5, Seed: 1 << 40},
		{Temperature: 2, TopK: 3, Seed: 7},
		{Temperature: 1, TopP: 0.8, Seed: 8},
		{Temperature: 1, MinP: 0.2, Seed: 9},
	} {
		kept := (&reference{p: p}).kept(logits, nil)
		want, got := make([]float64, len(logits.Values)), make([]float64, len(logits.Values))
		for _, c := range kept {
			want[c.id] = float64(c.weight) / float64(sum(kept))
		}
		s := sampling.New(p)
		for range draws {
			got[s.Sample(logits, nil)]++
		}
		for id := range want {
			// Five standard deviations.
			if bound := 5 * math.Sqrt(draws*want[id]*(1-want[id])); math.Abs(got[id]-draws*want[id]) > bound {
				t.Errorf("%+v: id %d drawn %v times, want %v ± %v", p, id, got[id], draws*want[id], bound)
			}
		}
	}
}

func TestSampler_SeedAndDrawChangeTheToken(t *testing.T) {
	flat := sampling.Logits{Values: make([]float32, 50000)}
	a, b := sampling.New(sampling.Params{Temperature: 1, Seed: 1}), sampling.New(sampling.Params{Temperature: 1, Seed: 2})
	first, second, other := a.Sample(flat, nil), a.Sample(flat, nil), b.Sample(flat, nil)
	if first == second || first == other {
		t.Errorf("draws %d, %d and with another seed %d, want three different ones", first, second, other)
	}
}

// The ids are pinned: they change only together with sampling.Version.
func TestSampler_PinnedDraws(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	l := sampling.Logits{Values: make([]float32, 1000)}
	for i := range l.Values {
		l.Values[i] = float32(r.IntN(4096)) / 256
	}
	for _, c := range []struct {
		p    sampling.Params
		want []int32
	}{
		{sampling.Params{}, []int32{158, 158, 158, 158, 158, 158, 158, 158}},
		{sampling.Params{Temperature: 0.8, TopK: 40, TopP: 0.95, Seed: 42}, []int32{609, 476, 675, 682, 790, 414, 739, 567}},
		{sampling.Params{Temperature: 1, MinP: 0.05, Seed: 42, RepetitionPenalty: 1.1, FrequencyPenalty: 0.5}, []int32{538, 358, 675, 692, 845, 295, 763, 435}},
		{sampling.Params{Temperature: 1.5, TopK: 500, TopP: 0.9, Seed: 1 << 63}, []int32{549, 149, 882, 230, 414, 786, 516, 585}},
	} {
		s := sampling.New(c.p)
		var got []int32
		for range 8 {
			got = append(got, s.Sample(l, nil))
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%+v: (-want +got)\n%s", c.p, d)
		}
	}
}
