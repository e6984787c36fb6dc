// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/seguekv/segue/engines/sampling"
)

const octave = 1 << 18

func TestWeight_IsTheExponential(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steps := rapid.Float64Range(0, 45*octave).Draw(t, "steps")
		want := math.Exp2(-steps/octave) * (1 << sampling.WeightBits)
		got := float64(sampling.Weight(steps))
		if math.Abs(got-want) > want*2e-6+1 {
			t.Errorf("weight(%v) = %v, want %v", steps, got, want)
		}
	})
}

// Every carry between the tables lies at a multiple of 64 steps.
func TestWeight_NeverRises(t *testing.T) {
	last := sampling.Weight(0)
	for n := 0; n < 43*octave; n += 64 {
		for _, steps := range []int{n - 1, n, n + 1} {
			w := sampling.Weight(float64(max(steps, 0)))
			if w > last {
				t.Fatalf("weight(%d) = %d, above the one before, %d", steps, w, last)
			}
			last = w
		}
	}
	for n := range 2 * octave {
		if a, b := sampling.Weight(float64(n)), sampling.Weight(float64(n+1)); b > a {
			t.Fatalf("weight(%d) = %d, above weight(%d) = %d", n+1, b, n, a)
		}
	}
}

func TestWeight_Edges(t *testing.T) {
	for _, c := range []struct {
		steps float64
		want  uint64
	}{
		{0, 1 << sampling.WeightBits},
		{octave, 1 << (sampling.WeightBits - 1)},
		{40 * octave, 1},
		{41*octave + 1, 0},
		{42 * octave, 0},
		{1e300, 0},
		{math.Inf(1), 0},
		{math.NaN(), 0},
	} {
		if got := sampling.Weight(c.steps); got != c.want {
			t.Errorf("weight(%v) = %d, want %d", c.steps, got, c.want)
		}
	}
}
