// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/engines/sim"
	"github.com/seguekv/segue/snapshot"
)

// subject is a recorded greedy run to damage states of.
type subject struct {
	engine *sim.Engine
	run    *enginetest.Recorder
}

func newSubject(t *testing.T, c sim.Config, tokens int) *subject {
	t.Helper()
	e := newEngine(t, c)
	r := enginetest.NewRecorder(mustDescribe(t, e).Geometry, true)
	job := engines.Job{Capture: true, Request: greedy(tokens)}
	if err := e.Run(t.Context(), job, r); err != nil {
		t.Fatalf("Run: %v", err)
	}
	return &subject{e, r}
}

func greedy(tokens int) engines.Request {
	return engines.Request{Model: "sim", Prompt: engines.Prompt{Text: "Damage"}, MaxTokens: tokens, Sampling: sampling.Params{Seed: 3}}
}

// state is at boundary n.
func (s *subject) state(t *testing.T, n int) *snapshot.State {
	t.Helper()
	x, err := s.run.State(n)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// rows is the state with the given number of rows.
func (s *subject) rows(t *testing.T, rows int) *snapshot.State {
	t.Helper()
	return s.state(t, rows+1-len(s.run.PromptIDs()))
}

// next is the token that follows a state.
func (s *subject) next(t *testing.T, x *snapshot.State) int32 {
	t.Helper()
	n := len(x.Output)
	r := enginetest.NewRestoredRecorder(x, false)
	if err := s.engine.Run(t.Context(), engines.Job{From: x, Request: greedy(n + 1)}, r); err != nil {
		t.Fatalf("Run: %v", err)
	}
	return r.IDs()[n]
}

// want is the token that follows an undamaged state.
func (s *subject) want(x *snapshot.State) int32 { return s.run.IDs()[len(x.Output)] }

func TestEngine_NoticesEveryFlippedByte(t *testing.T) {
	for _, c := range []struct {
		name        string
		bytes, step int
		rows        []int
	}{
		{"Tiny", 48, 1, []int{2, 15, 16, 17, 32, 37}},
		{"Large", 128 << 10, 104729, []int{16, 37}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := quick()
			cfg.KVBytesPerToken = c.bytes
			s := newSubject(t, cfg, 40)
			for _, rows := range c.rows {
				x := enginetest.Clone(s.rows(t, rows))
				if got, want := s.next(t, x), s.want(x); got != want {
					t.Fatalf("undamaged state of %d rows: token %d, want %d", rows, got, want)
				}
				for i := 0; i < rows*c.bytes; i += c.step {
					block, at := i/(snapshot.BlockRows*c.bytes), i%(snapshot.BlockRows*c.bytes)
					x.Blocks[block][at] ^= 1 << (i % 8)
					if got := s.next(t, x); got == s.want(x) {
						t.Fatalf("%d rows: flip in byte %d isn't noticed", rows, i)
					}
					x.Blocks[block][at] ^= 1 << (i % 8)
				}
				if got, want := s.next(t, x), s.want(x); got != want {
					t.Fatalf("state of %d rows after all flips: token %d, want %d", rows, got, want)
				}
			}
		})
	}
}

func TestEngine_NoticesWrongRows(t *testing.T) {
	s := newSubject(t, quick(), 60)
	other := newSubject(t, quick(), 60)
	const rows = 39
	// The other history parts from the first at its last prompt id.
	job := engines.Job{Capture: true, Request: greedy(60)}
	job.Request.Prompt.Text = "Damagf"
	other.run = enginetest.NewRecorder(mustDescribe(t, other.engine).Geometry, true)
	if err := other.engine.Run(t.Context(), job, other.run); err != nil {
		t.Fatal(err)
	}

	damage := func(name string, change func(x *snapshot.State)) {
		t.Helper()
		x := enginetest.Clone(s.rows(t, rows))
		change(x)
		if got := s.next(t, x); got == s.want(x) {
			t.Errorf("%s isn't noticed", name)
		}
	}
	for i := range rows {
		damage(fmt.Sprintf("missing row %d", i), func(x *snapshot.State) { clear(x.RowData(i)) })
		if i > 0 {
			damage(fmt.Sprintf("row %d stale from %d", i, i-1), func(x *snapshot.State) { copy(x.RowData(i), x.RowData(i-1)) })
		}
		if i >= len(s.run.PromptIDs())-1 {
			damage(fmt.Sprintf("row %d of another history", i), func(x *snapshot.State) { copy(x.RowData(i), other.run.Row(i)) })
		}
		for j := range i {
			damage(fmt.Sprintf("swapped rows %d and %d", j, i), func(x *snapshot.State) {
				row := append([]byte(nil), x.RowData(i)...)
				copy(x.RowData(i), x.RowData(j))
				copy(x.RowData(j), row)
			})
		}
	}
	damage("swapped blocks", func(x *snapshot.State) { x.Blocks[0], x.Blocks[1] = x.Blocks[1], x.Blocks[0] })
	damage("doubled block", func(x *snapshot.State) { x.Blocks[1] = x.Blocks[0] })
	damage("other newest id", func(x *snapshot.State) { x.Output[len(x.Output)-1]++ })
}

// A full block of a state is read in place, so that a test can damage it after it was loaded.
func TestEngine_VerifyReadsRowsAgain(t *testing.T) {
	for _, verify := range []bool{false, true} {
		t.Run(fmt.Sprint(verify), func(t *testing.T) {
			cfg := quick()
			cfg.Verify = verify
			s := newSubject(t, cfg, 60)
			x := enginetest.Clone(s.rows(t, 35))
			n := len(x.Output)
			r := enginetest.NewRestoredRecorder(x, false)
			err := s.engine.Run(t.Context(), engines.Job{From: x, Request: greedy(n + 4)}, hook{r, func(k engines.Token) {
				if k.Index == n+1 {
					x.Blocks[0][5] ^= 1
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			got, want := r.IDs(), s.run.IDs()
			if got[n+1] != want[n+1] {
				t.Errorf("token before the damage is %d, want %d", got[n+1], want[n+1])
			}
			if noticed := got[n+2] != want[n+2]; noticed != verify {
				t.Errorf("the next token notices the damage: %v, want %v", noticed, verify)
			}
		})
	}
}

// hook is a recorder with a function called at each token.
type hook struct {
	*enginetest.Recorder
	token func(k engines.Token)
}

func (h hook) Token(k engines.Token) error {
	h.token(k)
	return h.Recorder.Token(k)
}

func TestModel_VerifyReadsEveryRow(t *testing.T) {
	const rows = 2*snapshot.BlockRows + 5
	for row := range rows {
		for _, verify := range []bool{false, true} {
			cfg := quick()
			cfg.Verify = verify
			m := sim.NewModel(cfg)
			if err := m.Prefill(make([]int32, rows), 0, true); err != nil {
				t.Fatal(err)
			}
			before := slices.Clone(m.Logits().Values)
			sim.Damage(m, row)
			if noticed := !slices.Equal(m.Logits().Values, before); noticed != verify {
				t.Errorf("damage in row %d is noticed: %v, want %v", row, noticed, verify)
			}
		}
	}
}
