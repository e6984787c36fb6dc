// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/engines/sim"
)

func TestPiece_EveryBeginningOfACharacterCanBeCompleted(t *testing.T) {
	rests := map[int][]int32{}
	for id := int32(sim.Words); id < sim.Words+64*64; id++ {
		if p := sim.Piece(id); !utf8.RuneStart(p[0]) {
			rests[len(p)] = append(rests[len(p)], id)
		}
	}
	leads := 0
	for id := int32(sim.Words); id < sim.Words+64*64; id++ {
		k := sim.Lacks(id)
		if k == 0 {
			if p := sim.Piece(id); utf8.RuneStart(p[0]) && !utf8.Valid(p) {
				t.Errorf("piece %q of id %d is no beginning and not UTF-8", p, id)
			}
			continue
		}
		leads++
		for _, rest := range rests[k] {
			if s := append(sim.Piece(id), sim.Piece(rest)...); !utf8.Valid(s) {
				t.Fatalf("pieces of %d and %d make %q", id, rest, s)
			}
		}
	}
	if leads != 3*64 || len(rests) != 3 {
		t.Errorf("%d beginnings and %d kinds of rest", leads, len(rests))
	}
}

func TestPiece_AnyID(t *testing.T) {
	for _, id := range []int32{-1 << 31, -1, 0, sim.Words - 1, sim.Words, sim.Vocabulary - 1, sim.Vocabulary, 1<<31 - 1} {
		sim.Piece(id)
	}
}

func TestEngine_TextIsReadable(t *testing.T) {
	e := newEngine(t, quick())
	r := enginetest.NewRecorder(mustDescribe(t, e).Geometry, false)
	if err := e.Run(t.Context(), engines.Job{Request: greedy(900)}, r); err != nil {
		t.Fatal(err)
	}
	held := 0
	for _, k := range r.Tokens() {
		if k.RawEnd > k.TextEnd {
			held++
		}
		if k.ID == sim.EOG {
			t.Errorf("token %d ends the generation", k.Index)
		}
	}
	text := r.Text()
	t.Logf("%.400s", text)
	spaces, lines, broken := strings.Count(text, " "), strings.Count(text, "\n"), strings.Count(text, "\uFFFD")
	if spaces < 600 || lines < 2 || held < 15 || broken < 1 || broken > 20 || utf8.RuneCountInString(text) == len(text) {
		t.Errorf("%d spaces, %d newlines, %d tokens held back, %d broken characters, %d characters in %d bytes",
			spaces, lines, held, broken, utf8.RuneCountInString(text), len(text))
	}
}

func TestEngine_EndsAGeneration(t *testing.T) {
	c := quick()
	c.EOGEvery = 10
	e := newEngine(t, c)
	run := func(q engines.Request) *enginetest.Recorder {
		t.Helper()
		r := enginetest.NewRecorder(mustDescribe(t, e).Geometry, false)
		if err := e.Run(t.Context(), engines.Job{Request: q}, r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	q := greedy(500)
	ends := run(q)
	n := len(ends.IDs())
	if ends.Finish() != engines.FinishStop || ends.IDs()[n-1] != sim.EOG {
		t.Errorf("%d tokens, finish %q", n, ends.Finish())
	}
	q.MinTokens = 3 * n
	if r := run(q); r.Finish() != engines.FinishStop || len(r.IDs()) <= 3*n || slices.Index(r.IDs(), sim.EOG) != len(r.IDs())-1 {
		t.Errorf("MinTokens %d: %d tokens, first end at %d, finish %q", q.MinTokens, len(r.IDs()), slices.Index(r.IDs(), sim.EOG), r.Finish())
	}
	q.MinTokens, q.IgnoreEOS = 0, true
	if r := run(q); r.Finish() != engines.FinishLength || len(r.IDs()) != 500 || slices.Index(r.IDs(), sim.EOG) != n-1 {
		t.Errorf("IgnoreEOS: %d tokens, finish %q", len(r.IDs()), r.Finish())
	}
}

func TestEngine_SampledWordsComeBack(t *testing.T) {
	e := newEngine(t, quick())
	repeats := func(frequency float64) int {
		q := greedy(800)
		q.Sampling = sampling.Params{Temperature: 1, Seed: 9, FrequencyPenalty: frequency}
		r := enginetest.NewRecorder(mustDescribe(t, e).Geometry, false)
		if err := e.Run(t.Context(), engines.Job{Request: q}, r); err != nil {
			t.Fatal(err)
		}
		seen, n := map[int32]bool{}, 0
		for _, id := range r.IDs() {
			if seen[id] {
				n++
			}
			seen[id] = true
		}
		return n
	}
	free, penalised := repeats(0), repeats(2)
	if free < 40 || penalised > free/2 {
		t.Errorf("%d of 800 tokens repeat, %d with a frequency penalty", free, penalised)
	}
}

func TestRender_IsReversible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ -~]*`)).Draw(t, "text") + rapid.SampledFrom([]string{"a", "é", "\xff"}).Draw(t, "end")
		ids, err := sim.Render(engines.Prompt{Text: text})
		if err != nil {
			t.Fatal(err)
		}
		var back []byte
		for _, id := range ids {
			back = append(back, sim.Piece(id)...)
		}
		if string(back) != text {
			t.Fatalf("%q comes back as %q", text, back)
		}
		if same, err := sim.Render(engines.Prompt{IDs: ids}); err != nil || !slices.Equal(same, ids) {
			t.Fatalf("ids come back as %v, error %v", same, err)
		}
	})
}

func TestRender_DifferentChatsHaveDifferentIDs(t *testing.T) {
	chats := [][]engines.Message{
		{{Role: "user", Content: "hello"}},
		{{Role: "user", Content: "hello "}},
		{{Role: "user", Content: ""}},
		{{Role: "system", Content: "hello"}},
		{{Role: "userh", Content: "ello"}},
		{{Role: "user", Content: "hel"}, {Role: "user", Content: "lo"}},
		{{Role: "user", Content: "hel"}, {Role: "assistant", Content: "lo"}},
	}
	seen := map[string]int{}
	for i, chat := range chats {
		ids, err := sim.Render(engines.Prompt{Messages: chat})
		if err != nil {
			t.Fatal(err)
		}
		var key []byte
		for _, id := range ids {
			key = append(key, byte(id), byte(id>>8), byte(id>>16))
		}
		if j, ok := seen[string(key)]; ok {
			t.Errorf("chats %d and %d have the same ids", j, i)
		}
		seen[string(key)] = i
	}
}

func TestRender_Refuses(t *testing.T) {
	for name, p := range map[string]engines.Prompt{
		"id outside":  {IDs: []int32{sim.Vocabulary}},
		"negative id": {IDs: []int32{-1}},
	} {
		if _, err := sim.Render(p); err == nil {
			t.Errorf("%s: no error", name)
		} else if _, ok := errors.AsType[*engines.RequestError](err); !ok {
			t.Errorf("%s: %v, want a *engines.RequestError", name, err)
		}
	}
}
