// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/decode"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/snapshot"
)

var _ decode.Model = (*modelContext)(nil)

// trace is an uninterrupted greedy run: the rows of all positions, and the logits behind each output id.
type trace struct {
	prompt, output []int32
	rows           []byte
	logits         [][]float32
}

// greedyTrace prefills in chunks of 64 and makes n output ids, the last of which isn't fed.
func greedyTrace(t *testing.T, c *modelContext, prompt []int32, n int) trace {
	t.Helper()
	tr := trace{prompt: prompt}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	capture := func(first, count int) {
		t.Helper()
		rb := c.layout.Geometry().RowBytes()
		tr.rows = append(tr.rows, make([]byte, count*rb)...)
		must(c.Capture(first, count, tr.rows[first*rb:]))
	}
	must(c.Reset())
	for first := 0; first < len(prompt); first += 64 {
		end := min(first+64, len(prompt))
		must(c.Prefill(prompt[first:end], first, end == len(prompt)))
		capture(first, end-first)
	}
	for i := range n {
		tr.logits = append(tr.logits, slices.Clone(c.Logits().Values))
		tr.output = append(tr.output, highest(c.Logits().Values))
		if i < n-1 {
			pos := len(prompt) + i
			must(c.Step(tr.output[i], pos))
			capture(pos, 1)
		}
	}
	return tr
}

// state is the state at boundary n.
func (tr trace) state(g snapshot.Geometry, n int) *snapshot.State {
	s := &snapshot.State{Geometry: g, Prompt: tr.prompt, Output: tr.output[:n], Sampler: snapshot.Sampler{Draws: uint64(n)}}
	rows := tr.rows[:s.Rows()*g.RowBytes()]
	s.Blocks = slices.Collect(slices.Chunk(rows, snapshot.BlockRows*g.RowBytes()))
	return s
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// TestContext_RestoresExactly restores a run at every residue of the block size, into one context after the
// other use of it, and compares logits and rows of the following steps bit by bit.
func TestContext_RestoresExactly(t *testing.T) {
	a, b := testContext(t, 512), testContext(t, 512)
	prompt, err := a.Render(engines.Prompt{Text: strings.Repeat("The lighthouse keeper climbed the stairs and lit the lamp. ", 12)})
	if err != nil {
		t.Fatal(err)
	}
	if len(prompt) < 130 {
		t.Fatalf("prompt of %d tokens doesn't take three chunks", len(prompt))
	}
	const n = snapshot.BlockRows + 4
	tr := greedyTrace(t, a, prompt, n)
	g := a.layout.Geometry()
	row := make([]byte, g.RowBytes())
	for at := 1; at < n-1; at++ {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			if err := b.Load(tr.state(g, at)); err != nil {
				t.Fatal(err)
			}
			for i := at; i < min(at+2, n); i++ {
				pos := len(prompt) + i - 1
				if err := b.Step(tr.output[i-1], pos); err != nil {
					t.Fatal(err)
				}
				if !sameBits(b.Logits().Values, tr.logits[i]) {
					t.Fatalf("logits of output %d differ from the uninterrupted run", i)
				}
				if err := b.Capture(pos, 1, row); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(row, tr.rows[pos*g.RowBytes():(pos+1)*g.RowBytes()]) {
					t.Fatalf("row of position %d differs from the uninterrupted run", pos)
				}
			}
		})
	}
}

// TestContext_BuildsTheBlobThatLlamaWrites compares blobs byte by byte, of a computed and of a loaded context.
func TestContext_BuildsTheBlobThatLlamaWrites(t *testing.T) {
	c := testContext(t, 512)
	prompt, err := c.Render(engines.Prompt{Text: strings.Repeat("One, two, three, four. ", 25)})
	if err != nil {
		t.Fatal(err)
	}
	tr := greedyTrace(t, c, prompt, 3)
	s := tr.state(c.layout.Geometry(), 3)
	if s.Rows() <= loadRows {
		t.Fatalf("%d rows are loaded in one piece", s.Rows())
	}
	built, err := c.layout.AppendBlob(nil, int32(scratch), s, 0, s.Rows())
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string) {
		t.Helper()
		buf := make([]byte, c.layout.Size(s.Rows()))
		n, err := c.save(0, s.Rows(), buf)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(buf[:n], built) {
			t.Errorf("the blob of the %s context differs from the one built of rows", what)
		}
	}
	check("computed")
	if err := c.Load(s); err != nil {
		t.Fatal(err)
	}
	check("loaded")
}

