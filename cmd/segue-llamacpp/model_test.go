// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/engines/llamacpp"
	"github.com/seguekv/segue/snapshot"
)

// pinnedModel skips tests whose expected ids belong to one model.
func pinnedModel(t *testing.T) *model {
	t.Helper()
	m := testModel(t)
	d, err := fileDigest(m.path)
	if err != nil {
		t.Fatal(err)
	}
	if d.String() != "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53" {
		t.Skipf("SKIPPED: the expected ids are those of SmolLM2-135M-Instruct Q4_1; run: make deps, and unset SEGUE_LLAMA_MODEL")
	}
	return m
}

func TestModel_RendersChat(t *testing.T) {
	m := pinnedModel(t)
	got, err := m.render(engines.Prompt{Messages: []engines.Message{
		{Role: "system", Content: "You are terse."},
		{Role: "user", Content: "Wie heißt du? 你好 😀"},
	}}, 512)
	if err != nil {
		t.Fatal(err)
	}
	want := []int32{
		1, 9690, 198, 2683, 359, 1733, 313, 30, 2, 198, // <|im_start|>system\nYou are terse.<|im_end|>\n
		1, 4093, 198, 71, 519, 384, 89, 34878, 100, 5766, 47, 216, 18645, 250, 48392, 138, 40303, 218, 2, 198,
		1, 520, 9531, 198, // <|im_start|>assistant\n
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
}

// TestModel_InsertsNoSystemPrompt holds the promise that a prompt is what the client sent.
func TestModel_InsertsNoSystemPrompt(t *testing.T) {
	m := pinnedModel(t)
	text, err := m.applyTemplate([]engines.Message{{Role: "user", Content: "Hi"}})
	if err != nil {
		t.Fatal(err)
	}
	if want := "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"; text != want {
		t.Errorf("got %q, want %q", text, want)
	}
}

// texts have characters that take several tokens.
func texts() []string {
	return []string{
		"plain", "你好，世界。日本語のテキスト", "😀😃 👨‍👩‍👧‍👦 🇩🇪", "naïve café Ωμέγα привет", "tab\tand\nnew line", strings.Repeat("é", 200),
		"\u200b\ufeff", "a\u0301\u0302\u0303",
	}
}

func TestModel_PiecesSpellTheText(t *testing.T) {
	m := testModel(t)
	for _, text := range texts() {
		ids, err := m.render(engines.Prompt{Text: text}, 4096)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		var spelled []byte
		for _, id := range ids {
			spelled = append(spelled, m.Piece(id)...)
		}
		if string(spelled) != text {
			t.Errorf("%q is spelled %q", text, spelled)
		}
	}
}

// TestEngine_EmitsWholeCharacters restores outputs that are cut inside characters, and finishes at the cut or
// a token later.
func TestEngine_EmitsWholeCharacters(t *testing.T) {
	m := testModel(t)
	e := testEngine(t)
	for _, text := range texts() {
		ids, err := m.render(engines.Prompt{Text: text}, 4096)
		if err != nil {
			t.Fatal(err)
		}
		for n := 1; n <= min(len(ids), 40); n++ {
			s := madeState(e.config.Geometry, 3+n-1)
			s.Prompt, s.Output, s.Sampler.Draws = s.Prompt[:3], ids[:n], uint64(n)
			q := engines.Request{Model: "m", Prompt: engines.Prompt{IDs: s.Prompt}, MaxTokens: n}
			r := enginetest.NewRestoredRecorder(s, false)
			if err := e.Run(t.Context(), engines.Job{Request: q, From: s}, r); err != nil {
				t.Fatalf("%q at %d: %v", text, n, err)
			}
			got := r.Text()
			if whole := strings.TrimRight(got, "\uFFFD"); !utf8.ValidString(got) || !strings.HasPrefix(text, whole) {
				t.Errorf("%q at %d: got %q", text, n, got)
			}
			if n == len(ids) && got != text {
				t.Errorf("%q: got %q", text, got)
			}
		}
	}
}

func TestModel_RefusesPrompts(t *testing.T) {
	m := testModel(t)
	for name, p := range map[string]engines.Prompt{
		"nothing":        {},
		"NUL in text":    {Text: "a\x00b"},
		"NUL in message": {Messages: []engines.Message{{Role: "user", Content: "\x00"}}},
		"NUL in role":    {Messages: []engines.Message{{Role: "us\x00er", Content: "a"}}},
		"id outside":     {IDs: []int32{1, int32(m.size())}},
		"negative id":    {IDs: []int32{-1}},
	} {
		if ids, err := m.render(p, 512); err == nil {
			t.Errorf("%s: rendered to %d", name, ids)
		} else if e, ok := errors.AsType[*engines.RequestError](err); !ok || e.Field == "" {
			t.Errorf("%s: got %v, want a *RequestError with a field", name, err)
		}
	}
	if _, err := m.render(engines.Prompt{Text: strings.Repeat(" ", 8<<20)}, 512); err == nil {
		t.Error("8 MiB of text were rendered for a context of 512")
	} else if e, ok := errors.AsType[*engines.PromptTooLongError](err); !ok || e.Limit != 512 {
		t.Errorf("got %v, want a *PromptTooLongError", err)
	}
	if p := m.Piece(int32(m.size())); p != nil || m.EOG(-1) {
		t.Error("ids outside the vocabulary have text or end a generation")
	}
}

func TestModel_EndsGenerations(t *testing.T) {
	m := pinnedModel(t)
	var eog []int32
	for id := range int32(m.size()) {
		if m.EOG(id) {
			eog = append(eog, id)
		}
	}
	if want := []int32{0, 2, 4}; !slices.Equal(eog, want) {
		t.Errorf("got %d, want %d", eog, want)
	}
}

func TestLoadModel_SaysWhatIsWrong(t *testing.T) {
	m := testModel(t)
	path := filepath.Join(t.TempDir(), "broken.gguf")
	if err := os.WriteFile(path, []byte("GGUF\x03\x00\x00\x00 and nonsense"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := loadModel(m.lib, path)
	if p, ok := errors.AsType[*llamacpp.PartError](err); !ok || p.Path != path || p.Hint == "" || strings.Contains(p.Problem, "no reason") {
		t.Errorf("got %v, want a *PartError with the reason of llama.cpp", err)
	}
}

// TestLoadModel_RefusesSlidingWindow needs a model that nothing here may ship.
func TestLoadModel_RefusesSlidingWindow(t *testing.T) {
	path := os.Getenv("SEGUE_LLAMA_WINDOW_MODEL")
	if path == "" {
		t.Skip("SKIPPED: set SEGUE_LLAMA_WINDOW_MODEL to a GGUF file of a model with a sliding window, for example gemma 3")
	}
	_, err := loadModel(testModel(t).lib, path)
	if _, ok := errors.AsType[*llamacpp.PartError](err); !ok || !strings.Contains(err.Error(), "sliding window") {
		t.Errorf("got %v, want a *PartError about the sliding window", err)
	}
}

func TestTraits_RefuseUnsupportedModels(t *testing.T) {
	good := traits{decoder: true, ropeType: ropeNorm}
	if err := good.check(); err != nil {
		t.Errorf("a plain decoder is refused: %v", err)
	}
	for _, c := range []struct {
		change func(*traits)
		want   string
	}{
		{func(t *traits) { t.window = 512 }, "sliding window of 512"},
		{func(t *traits) { t.recurrent = true }, "recurrent"},
		{func(t *traits) { t.hybrid = true }, "hybrid"},
		{func(t *traits) { t.diffusion = true }, "diffusion"},
		{func(t *traits) { t.encoder = true }, "decoder-only"},
		{func(t *traits) { t.decoder = false }, "decoder-only"},
		{func(t *traits) { t.ropeType = 8 }, "rotary embedding (type 8)"},
		{func(t *traits) { t.ropeType = 40 }, "rotary embedding (type 40)"},
		{func(t *traits) { t.ropeSections = true }, "rotary embedding"},
	} {
		bad := good
		c.change(&bad)
		if err := bad.check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want an error with %q", err, c.want)
		}
	}
}

// madeState is a state of many rows that nothing computed: small finite numbers, and ids that fit.
func madeState(g snapshot.Geometry, rows int) *snapshot.State {
	s := &snapshot.State{Geometry: g, Prompt: make([]int32, rows), Output: []int32{11}, Sampler: snapshot.Sampler{Draws: 1}}
	for i := range s.Prompt {
		s.Prompt[i] = int32(100 + i%1000)
	}
	x := uint32(1)
	for first := 0; first < rows; first += snapshot.BlockRows {
		b := make([]byte, min(snapshot.BlockRows, rows-first)*g.RowBytes())
		for i := 0; i+1 < len(b); i += 2 {
			x = x*1664525 + 1013904223
			b[i], b[i+1] = byte(x>>8), 0x30+byte(x>>24)&7
		}
		s.Blocks = append(s.Blocks, b)
	}
	return s
}
