// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seguekv/segue/snapshot"
)

func TestChain_StateAtEveryBoundary(t *testing.T) {
	for _, prompt := range []int{1, 15, 16, 17, 33} {
		h := head(baseOf(1, 3), prompt, 40)
		c := chain(t, h, 0)
		if got := c.Committed(); got != 0 {
			t.Fatalf("base in progress has boundary %d", got)
		}
		var none *snapshot.NotCoveredError
		if _, err := c.State(); !errors.As(err, &none) || none.Need != 1 {
			t.Fatalf("state of a base in progress: %v", err)
		}
		for n := 1; n <= 40; n++ {
			grow(t, c, n)
			st, err := c.State()
			if err != nil {
				t.Fatal(err)
			}
			checkState(t, st, &h, n)
		}
		if _, err := c.AppendBoundary(41, 0, samplerOf(41)); err == nil {
			t.Fatal("a boundary above MaxOutput is accepted")
		}
	}
}

func TestChain_RefusesWhatDoesNotFollow(t *testing.T) {
	var order *snapshot.OrderError
	c := chain(t, head(baseOf(1, 1), 4, 8), 0)
	for name, x := range map[string]struct {
		do    func() error
		order bool
	}{
		"gap in rows":            {func() error { return c.AppendRows(5, rowOf(5)) }, true},
		"row again":              {func() error { return c.AppendRows(3, rowOf(3)) }, true},
		"negative row":           {func() error { return c.AppendRows(-1, rowOf(3)) }, true},
		"row without an id":      {func() error { return c.AppendRows(4, rowOf(4)) }, true},
		"no rows":                {func() error { return c.AppendRows(4, nil) }, false},
		"part of a row":          {func() error { return c.AppendRows(4, rowOf(4)[1:]) }, false},
		"boundary 0":             {func() error { _, err := c.AppendBoundary(0, 1, samplerOf(0)); return err }, true},
		"boundary 2 first":       {func() error { _, err := c.AppendBoundary(2, 1, samplerOf(2)); return err }, true},
		"draws of another count": {func() error { _, err := c.AppendBoundary(1, 1, samplerOf(2)); return err }, false},
	} {
		err := x.do()
		if errors.As(err, &order) != x.order || errors.Is(err, snapshot.ErrFormat) == x.order {
			t.Errorf("%s: %v", name, err)
		}
	}
	if c.Rows() != 4 || c.Committed() != 0 {
		t.Fatalf("refusals changed the chain to %d rows, boundary %d", c.Rows(), c.Committed())
	}
	grow(t, c, 1)
	if _, err := c.AppendBoundary(2, tokenOf(1), samplerOf(2)); !errors.As(err, &order) {
		t.Errorf("boundary 2 without its row: %v", err)
	}
	fillRows(t, c, 5)
	if _, err := c.AppendBoundary(2, tokenOf(1), snapshot.Sampler{Seed: 1, Draws: 2}); !errors.Is(err, snapshot.ErrFormat) {
		t.Errorf("another seed: %v", err)
	}
	grow(t, c, 8)
	if err := c.AppendRows(c.Rows(), rowOf(c.Rows())); !errors.Is(err, snapshot.ErrFormat) {
		t.Errorf("a row above MaxRows: %v", err)
	}
}

func TestChain_FailedFillAddsNothing(t *testing.T) {
	c := chain(t, head(baseOf(1, 1), 40, 8), 0)
	d := chain(t, head(baseOf(1, 1), 40, 8), 0)
	c.DropRows(10)
	boom := errors.New("boom")
	calls := 0
	err := c.Fill(10, 20, func(dst []byte) error {
		if calls++; calls == 2 {
			return boom
		}
		clear(dst)
		return nil
	})
	if !errors.Is(err, boom) || c.Rows() != 10 {
		t.Fatalf("got %v and %d rows, want %v and 10", err, c.Rows(), boom)
	}
	fillRows(t, c, 40)
	if c.DigestAt(40) != d.DigestAt(40) {
		t.Fatal("rows after a failed fill have another digest")
	}
}

