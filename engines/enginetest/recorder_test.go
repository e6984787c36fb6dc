// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package enginetest_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/snapshot"
)

const rowBytes = 4

func geometry() snapshot.Geometry {
	return snapshot.Geometry{Layers: []snapshot.LayerRows{{KBytes: 1, VBytes: 3, KType: "a", VType: "b"}}}
}

// row is that of a position.
func row(pos int) []byte { return bytes.Repeat([]byte{byte(pos)}, rowBytes) }

// token is a good token i of a run with p prompt ids.
func token(p, i int) engines.Token {
	k := engines.Token{
		Index: i, ID: int32(100 + i), Text: []byte("ab"), TextEnd: 2 * (i + 1), RawEnd: 2 * (i + 1),
		Sampler: snapshot.Sampler{Seed: 7, Draws: uint64(i + 1)},
	}
	if i > 0 {
		k.Row = row(p + i - 1)
	}
	return k
}

// recorded has p prompt ids and n tokens.
func recorded(t *testing.T, p, n int) *enginetest.Recorder {
	t.Helper()
	r := enginetest.NewRecorder(geometry(), true)
	if err := r.Prompt(make([]int32, p)); err != nil {
		t.Fatal(err)
	}
	for first := 0; first < p; first += 3 {
		count := min(3, p-first)
		var rows []byte
		for i := range count {
			rows = append(rows, row(first+i)...)
		}
		if err := r.Prefilled(first, count, rows); err != nil {
			t.Fatal(err)
		}
		clear(rows)
	}
	for i := range n {
		k := token(p, i)
		if err := r.Token(k); err != nil {
			t.Fatal(err)
		}
		clear(k.Row)
		clear(k.Text)
	}
	return r
}

func TestRecorder_StateAtEveryBoundary(t *testing.T) {
	const p, n = 5, 40
	r := recorded(t, p, n)
	for at := 1; at <= n; at++ {
		s, err := r.State(at)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(); err != nil {
			t.Errorf("boundary %d: %v", at, err)
		}
		if s.Rows() != p+at-1 || s.Sampler != (snapshot.Sampler{Seed: 7, Draws: uint64(at)}) {
			t.Errorf("boundary %d: %d rows, sampler %+v", at, s.Rows(), s.Sampler)
		}
		for i := range s.Rows() {
			if !bytes.Equal(s.RowData(i), row(i)) {
				t.Errorf("boundary %d: row %d is %v", at, i, s.RowData(i))
			}
		}
		last := s.Blocks[len(s.Blocks)-1]
		if len(last) != cap(last) {
			t.Errorf("boundary %d: the last block can grow into later rows", at)
		}
		// A run that continues the state records the same states.
		again := enginetest.NewRestoredRecorder(s, true)
		for i := range n {
			k := token(p, i)
			if i < at {
				k.Restored, k.Row = true, nil
			}
			if err := again.Token(k); err != nil {
				t.Fatalf("boundary %d: %v", at, err)
			}
		}
		x, err := r.State(n)
		if err != nil {
			t.Fatal(err)
		}
		y, err := again.State(n)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(x, y); d != "" {
			t.Errorf("continued from %d (-want +got):\n%s", at, d)
		}
	}
	for _, at := range []int{-1, 0, n + 1} {
		if _, err := r.State(at); err == nil {
			t.Errorf("boundary %d has a state", at)
		}
	}
	if got, want := r.Text(), string(bytes.Repeat([]byte("ab"), n)); got != want {
		t.Errorf("text %q", got)
	}
}

