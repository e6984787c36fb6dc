// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/bench"
	"github.com/seguekv/segue/bench/client"
)

// tokenizer answers every chat request with one token; it counts a token per three bytes and 12 for the template.
func tokenizer(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body client.Body
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		n := count(body)
		chunk := func(rest string) {
			fmt.Fprintf(w, `data: {"id":"x","object":"chat.completion.chunk",%s}`+"\n\n", rest)
		}
		chunk(`"choices":[{"index":0,"delta":{"role":"assistant"}}]`)
		chunk(`"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[1],"token_index":0,"finish_reason":"length"}]`)
		chunk(fmt.Sprintf(`"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":1,"total_tokens":%d}`, n, n+1))
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func count(b client.Body) int {
	n := 12
	for _, m := range b.Messages {
		n += len(m.Content) / 3
	}
	return n
}

func TestPrompts_HaveTheirLengths(t *testing.T) {
	bodies, targets, err := bench.SizedPrompts(t.Context(), tokenizer(t), 7, 12, 1, bench.SamplingSeeded)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range bodies {
		if got := count(b); got < targets[i]-5 || got > targets[i]+5 {
			t.Errorf("prompt %d has %d tokens instead of %d", i, got, targets[i])
		}
		if len(b.Messages) != 2 || b.Messages[0].Role != "system" || b.Messages[0].Content == "" || b.Seed == 0 {
			t.Errorf("prompt %d lacks an explicit system message or seed", i)
		}
		if b.MinTokens < 64 || b.MaxTokens < b.MinTokens || b.Temperature == 0 {
			t.Errorf("prompt %d: %+v", i, b)
		}
	}
}

func TestPrompts_FollowFromTheSeed(t *testing.T) {
	url := tokenizer(t)
	first, _, err := bench.SizedPrompts(t.Context(), url, 3, 8, 1, bench.SamplingGreedy)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := bench.SizedPrompts(t.Context(), url, 3, 8, 1, bench.SamplingGreedy)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Error(diff)
	}
	other, _, err := bench.SizedPrompts(t.Context(), url, 4, 8, 1, bench.SamplingGreedy)
	if err != nil {
		t.Fatal(err)
	}
	if cmp.Equal(first, other) {
		t.Error("another seed gives the same prompts")
	}
	for i, b := range first {
		if b.Temperature != 0 || b.RepetitionPenalty != 0 {
			t.Errorf("greedy prompt %d: %+v", i, b)
		}
	}
}

func TestPrompts_OfAGroupHaveOneLengthAndDifferentTexts(t *testing.T) {
	bodies, targets, err := bench.SizedPrompts(t.Context(), tokenizer(t), 3, 8, 4, bench.SamplingSeeded)
	if err != nil {
		t.Fatal(err)
	}
	texts := make(map[string]bool)
	for i, b := range bodies {
		if targets[i] != targets[i/4*4] {
			t.Errorf("targets %v", targets)
		}
		texts[b.Messages[1].Content] = true
	}
	if len(texts) != len(bodies) {
		t.Errorf("%d different texts of %d", len(texts), len(bodies))
	}
}

func TestText_IsWholeCharactersOfAnySize(t *testing.T) {
	for _, kind := range bench.Kinds() {
		for size := range 700 {
			text := bench.Text(kind, size, size)
			if text == "" || !utf8.ValidString(text) || (size >= 4 && len(text) > size) {
				t.Fatalf("%s, %d bytes: %q", kind, size, text)
			}
		}
		if got := len(bench.Text(kind, 1, 20_000)); got < 19_000 {
			t.Errorf("%s: only %d of 20000 bytes", kind, got)
		}
	}
}

func TestText_HasCJKAndEmoji(t *testing.T) {
	if !strings.ContainsAny(bench.Text("cjk", 0, 3000), "灯市편") || !strings.ContainsRune(bench.Text("emoji", 0, 3000), '🌊') {
		t.Error("the corpus lacks scripts")
	}
}

func TestRefit_ScalesTheText(t *testing.T) {
	text, err := bench.Refit("english", 100, 400, 200)
	if err != nil || len(text) < 195 || len(text) > 200 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}