func TestChain_DropRowsKeepsSealedRows(t *testing.T) {
	c := chain(t, head(baseOf(1, 1), 4, 8), 3)
	fillRows(t, c, 7)
	for _, x := range []struct{ drop, want int }{{9, 7}, {7, 7}, {2, 6}, {-1, 6}} {
		if c.DropRows(x.drop); c.Rows() != x.want {
			t.Errorf("DropRows(%d) leaves %d rows, want %d", x.drop, c.Rows(), x.want)
		}
	}
	fillRows(t, c, 7)
	if st, err := c.State(); err != nil || st.Rows() != 6 {
		t.Fatalf("state: %v", err)
	}
	if c.Rows() != 6 {
		t.Errorf("State leaves %d rows, want those of its boundary, 6", c.Rows())
	}
}

// Damage of anything that a state consists of is found when the state is made.
func TestChain_MemoryCorruptionIsFound(t *testing.T) {
	const n = 20
	h := head(baseOf(1, 1), 20, 32)
	damage := map[string]func(c *snapshot.Chain){
		"newest id":        func(c *snapshot.Chain) { c.Output()[n-1]++ },
		"first output id":  func(c *snapshot.Chain) { c.Output()[0]++ },
		"prompt id":        func(c *snapshot.Chain) { c.Head().Prompt[3]++ },
		"request":          func(c *snapshot.Chain) { c.Head().Request[0]++ },
		"fingerprint":      func(c *snapshot.Chain) { c.Head().Fingerprint[0]++ },
		"type of elements": func(c *snapshot.Chain) { c.Head().Geometry.Layers[0].KType = "f32" },
	}
	for i := range h.MaxRows() - (32 - n) {
		damage[fmt.Sprint("row ", i)] = func(c *snapshot.Chain) {
			c.Views(nil, i, 1)[0][i%rowBytes] ^= 1 << (i % 8)
		}
	}
	for name, do := range damage {
		t.Run(name, func(t *testing.T) {
			h := head(baseOf(1, 1), 20, 32)
			h.Geometry.Layers = slices.Clone(h.Geometry.Layers)
			c := chain(t, h, n)
			do(c)
			if _, err := c.State(); !errors.Is(err, snapshot.ErrDigest) {
				t.Errorf("State: %v, want ErrDigest", err)
			}
			if _, err := c.Rebase(baseOf(1, 2)); !errors.Is(err, snapshot.ErrDigest) {
				t.Errorf("Rebase: %v, want ErrDigest", err)
			}
		})
	}
}

func TestChain_RebaseKeepsRows(t *testing.T) {
	h := head(baseOf(1, 1), 10, 32)
	for n := range 20 {
		c := chain(t, h, n)
		r, err := c.Rebase(snapshot.BaseID{Session: session(1), Epoch: 2, Base: 5})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Head().BaseID; got != (snapshot.BaseID{Session: session(1), Epoch: 2, Base: 5}) {
			t.Fatalf("rebased to %+v", got)
		}
		if r.Rows() != c.Rows() || r.Committed() != n || r.First() != max(n, 1) {
			t.Fatalf("boundary %d: rebased chain has %d rows, boundaries %d..%d", n, r.Rows(), r.First(), r.Committed())
		}
		if r.DigestAt(r.Rows()) == c.DigestAt(c.Rows()) {
			t.Fatal("another base has the same chain digest")
		}
		grow(t, r, n+3)
		st, err := r.State()
		if err != nil {
			t.Fatal(err)
		}
		checkState(t, st, &h, n+3)
		s, _ := newStore(1 << 20)
		mustReceive(t, s, records(r, 7)...)
		held, err := s.Takeover(session(1), 3, needOf(&h, n+3))
		if err != nil {
			t.Fatal(err)
		}
		checkState(t, held.State, &h, n+3)
	}
}

