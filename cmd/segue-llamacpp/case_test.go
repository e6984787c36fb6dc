// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seguekv/segue/compat"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/decode"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/engines/llamacpp"
	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/snapshot"
)

// Tests named TestCase_<number> show that a failure which another product was reported for doesn't happen here.

// casePrompt takes more than two chunks.
var casePrompt = engines.Prompt{Text: strings.Repeat("The ferry left the harbour before sunrise and came back at noon. ", 9)}

func caseJob(d *engines.Description, p sampling.Params) engines.Job {
	return engines.Job{Capture: true, Request: engines.Request{Model: d.Model, Prompt: casePrompt, MaxTokens: 24, MinTokens: 24, Sampling: p}}
}

// recorded runs a job from its prompt and returns what it produced.
func recorded(t *testing.T, e engines.Engine, job engines.Job) *enginetest.Recorder {
	t.Helper()
	d, err := e.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := enginetest.NewRecorder(d.Geometry, true)
	if err := e.Run(t.Context(), job, r); err != nil {
		t.Fatal(err)
	}
	return r
}

// restored continues a job from a state.
func restored(t *testing.T, e engines.Engine, job engines.Job, from *snapshot.State) *enginetest.Recorder {
	t.Helper()
	job.From = from
	r := enginetest.NewRestoredRecorder(from, true)
	if err := e.Run(t.Context(), job, r); err != nil {
		t.Fatal(err)
	}
	return r
}

