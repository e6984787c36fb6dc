// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"github.com/seguekv/segue/engines/openai"
	"github.com/seguekv/segue/internal/invariant"
)

// FuzzParser compares with another parser, and with itself when each byte comes alone.
func FuzzParser(f *testing.F) {
	for _, c := range streams {
		f.Add([]byte(c.in))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		compareParsers(t, in)
		want, wantErr := parsed(bytes.NewReader(in), 0)
		got, err := parsed(iotest.OneByteReader(bytes.NewReader(in)), 0)
		if d := cmp.Diff(want, got); d != "" || !errors.Is(err, wantErr) {
			t.Errorf("byte by byte: %v, want %v (-whole +bytes):\n%s", err, wantErr, d)
		}
		if _, err := parsed(bytes.NewReader(in), 8); err == nil {
			t.Error("no end")
		}
	})
}

// FuzzRewrite: what is accepted is one JSON object, stays one, has our envelope, keeps unknown members, and doesn't change
// when it is rewritten again.
func FuzzRewrite(f *testing.F) {
	for _, in := range []string{role, hello, stop, usage, opened, part, called, "{}", `{"error":null,"a":[1,{"b":null}]}`, `{"model":1,"model":2}`, "{\"a\":\n1}", "[]", `{"choices":[{"delta":{"tool_calls":null}}]}`} {
		f.Add([]byte(in), false)
		f.Add([]byte(in), true)
	}
	f.Fuzz(func(t *testing.T, in []byte, include bool) {
		e := envelope()
		e.IncludeUsage = include
		var out []byte
		var err error
		if over := invariant.WithinBytes(1<<20+64*len(in), func() { out, err = openai.NewRewriter(e).Append(nil, in) }); over != nil {
			t.Fatalf("a chunk of %d bytes: %v", len(in), over)
		}
		isObject := json.Valid(in) && utf8.Valid(in) && bytes.TrimSpace(in)[0] == '{'
		switch {
		case errors.Is(err, openai.ErrNotJSON):
			if isObject && !strings.Contains(string(in), strings.Repeat("[", 100)) && !strings.Contains(string(in), strings.Repeat("{", 100)) {
				t.Errorf("refused: %q", in)
			}
			return
		case err != nil:
			return
		case !isObject:
			t.Fatalf("accepted: %q", in)
		}
		if !json.Valid(out) || bytes.ContainsAny(out, "\r\n") {
			t.Fatalf("%q became %q", in, out)
		}
		g := gjson.ParseBytes(out)
		if g.Get("id").String() != e.ID || g.Get("model").String() != e.Model || g.Get("created").Int() != e.Created || g.Get("error").Type == gjson.Null && g.Get("error").Exists() {
			t.Errorf("%q became %q", in, out)
		}
		again, err := openai.NewRewriter(e).Append(nil, out)
		if d := cmp.Diff(string(out), string(again)); d != "" || err != nil {
			t.Errorf("not stable: %v\n%s", err, d)
		}
		compareMembers(t, in, out)
	})
}

// compareMembers checks that members which aren't ours have the same bytes, in the same order.
func compareMembers(t *testing.T, in, out []byte) {
	t.Helper()
	others := func(b []byte) (list []string) {
		gjson.ParseBytes(b).ForEach(func(k, v gjson.Result) bool {
			switch k.String() {
			case "id", "created", "model", "system_fingerprint", "usage", "error", "choices":
			default:
				list = append(list, k.Raw+":"+strings.NewReplacer("\n", " ", "\r", " ").Replace(v.Raw))
			}
			return true
		})
		return list
	}
	if d := cmp.Diff(others(in), others(out)); d != "" {
		t.Errorf("other members (-in +out):\n%s", d)
	}
}

// FuzzTranscript plays arbitrary streams: nothing is said about a finish before the end, every line is JSON, and a good answer has
// a finish for each choice.
func FuzzTranscript(f *testing.F) {
	for _, s := range []string{
		frames(role, hello, stop, usage, done), frames(role, opened, part, rest, called, done), frames(role, opened, part, called, done),
		frames(hello, `{"error":{"code":500}}`, done), frames(role, hello), frames(finish("abort"), done),
	} {
		f.Add([]byte(s), false, uint8(0))
		f.Add([]byte(s), true, uint8(2))
	}
	f.Fuzz(func(t *testing.T, in []byte, hold bool, choices uint8) {
		var a *answered
		if over := invariant.WithinBytes(4<<20+4096*len(in), func() {
			a = play(t, openai.Rules{Envelope: envelope(), HoldToolCalls: hold, Choices: int(choices % 4), Limit: 1 << 16}, string(in))
		}); over != nil {
			t.Fatalf("a stream of %d bytes: %v", len(in), over)
		}
		for _, line := range a.lines {
			for _, reason := range gjson.Get(line, "choices.#.finish_reason").Array() {
				if s := reason.String(); s != "" && reason.Type == gjson.String && !strings.Contains(line, `"finish_reason":""`) {
					t.Errorf("finish before the end: %s", line)
				}
			}
			if hold && gjson.Get(line, "choices.0.delta.tool_calls.0.function").Exists() {
				t.Errorf("held call before the end: %s", line)
			}
		}
		if a.err != nil {
			if _, ok := errors.AsType[*openai.EndError](a.err); !ok {
				t.Errorf("%T: %v", a.err, a.err)
			}
			return
		}
		if !bytes.Contains(in, []byte(done)) || len(a.final) == 0 {
			t.Errorf("good without an end: %q", in)
		}
	})
}