// A base that begins with restored ids has its first boundary after them.
func TestChain_RestoredBase(t *testing.T) {
	h := head(baseOf(1, 4), 5, 12)
	for i := range 6 {
		h.Restored = append(h.Restored, tokenOf(i))
	}
	c := chain(t, h, 0)
	if c.First() != 7 || c.Committed() != 0 || c.Rows() != 11 {
		t.Fatalf("first %d, committed %d, rows %d", c.First(), c.Committed(), c.Rows())
	}
	var order *snapshot.OrderError
	for _, n := range []int{1, 6, 8} {
		if _, err := c.AppendBoundary(n, 1, samplerOf(n)); !errors.As(err, &order) {
			t.Errorf("boundary %d: %v", n, err)
		}
	}
	grow(t, c, 9)
	s, _ := newStore(1 << 20)
	mustReceive(t, s, records(c, 3)...)
	o, _ := offer(s, session(1))
	if o.First != 7 || o.Committed != 9 || o.Rows != 13 {
		t.Fatalf("held %+v", o)
	}
	held, err := s.Takeover(session(1), 5, needOf(&h, 4)) // fewer than were restored
	if err != nil {
		t.Fatal(err)
	}
	checkState(t, held.State, &h, 9)
}

func TestHead_Limits(t *testing.T) {
	good := func() snapshot.Head { return head(baseOf(1, 1), 4, 8) }
	if h := good(); h.Validate() != nil {
		t.Fatal(h.Validate())
	}
	long := string(make([]byte, snapshot.MaxTypeBytes+1))
	for name, change := range map[string]func(h *snapshot.Head){
		"no epoch":            func(h *snapshot.Head) { h.Epoch = 0 },
		"no prompt":           func(h *snapshot.Head) { h.Prompt = nil },
		"no output":           func(h *snapshot.Head) { h.MaxOutput = 0 },
		"negative output":     func(h *snapshot.Head) { h.MaxOutput = -1 },
		"too many tokens":     func(h *snapshot.Head) { h.MaxOutput = snapshot.MaxTokens - 3 },
		"all restored":        func(h *snapshot.Head) { h.Restored = make([]int32, 8) },
		"fingerprint too big": func(h *snapshot.Head) { h.Fingerprint = make([]byte, snapshot.MaxFingerprintBytes+1) },
		"no layers":           func(h *snapshot.Head) { h.Geometry.Layers = nil },
		"too many layers":     func(h *snapshot.Head) { h.Geometry.Layers = make([]snapshot.LayerRows, snapshot.MaxLayers+1) },
		"empty row":           func(h *snapshot.Head) { h.Geometry.Layers = make([]snapshot.LayerRows, 2) },
		"row too big":         func(h *snapshot.Head) { h.Geometry.Layers = wide(2, snapshot.MaxRowBytes/2, 1) },
		"negative row":        func(h *snapshot.Head) { h.Geometry.Layers = wide(2, 10, -1) },
		"K type too long":     func(h *snapshot.Head) { h.Geometry.Layers[0].KType = long },
		"V type too long":     func(h *snapshot.Head) { h.Geometry.Layers[1].VType = long },
	} {
		h := good()
		change(&h)
		if _, err := snapshot.NewChain(h); !errors.Is(err, snapshot.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func wide(n, k, v int) []snapshot.LayerRows {
	return slices.Repeat([]snapshot.LayerRows{{KBytes: k, VBytes: v}}, n)
}

func TestGeometry_DigestTellsApart(t *testing.T) {
	layer := func(k, v int, kt, vt string) snapshot.LayerRows {
		return snapshot.LayerRows{KBytes: k, VBytes: v, KType: kt, VType: vt}
	}
	seen := make(map[snapshot.Digest]int)
	for i, g := range []snapshot.Geometry{
		{Layers: []snapshot.LayerRows{layer(4, 4, "a", "b")}},
		{Layers: []snapshot.LayerRows{layer(4, 4, "ab", "")}},
		{Layers: []snapshot.LayerRows{layer(4, 4, "", "ab")}},
		{Layers: []snapshot.LayerRows{layer(8, 0, "a", "b")}},
		{Layers: []snapshot.LayerRows{layer(0, 8, "a", "b")}},
		{Layers: []snapshot.LayerRows{layer(4, 4, "a", "b"), layer(0, 0, "", "")}},
		{Layers: []snapshot.LayerRows{layer(2, 2, "a", "b"), layer(2, 2, "a", "b")}},
	} {
		if j, ok := seen[g.Digest()]; ok {
			t.Errorf("geometries %d and %d have one digest", j, i)
		}
		seen[g.Digest()] = i
	}
}

// Whatever is appended and however it is cut up, the state at each boundary is what was appended, refusals
// change nothing, and the chain digest doesn't depend on the cuts.
func TestChain_Property(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		prompt := rapid.IntRange(1, 40).Draw(rt, "prompt")
		limit := rapid.IntRange(1, 40).Draw(rt, "limit")
		restored := rapid.IntRange(0, limit-1).Draw(rt, "restored")
		h := head(baseOf(1, 1), prompt, limit)
		for i := range restored {
			h.Restored = append(h.Restored, tokenOf(i))
		}
		c, err := snapshot.NewChain(h)
		if err != nil {
			rt.Fatal(err)
		}
		rows, n := 0, restored
		sealed := false
		rt.Repeat(map[string]func(*rapid.T){
			"rows": func(rt *rapid.T) {
				count := rapid.IntRange(1, 20).Draw(rt, "count")
				err := c.AppendRows(rows, rowsOf(rows, count))
				if want := rows+count <= prompt+n && rows+count <= prompt+limit-1; want != (err == nil) {
					rt.Fatalf("%d rows after %d: %v", count, rows, err)
				}
				if err == nil {
					rows += count
				}
			},
			"boundary": func(rt *rapid.T) {
				_, err := c.AppendBoundary(n+1, tokenOf(n), samplerOf(n+1))
				if want := rows == prompt+n && n < limit; want != (err == nil) {
					rt.Fatalf("boundary %d with %d rows: %v", n+1, rows, err)
				}
				if err == nil {
					n++
					sealed = true
				}
			},
			"drop": func(rt *rapid.T) {
				to := rapid.IntRange(0, 80).Draw(rt, "to")
				c.DropRows(to)
				if least := prompt + n - 1; sealed {
					to = max(to, least)
				}
				rows = min(rows, to)
			},
			"rebase": func(rt *rapid.T) {
				r, err := c.Rebase(snapshot.BaseID{Session: session(1), Epoch: c.Head().Epoch + 1})
				if err != nil {
					rt.Fatal(err)
				}
				if c = r; sealed {
					rows = prompt + n - 1
				}
			},
			"wrong": func(rt *rapid.T) {
				if rapid.Bool().Draw(rt, "row") {
					err = c.AppendRows(rows+rapid.SampledFrom([]int{-1, 1, 16}).Draw(rt, "off"), rowOf(0))
				} else {
					_, err = c.AppendBoundary(n+rapid.SampledFrom([]int{-1, 0, 2}).Draw(rt, "off"), 1, samplerOf(n))
				}
				if err == nil {
					rt.Fatal("out of order, and accepted")
				}
			},
			"": func(rt *rapid.T) {
				if c.Rows() != rows || len(c.Output()) != n || (c.Committed() > 0) != sealed {
					rt.Fatalf("chain has %d rows and %d ids, model %d and %d", c.Rows(), len(c.Output()), rows, n)
				}
				plain := chain(rt, *c.Head(), 0)
				for plain.Rows() < rows || (sealed && plain.Committed() < n) {
					if plain.Rows() == len(h.Prompt)+len(plain.Output()) && len(plain.Output()) < n {
						grow(rt, plain, len(plain.Output())+1)
					} else {
						fillRows(rt, plain, plain.Rows()+1)
					}
				}
				if want := plain.DigestAt(rows); c.DigestAt(rows) != want {
					rt.Fatalf("digest after %d rows depends on how they came", rows)
				}
				if !sealed {
					return
				}
				if c.Committed() != n || c.SealAt(n) != plain.SealAt(n) {
					rt.Fatalf("boundary %d differs from the plain chain's %d", c.Committed(), plain.Committed())
				}
				view := c.Views(nil, 0, prompt+n-1)
				if !bytes.Equal(bytes.Join(view, nil), rowsOf(0, prompt+n-1)) {
					rt.Fatal("views aren't the rows")
				}
			},
			"state": func(rt *rapid.T) {
				st, err := c.State()
				if (err == nil) != sealed {
					rt.Fatalf("state at %d: %v", c.Committed(), err)
				}
				if err == nil {
					checkState(rt, st, &h, n)
					rows = st.Rows()
				}
			},
		})
	})
}