func observe(t *testing.T, e engines.Engine) engines.Facts {
	t.Helper()
	f, err := e.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func stateAt(t *testing.T, r *enginetest.Recorder, n int) *snapshot.State {
	t.Helper()
	s, err := r.State(n)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A restore that says it worked has loaded every row, and nothing of the prompt is computed again.
func TestCase_B2_RestoreIsReuse(t *testing.T) {
	e := testEngine(t)
	job := caseJob(&e.description, sampling.Params{Temperature: 0.7, TopP: 0.9, Seed: 3})
	want := recorded(t, e, job)
	for _, n := range []int{1, 2, 16, 17, 23} {
		s := stateAt(t, want, n)
		before := observe(t, e)
		got := restored(t, e, job, s)
		after := observe(t, e)
		if after.PrefillTokens != before.PrefillTokens || after.ReplayedDecodeSteps != before.ReplayedDecodeSteps {
			t.Errorf("boundary %d: %d prompt tokens and %d steps were computed again", n, after.PrefillTokens-before.PrefillTokens, after.ReplayedDecodeSteps-before.ReplayedDecodeSteps)
		}
		if rows, bytes := after.RestoredRows-before.RestoredRows, after.RestoredBytes-before.RestoredBytes; rows != uint64(s.Rows()) || bytes != rows*uint64(s.Geometry.RowBytes()) {
			t.Errorf("boundary %d: %d rows and %d bytes were loaded, the state has %d rows", n, rows, bytes, s.Rows())
		}
		if steps := after.DecodeSteps - before.DecodeSteps; steps != uint64(24-n) {
			t.Errorf("boundary %d: %d steps for %d new tokens", n, steps, 24-n)
		}
		if diff := cmp.Diff(want.IDs(), got.IDs()); diff != "" {
			t.Errorf("boundary %d: ids (-uninterrupted +restored):\n%s", n, diff)
		}
	}
}

// recurrent is a model with state that isn't in the rows: its logits depend on how many positions it has computed
// since the last reset, as those of a recurrent layer do.
type recurrent struct {
	*modelContext
	computed int
}

func (r *recurrent) Reset() error { r.computed = 0; return r.modelContext.Reset() }

func (r *recurrent) Prefill(ids []int32, first int, last bool) error {
	r.computed += len(ids)
	return r.modelContext.Prefill(ids, first, last)
}

func (r *recurrent) Step(id int32, pos int) error {
	r.computed++
	return r.modelContext.Step(id, pos)
}

func (r *recurrent) Logits() sampling.Logits {
	l := slices.Clone(r.modelContext.Logits().Values)
	l[r.computed%len(l)] += 1e-3
	return sampling.Logits{Values: l}
}

// Models whose state isn't all in rows are refused: by what their file says, and by the canary where the file is wrong.
func TestCase_B3_HybridAndRecurrentModelsAreRefused(t *testing.T) {
	for name, bad := range map[string]traits{
		"hybrid":         {decoder: true, hybrid: true},
		"recurrent":      {decoder: true, recurrent: true},
		"sliding window": {decoder: true, window: 1024},
	} {
		if err := bad.check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want a refusal that says so", name, err)
		}
	}
	c := testContext(t, 256)
	var _ decode.Model = (*recurrent)(nil)
	if err := canary(&recurrent{modelContext: c}, c.layout.Geometry()); !errors.Is(err, errCanary) {
		t.Errorf("a model with hidden state passes the canary: %v", err)
	}
	if err := canary(c, c.layout.Geometry()); err != nil {
		t.Errorf("and the plain one doesn't: %v", err)
	}
}

// States that don't fit never reach llama.cpp, which aborts on some of them: each is refused, and the context goes on
// to compute the same as before.
func TestCase_B5_DamagedStatesAreRefusedBeforeTheEngine(t *testing.T) {
	e := testEngine(t)
	job := caseJob(&e.description, sampling.Params{})
	want := recorded(t, e, job)
	for name, damage := range map[string]func(s *snapshot.State){
		"no rows":           func(s *snapshot.State) { s.Blocks = nil },
		"block missing":     func(s *snapshot.State) { s.Blocks = s.Blocks[1:] },
		"last block cut":    func(s *snapshot.State) { b := &s.Blocks[len(s.Blocks)-1]; *b = (*b)[:len(*b)-1] },
		"first block empty": func(s *snapshot.State) { s.Blocks[0] = nil },
		"block too many":    func(s *snapshot.State) { s.Blocks = append(s.Blocks, s.Blocks[0]) },
		"no ids":            func(s *snapshot.State) { s.Prompt = nil },
		"no output":         func(s *snapshot.State) { s.Output = nil },
		"ids without rows":  func(s *snapshot.State) { s.Prompt = append(s.Prompt, make([]int32, 5000)...) },
		"draws":             func(s *snapshot.State) { s.Sampler.Draws++ },
		"other type":        func(s *snapshot.State) { s.Geometry.Layers[0].KType = "f32" },
		"layer missing":     func(s *snapshot.State) { s.Geometry.Layers = s.Geometry.Layers[1:] },
		"layers swapped": func(s *snapshot.State) {
			l := s.Geometry.Layers
			l[0].KBytes, l[1].KBytes = l[0].KBytes+2, l[1].KBytes-2
		},
		"wide row":           func(s *snapshot.State) { s.Geometry.Layers[2].VBytes = snapshot.MaxRowBytes },
		"negative row":       func(s *snapshot.State) { s.Geometry.Layers[2].VBytes = -8 },
		"id out of range":    func(s *snapshot.State) { s.Output[len(s.Output)-1] = int32(e.description.Vocabulary) },
		"negative id":        func(s *snapshot.State) { s.Output[len(s.Output)-1] = -1 },
		"id inside":          func(s *snapshot.State) { s.Prompt[3] = 1 << 30 },
		"more than contexts": func(s *snapshot.State) { *s = *madeState(e.description.Geometry, 256) },
	} {
		s := stateAt(t, want, 9)
		s.Geometry.Layers = slices.Clone(s.Geometry.Layers)
		s.Prompt, s.Output, s.Blocks = slices.Clone(s.Prompt), slices.Clone(s.Output), slices.Clone(s.Blocks)
		damage(s)
		before := observe(t, e)
		bad := job
		bad.From = s
		sink := enginetest.NewRecorder(e.description.Geometry, true)
		if err := e.Run(t.Context(), bad, sink); err == nil || len(sink.IDs()) > 9 {
			t.Errorf("%s: decoded %d tokens, error %v", name, len(sink.IDs()), err)
		}
		if after := observe(t, e); after.Running != 0 || after.DecodeSteps != before.DecodeSteps || after.PrefillTokens != before.PrefillTokens {
			t.Errorf("%s: computed something: %+v, before %+v", name, after, before)
		}
	}
	again := restored(t, e, job, stateAt(t, want, 9))
	if diff := cmp.Diff(want.IDs(), again.IDs()); diff != "" {
		t.Errorf("after the refusals (-want +got):\n%s", diff)
	}
}

// One state restored again and again, into used and unused contexts, continues in the same tokens with the same rows.
func TestCase_B6_SameRestoreSameOutput(t *testing.T) {
	e := testEngine(t)
	for name, p := range map[string]sampling.Params{"greedy": {}, "seeded": {Temperature: 0.9, TopP: 0.95, Seed: 11, RepetitionPenalty: 1.1}} {
		job := caseJob(&e.description, p)
		want := recorded(t, e, job)
		s := stateAt(t, want, 7)
		first := restored(t, e, job, s)
		for i := range cap(e.free) + 1 {
			if i == cap(e.free) { // other use of a context in between
				other := job
				other.Request.Prompt = engines.Prompt{Text: "Something else"}
				recorded(t, e, other)
			}
			again := restored(t, e, job, s)
			if diff := cmp.Diff(first.Tokens(), again.Tokens(), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("%s, restore %d (-first +again):\n%s", name, i, diff)
			}
			for pos := range first.Rows() {
				if !slices.Equal(first.Row(pos), again.Row(pos)) {
					t.Fatalf("%s, restore %d: row %d differs", name, i, pos)
				}
			}
		}
		if diff := cmp.Diff(want.IDs(), first.IDs()); diff != "" {
			t.Fatalf("%s: ids (-uninterrupted +restored):\n%s", name, diff)
		}
	}
}

// unsteady is a model that doesn't compute the same numbers twice.
type unsteady struct {
	*modelContext
	calls int
}

func (u *unsteady) Logits() sampling.Logits {
	u.calls++
	l := slices.Clone(u.modelContext.Logits().Values)
	l[0] += float32(u.calls)
	return sampling.Logits{Values: l}
}

// ... and where it isn't so, the engine doesn't start.
func TestCase_B6_UnsteadyEngineDoesntStart(t *testing.T) {
	c := testContext(t, 256)
	if err := canary(&unsteady{modelContext: c}, c.layout.Geometry()); !errors.Is(err, errCanary) {
		t.Errorf("got %v, want errCanary", err)
	}
}

// swapped loads every row with the K of two layers in each other's place, as after a change of the layout on one side.
type swapped struct{ *modelContext }

func (w swapped) Load(s *snapshot.State) error {
	s = enginetest.Clone(s)
	k := s.Geometry.Layers[0].KBytes
	second := k + s.Geometry.Layers[0].VBytes
	for i := range s.Rows() {
		row := s.RowData(i)
		for j := range k {
			row[j], row[second+j] = row[second+j], row[j]
		}
	}
	return w.modelContext.Load(s)
}

// A layout mix-up that every check of form passes is found before the engine serves anything.
func TestCase_D7_CanaryFindsALayoutMixUp(t *testing.T) {
	c := testContext(t, 256)
	if l := c.layout.Geometry().Layers; l[0].KBytes != l[1].KBytes || l[0].KType != l[1].KType {
		t.Fatal("layers 0 and 1 differ in form: the swap would be seen without the canary")
	}
	if err := canary(swapped{c}, c.layout.Geometry()); !errors.Is(err, errCanary) {
		t.Errorf("got %v, want errCanary", err)
	}
}

// Settings that change no number keep the fingerprint of a real engine, the others are refused by name.
func TestCase_D6_SettingsOfARealEngine(t *testing.T) {
	m := testModel(t)
	base, err := fingerprint(m, partsConfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		field string // "": allowed
		set   func() compat.Fingerprint
	}{
		{"contexts", "", func() compat.Fingerprint { c := partsConfig(); c.Contexts = 9; return mustPrint(t, m, c) }},
		{"context length", "", func() compat.Fingerprint { c := partsConfig(); c.ContextLength = 1024; return mustPrint(t, m, c) }},
		{"model name", "", func() compat.Fingerprint { c := partsConfig(); c.Name = "other"; return mustPrint(t, m, c) }},
		{"threads", "threads", func() compat.Fingerprint { c := partsConfig(); c.Threads = 2; return mustPrint(t, m, c) }},
		{"chunk", "prefill_chunk", func() compat.Fingerprint { c := partsConfig(); c.PrefillChunk = 32; return mustPrint(t, m, c) }},
	} {
		err := compat.Check(base, c.set())
		mismatch, refused := errors.AsType[*compat.MismatchError](err)
		if refused != (c.field != "") || refused && !slices.Equal(mismatch.Fields(), []string{c.field}) {
			t.Errorf("%s: %v, want refusal by %q", c.name, err, c.field)
		}
	}
}

func mustPrint(t *testing.T, m *model, c llamacpp.Config) compat.Fingerprint {
	t.Helper()
	f, err := fingerprint(m, c)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