// TestContext_ReusesExactly runs the same prompt in a fresh context and after other use.
func TestContext_ReusesExactly(t *testing.T) {
	c := testContext(t, 512)
	prompt, err := c.Render(engines.Prompt{Text: "Ships pass the cape at night"})
	if err != nil {
		t.Fatal(err)
	}
	fresh := greedyTrace(t, c, prompt, 4)
	if err := c.Load(madeState(c.layout.Geometry(), 300)); err != nil {
		t.Fatal(err)
	}
	if err := c.Step(11, 300); err != nil {
		t.Fatal(err)
	}
	again := greedyTrace(t, c, prompt, 4)
	if !bytes.Equal(fresh.rows, again.rows) || !slices.EqualFunc(fresh.logits, again.logits, sameBits) {
		t.Error("a used context computes other numbers than a fresh one")
	}
}

func TestContext_RefusesWrongPositions(t *testing.T) {
	c := testContext(t, 256)
	ids := []int32{10, 11, 12}
	for _, f := range []struct {
		name string
		do   func() error
	}{
		{"gap", func() error { return c.Step(10, 1) }},
		{"beyond the context", func() error { return c.Prefill(make([]int32, 257), 0, true) }},
		{"id outside", func() error { return c.Step(int32(c.size()), 0) }},
		{"negative id", func() error { return c.Prefill([]int32{-1}, 0, false) }},
		{"capture of nothing", func() error { return c.Capture(0, 1, make([]byte, c.layout.Geometry().RowBytes())) }},
	} {
		if err := f.do(); err == nil {
			t.Errorf("%s: no error", f.name)
		}
	}
	if err := c.Prefill(ids, 0, true); err != nil {
		t.Fatalf("the context is unusable after refusals: %v", err)
	}
	if err := c.Step(10, 2); err == nil {
		t.Error("a position was computed twice")
	}
	if err := c.Capture(2, 2, make([]byte, 2*c.layout.Geometry().RowBytes())); err == nil {
		t.Error("a row was captured that doesn't exist")
	}
}

func TestContext_RefusesStatesThatDontFit(t *testing.T) {
	c := testContext(t, 256)
	g := c.layout.Geometry()
	other := snapshot.Geometry{Layers: slices.Clone(g.Layers)}
	other.Layers[3].VType = "q8_0"
	for name, s := range map[string]*snapshot.State{
		"geometry": madeState(other, 20),
		"too long": madeState(g, 256),
		"blocks": func() *snapshot.State {
			s := madeState(g, 40)
			s.Blocks = s.Blocks[:2]
			return s
		}(),
	} {
		if err := c.Load(s); !errors.Is(err, engines.ErrState) {
			t.Errorf("%s: got %v, want ErrState", name, err)
		}
	}
	if err := c.Load(madeState(g, 255)); err != nil {
		t.Errorf("the longest state that fits: %v", err)
	}
	if err := c.Step(11, 255); err != nil {
		t.Errorf("the last position: %v", err)
	}
}

// damaged loads states with one bit wrong.
type damaged struct{ *modelContext }

func (d damaged) Load(s *snapshot.State) error {
	s = enginetest.Clone(s)
	s.Blocks[0][1] ^= 0x40
	return d.modelContext.Load(s)
}

func TestCanary_FailsClosed(t *testing.T) {
	c := testContext(t, 256)
	g := c.layout.Geometry()
	if err := canary(c, g); err != nil {
		t.Fatal(err)
	}
	if c.rows != 0 {
		t.Errorf("%d rows are left", c.rows)
	}
	if err := canary(damaged{c}, g); !errors.Is(err, errCanary) {
		t.Errorf("got %v for a wrong bit, want errCanary", err)
	}
	c.length = 4
	if err := canary(c, g); err == nil {
		t.Error("a canary that can't run passes")
	}
}
