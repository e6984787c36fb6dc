// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench_test

import (
	"math"
	"testing"

	"github.com/seguekv/segue/bench"
)

func TestUpperBound(t *testing.T) {
	for _, c := range []struct {
		name   string
		bad, n int
		want   float64
	}{
		{"nothing was tried", 0, 0, 1},
		{"all were bad", 5, 5, 1},
		{"none of 300: 1-0.05^(1/300)", 0, 300, 0.009936},
		{"none of 1000: rule of three", 0, 1000, 0.002991},
		{"one of ten: tables of Clopper and Pearson", 1, 10, 0.39416},
		{"five of 50", 5, 50, 0.198833},
		{"one of 1000", 1, 1000, 0.004735},
	} {
		if got := bench.UpperBound(c.bad, c.n, 0.95); math.Abs(got-c.want) > 2e-5 {
			t.Errorf("%s: got %.6f, want %.6f", c.name, got, c.want)
		}
	}
	for n := 1; n < 40; n++ {
		for bad := 1; bad <= n; bad++ {
			if low, high := bench.UpperBound(bad-1, n, 0.95), bench.UpperBound(bad, n, 0.95); low >= high {
				t.Fatalf("%d of %d: bound %v, one more %v", bad-1, n, low, high)
			}
		}
	}
}
