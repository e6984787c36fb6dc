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

func TestWeight_NeverRises(t *testing.T) {
	last := sampling.Weight(0)
	for n := range 43 * octave {
		w := sampling.Weight(float64(n))
		if w > last {
			t.Fatalf("weight(%d) = %d, above weight(%d) = %d", n, w, n-1, last)
		}
		last = w
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