func TestRecorder_StateNeedsRows(t *testing.T) {
	r := enginetest.NewRecorder(geometry(), false)
	k := token(1, 0)
	for _, err := range []error{r.Prompt([]int32{1}), r.Prefilled(0, 1, nil), r.Token(k)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.State(1); err == nil {
		t.Error("a run without capture has a state")
	}
}

func TestRecorder_RefusesBadTokens(t *testing.T) {
	const p, n = 5, 3
	for name, change := range map[string]func(k *engines.Token){
		"index repeated":     func(k *engines.Token) { k.Index-- },
		"index skipped":      func(k *engines.Token) { k.Index++ },
		"no row":             func(k *engines.Token) { k.Row = nil },
		"short row":          func(k *engines.Token) { k.Row = k.Row[1:] },
		"two rows":           func(k *engines.Token) { k.Row = append(k.Row, k.Row...) },
		"restored":           func(k *engines.Token) { k.Restored = true },
		"broken text":        func(k *engines.Token) { k.Text = []byte("a\xe4") },
		"text end":           func(k *engines.Token) { k.TextEnd++; k.RawEnd++ },
		"raw end":            func(k *engines.Token) { k.RawEnd = k.TextEnd - 1 },
		"draws":              func(k *engines.Token) { k.Sampler.Draws++ },
		"unknown finish":     func(k *engines.Token) { k.Finish = "tired" },
		"held at the finish": func(k *engines.Token) { k.Finish, k.RawEnd = engines.FinishStop, k.RawEnd+1 },
	} {
		r := recorded(t, p, n)
		k := token(p, n)
		change(&k)
		if err := r.Token(k); err == nil {
			t.Errorf("%s: no error", name)
		}
		if err := r.Token(token(p, n)); err != nil {
			t.Errorf("%s: the good token after it: %v", name, err)
		}
	}
}

func TestRecorder_RefusesDisorder(t *testing.T) {
	fresh := func() *enginetest.Recorder { return enginetest.NewRecorder(geometry(), true) }
	finished := recorded(t, 2, 1)
	last := token(2, 1)
	last.Finish = engines.FinishLength
	if err := finished.Token(last); err != nil {
		t.Fatal(err)
	}
	s, err := recorded(t, 2, 3).State(2)
	if err != nil {
		t.Fatal(err)
	}
	restored := func() *enginetest.Recorder { return enginetest.NewRestoredRecorder(s, true) }
	other := token(2, 0)
	other.Restored, other.ID = true, 1
	for name, err := range map[string]error{
		"empty prompt":          fresh().Prompt(nil),
		"second prompt":         recorded(t, 2, 0).Prompt([]int32{1}),
		"prefill before prompt": fresh().Prefilled(0, 1, row(0)),
		"prefill after its end": recorded(t, 2, 0).Prefilled(2, 1, row(2)),
		"prefill without rows":  recorded(t, 2, 0).Prefilled(0, 1, nil),
		"rows without capture": func() error {
			r := enginetest.NewRecorder(geometry(), false)
			_ = r.Prompt([]int32{1})
			return r.Prefilled(0, 1, row(0))
		}(),
		"token before prompt":    fresh().Token(token(2, 0)),
		"token after the finish": finished.Token(token(2, 2)),
		"prompt when restored":   restored().Prompt([]int32{1}),
		"prefill when restored":  restored().Prefilled(0, 1, row(0)),
		"not marked restored":    restored().Token(token(2, 0)),
		"other id than recorded": restored().Token(other),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestClone_SharesNothing(t *testing.T) {
	s, err := recorded(t, 5, 20).State(20)
	if err != nil {
		t.Fatal(err)
	}
	c := enginetest.Clone(s)
	if d := cmp.Diff(s, c); d != "" {
		t.Fatalf("clone differs:\n%s", d)
	}
	c.Geometry.Layers[0].KType, c.Prompt[0], c.Output[0], c.Blocks[0][0] = "x", -1, -1, 99
	if s.Geometry.Layers[0].KType == "x" || s.Prompt[0] == -1 || s.Output[0] == -1 || s.Blocks[0][0] == 99 {
		t.Error("a change of the clone changes the original")
	}
}

func TestBoundaries(t *testing.T) {
	for _, c := range []struct {
		n, limit int
		want     []int
	}{
		{5, 0, []int{1, 2, 3, 4}},
		{5, 9, []int{1, 2, 3, 4}},
		{20, 4, []int{1, 7, 13, 19}},
		{20, 2, []int{1, 19}},
		{20, 1, []int{19}},
		{2, 0, []int{1}},
		{1, 0, nil},
	} {
		if got := enginetest.Boundaries(c.n, c.limit); !slices.Equal(got, c.want) {
			t.Errorf("boundaries(%d, %d) = %v, want %v", c.n, c.limit, got, c.want)
		}
	}
}
