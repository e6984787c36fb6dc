// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/seguekv/segue/bench"
	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{3, 1}, 2}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 3}, 2.5}} {
		if got := bench.Median(c.in); got != c.want {
			t.Errorf("%v: %v, want %v", c.in, got, c.want)
		}
	}
}

func TestPercentile99(t *testing.T) {
	upTo := func(n int) []float64 {
		list := make([]float64, n)
		for i := range list {
			list[i] = float64(n - i)
		}
		return list
	}
	for n, want := range map[int]float64{0: 0, 1: 1, 40: 40, 99: 99, 100: 99, 200: 198, 1000: 990} {
		if got := bench.Percentile99(upTo(n)); got != want {
			t.Errorf("n=%d: %v, want %v", n, got, want)
		}
	}
}

func TestStatistics_DoNotSortTheirInput(t *testing.T) {
	in := []float64{3, 1, 2}
	bench.Median(in)
	bench.Percentile99(in)
	if !slices.Equal(in, []float64{3, 1, 2}) {
		t.Errorf("input became %v", in)
	}
}

func TestDrawKill_IsAFunctionOfItsArguments(t *testing.T) {
	const step = 15 * time.Millisecond
	rapid.Check(t, func(r *rapid.T) {
		seed := rapid.Uint64().Draw(r, "seed")
		prompt, run, try := rapid.IntRange(0, 50).Draw(r, "prompt"), rapid.IntRange(0, 50).Draw(r, "run"), rapid.IntRange(0, 8).Draw(r, "try")
		tokens := rapid.IntRange(10, 500).Draw(r, "tokens")
		d := bench.DrawKill(seed, prompt, run, try, tokens, step)
		if d != bench.DrawKill(seed, prompt, run, try, tokens, step) {
			r.Fatal("two draws differ")
		}
		if 10*d.Index < tokens || 10*d.Index > 9*tokens {
			r.Fatalf("index %d of %d is outside 10–90 %%", d.Index, tokens)
		}
		if d.Delay < 0 || d.Delay >= step || d.Victim < 0 || d.Victim >= 1 {
			r.Fatalf("draw %+v", d)
		}
	})
}

func TestDrawKill_CoversTheRangeAndVariesWithEachCoordinate(t *testing.T) {
	seen := make(map[int]bool)
	for run := range 2000 {
		seen[bench.DrawKill(1, 0, run, 0, 100, time.Millisecond).Index] = true
	}
	if len(seen) != 81 || !seen[10] || !seen[90] {
		t.Errorf("%d different indexes of 10 to 90", len(seen))
	}
	base := bench.DrawKill(1, 2, 3, 4, 1000, time.Second)
	for name, other := range map[string]bench.Draw{
		"seed":   bench.DrawKill(2, 2, 3, 4, 1000, time.Second),
		"prompt": bench.DrawKill(1, 3, 3, 4, 1000, time.Second),
		"run":    bench.DrawKill(1, 2, 4, 4, 1000, time.Second),
		"try":    bench.DrawKill(1, 2, 3, 5, 1000, time.Second),
	} {
		if other.Delay == base.Delay {
			t.Errorf("another %s gives the same draw", name)
		}
	}
}

func TestDrawLengths(t *testing.T) {
	for seed := range uint64(200) {
		for _, n := range []int{1, 4, 5, 8, 40} {
			long := 0
			for _, length := range bench.DrawLengths(seed, n) {
				if length < 16 || length > 1500 {
					t.Fatalf("seed %d: length %d", seed, length)
				}
				if length >= 1000 {
					long++
				}
			}
			if 4*long < n {
				t.Fatalf("seed %d: %d of %d are long", seed, long, n)
			}
		}
	}
}

func TestPauseOf(t *testing.T) {
	base := time.Now()
	at := func(ms int) time.Time { return base.Add(time.Duration(ms) * time.Millisecond) }
	chunk := func(ms, first, n int) client.Chunk {
		return client.Chunk{At: at(ms), First: first, IDs: make([]int32, n)}
	}
	seam := cluster.Seam{Index: 5, FencedAt: at(38)}
	// Index 4 is recorded, so the standby hands it out again at once; index 5 is the first it decodes.
	chunks := []client.Chunk{chunk(0, 0, 2), chunk(15, 2, 1), chunk(30, 3, 1), chunk(190, 4, 1), chunk(210, 5, 2), chunk(900, 7, 1)}
	got, ok := bench.PauseOf(chunks, at(35), seam)
	want := bench.Pause{Pause: 175 * time.Millisecond, Gap: 160 * time.Millisecond, Detect: 3 * time.Millisecond}
	if !ok || got != want {
		t.Errorf("got %+v %t, want %+v", got, ok, want)
	}
	if _, ok := bench.PauseOf(chunks[:4], at(35), seam); ok {
		t.Error("a takeover that decoded nothing has a pause")
	}
	if got := bench.ProgressAt(chunks, at(35)); got != 3 {
		t.Errorf("the client had index %d at the kill, not 3", got)
	}
	if got := bench.ProgressAt(nil, at(35)); got != -1 {
		t.Errorf("no chunks, but index %d", got)
	}
	if _, ok := bench.PauseOf(nil, at(35), seam); ok {
		t.Error("no chunks, but a pause")
	}
	one := []client.Chunk{chunk(30, 3, 1), {At: at(40), First: 4}, chunk(60, 4, 3)} // text alone does not count as a token
	if got, ok := bench.PauseOf(one, at(35), seam); !ok || got.Pause != 25*time.Millisecond || got.Gap != 20*time.Millisecond {
		t.Errorf("got %+v %t", got, ok)
	}
}

func TestStateOf(t *testing.T) {
	s := &cluster.Session{
		Attempts: []cluster.Attempt{{Node: "a", Kind: "generate"}, {Node: "b", Kind: "takeover"}},
		Seams:    []cluster.Seam{{From: "a", To: "b", Index: 7}},
	}
	if seam, retried := bench.StateOf(s, "a"); seam == nil || seam.Index != 7 || retried {
		t.Errorf("got %v %t", seam, retried)
	}
	if seam, _ := bench.StateOf(s, "b"); seam != nil {
		t.Errorf("node b has a seam: %v", seam)
	}
	s.Attempts[1].Kind = "retry"
	if _, retried := bench.StateOf(s, "a"); !retried {
		t.Error("retry not seen")
	}
}

func TestSplitAt(t *testing.T) {
	chunks := []client.Chunk{{First: 0, IDs: []int32{1, 2}, Text: "ab"}, {First: 2, IDs: []int32{3}, Text: ""}, {First: 3, IDs: []int32{4, 5}, Text: "de"}, {First: 5, Text: "f"}}
	for index, want := range map[int][2]string{0: {"", "abdef"}, 2: {"ab", "def"}, 3: {"ab", "def"}, 9: {"abdef", ""}} {
		before, after := bench.SplitAt(chunks, index)
		if before != want[0] || after != want[1] {
			t.Errorf("at %d: %q, %q", index, before, after)
		}
	}
}
