// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"github.com/seguekv/segue/engines/openai"
)

const head = `"id":"chatcmpl-ours","created":7,"model":"ours","system_fingerprint":"fp"`

func TestRewrite_Bytes(t *testing.T) {
	quiet := func(*openai.Envelope) {}
	for _, c := range []struct {
		name, in, want string
		set            func(*openai.Envelope)
	}{
		{"replaced in place", `{ "id": "x" ,"object":"o", "created":1,"model":"m","system_fingerprint":null,"choices":[]}`,
			`{ "id": "chatcmpl-ours" ,"object":"o", "created":7,"model":"ours","system_fingerprint":"fp","choices":[]}`, quiet},
		{"added", `{"choices":[]}`, `{"choices":[],` + head + `}`, quiet},
		{"added to nothing", ` { } `, ` { ` + head + `} `, quiet},
		{"fingerprint removed", `{"id":1,"created":2,"model":3,"system_fingerprint":"x"}`,
			`{"id":"chatcmpl-ours","created":7,"model":"ours"}`, func(e *openai.Envelope) { e.Fingerprint = "" }},
		{"error:null first", `{"error":null,"a":1}`, `{"a":1,` + head + `}`, quiet},
		{"error:null last", `{"a":1 , "error" : null }`, `{"a":1  ,` + head + `}`, quiet},
		{"error:null alone", `{"error":null}`, `{` + head + `}`, quiet},
		{"error:null twice", `{"error":null,"error":null,"a":1,"error":null}`, `{"a":1,` + head + `}`, quiet},
		{"error:null within stays", `{"a":{"error":null}}`, `{"a":{"error":null},` + head + `}`, quiet},
		{"key with an escape", `{"err\u006fr":null,"m\u006fdel":"x"}`, `{"m\u006fdel":"ours","id":"chatcmpl-ours","created":7,"system_fingerprint":"fp"}`, quiet},
		{"usage not asked for", `{"choices":[{"index":0,"text":"x"}],"usage":{"a":1}}`, `{"choices":[{"index":0,"text":"x"}],` + head + `}`, quiet},
		{"usage asked for at the end", `{"choices":[{"index":0,"text":"x"}],"usage":{"a":1}}`, `{"choices":[{"index":0,"text":"x"}],"usage":null,` + head + `}`,
			func(e *openai.Envelope) { e.IncludeUsage = true }},
		{"usage chunk", `{"choices":[],"usage":{"a":1}}`, `{"choices":[],"usage":{"a":1},` + head + `}`, func(e *openai.Envelope) { e.IncludeUsage = true }},
		{"usage always", `{"choices":[{"index":0,"text":"x"}],"usage":{"a":1}}`, `{"choices":[{"index":0,"text":"x"}],"usage":{"a":1},` + head + `}`,
			func(e *openai.Envelope) { e.IncludeUsage, e.ContinuousUsage = true, true }},
		{"role added", `{"choices":[{"delta":{"content":"x"}}]}`, `{"choices":[{"delta":{"content":"x","role":"assistant"}}],` + head + `}`, quiet},
		{"role added to nothing", `{"choices":[{"delta":{}}]}`, `{"choices":[{"delta":{"role":"assistant"}}],` + head + `}`, quiet},
		{"role null", `{"choices":[{"delta":{"role":null,"content":"x"}}]}`, `{"choices":[{"delta":{"role":"assistant","content":"x"}}],` + head + `}`, quiet},
		{"role twice", `{"choices":[{"delta":{"role":"assistant","role":"assistant"}}]}`, `{"choices":[{"delta":{"role":"assistant"}}],` + head + `}`, quiet},
		{"unknown members and numbers stay", `{"x":1.0e+2,"y":12345678901234567890,"z":"\u00e9\/","choices":[{"index":0,"text":"a","w":[ ]}]}`,
			`{"x":1.0e+2,"y":12345678901234567890,"z":"\u00e9\/","choices":[{"index":0,"text":"a","w":[ ]}],` + head + `}`, quiet},
		{"lines are joined", "{\n\"x\":1,\r\n\"y\":\"\\n\"\n}", `{ "x":1,  "y":"\n",` + head + "}", quiet},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := envelope()
			c.set(&e)
			got := string(openai.Rewrite([]byte("> "), []byte(c.in), e))
			want := "> " + c.want
			if c.name == "lines are joined" {
				got, want = strings.Join(strings.Fields(got), ""), strings.Join(strings.Fields(want), "")
			}
			if got != want {
				t.Errorf("\ngot  %s\nwant %s", got, want)
			}
		})
	}
}

func TestRewrite_NoChunk(t *testing.T) {
	for _, in := range []string{"", "x", "[]", `{"choices":1}`, `{"a":1}{}`, "{\"a\":\"\xff\"}", `{"a":` + strings.Repeat("[", 10000) + strings.Repeat("]", 10000) + `}`} {
		if got := string(openai.Rewrite([]byte("> "), []byte(in), envelope())); got != "> "+in {
			t.Errorf("%.20q became %.40q", in, got)
		}
	}
}

func TestRewriter_OneRolePerChoice(t *testing.T) {
	w := openai.NewRewriter(envelope())
	in := `{"choices":[{"index":1,"delta":{"role":"assistant","content":"x"}},{"index":0,"delta":{"content":"y","role":"assistant"}}]}`
	for i := range 3 {
		out, err := w.Append(nil, []byte(in))
		if err != nil || !gjson.ValidBytes(out) {
			t.Fatalf("%s, %v", out, err)
		}
		if n := strings.Count(string(out), `"role"`); i == 0 && n != 2 || i > 0 && n != 0 {
			t.Errorf("chunk %d: %d roles in %s", i, n, out)
		}
	}
}

func TestChunk_ContentBearing(t *testing.T) {
	for delta, want := range map[string]bool{
		`{}`: false, `null`: false, `{"role":"assistant"}`: false, `{"role":"assistant","content":""}`: false, `{"content":null}`: false,
		`{"content":"x"}`: true, `{"content":" "}`: true, `{"reasoning_content":"x"}`: true, `{"reasoning":"x"}`: true, `{"reasoning_content":null}`: false,
		`{"refusal":"no"}`: true, `{"refusal":null}`: false, `{"content":[]}`: false, `{"content":[ ]}`: false, `{"content":[{"type":"text"}]}`: true, `{"audio":{"data":"x"}}`: true,
		`{"tool_calls":null}`: false, `{"tool_calls":[]}`: false, `{"tool_calls":[{"index":0,"function":{"arguments":""}}]}`: false,
		`{"tool_calls":[{"index":0,"id":"x"}]}`: true, `{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}`: true,
		`{"function_call":null}`: false, `{"function_call":{"name":"f"}}`: true, `{"function_call":{"arguments":""}}`: false,
		`{"something":"new"}`: true, `{"something":1}`: false, `{"something":{"a":1}}`: false,
	} {
		var c openai.Chunk
		if err := c.Parse([]byte(`{"choices":[{"index":3,"delta":` + delta + `,"logprobs":null,"finish_reason":null}],"usage":{"total_tokens":9}}`)); err != nil {
			t.Errorf("%s: %v", delta, err)
			continue
		}
		if c.ContentBearing() != want || len(c.Choices) != 1 || c.Choices[0].Index != 3 || !c.HasUsage || c.Usage.TotalTokens != 9 {
			t.Errorf("%s: content %v, want %v; %+v", delta, c.ContentBearing(), want, c.Usage)
		}
	}
	var c openai.Chunk
	for text, want := range map[string]bool{`"x"`: true, `""`: false, `null`: false} {
		if err := c.Parse([]byte(`{"choices":[{"text":` + text + `}]}`)); err != nil || c.ContentBearing() != want {
			t.Errorf("text %s: content %v, %v", text, c.ContentBearing(), err)
		}
	}
}

// TestTranscript_Pages plays what real servers send.
func TestTranscript_Pages(t *testing.T) {
	with := openai.Rules{Envelope: envelope()}
	with.Envelope.IncludeUsage = true
	for _, c := range []struct {
		page, text string
		tokens     int
		usage      openai.Usage
	}{
		{"llama_server_chat.sse", "The capital is Paris \U0001f600 [DONE]", 2, openai.Usage{PromptTokens: 35, CompletionTokens: 9, TotalTokens: 44}},
		{"vllm_chat.sse", "Paris.", 6, openai.Usage{PromptTokens: 31, CompletionTokens: 6, TotalTokens: 37}},
		{"sglang_completion.sse", " Paris.\n", 3, openai.Usage{PromptTokens: 5, CompletionTokens: 3, TotalTokens: 8}},
	} {
		t.Run(c.page, func(t *testing.T) {
			for _, r := range []openai.Rules{with, {Envelope: envelope()}} {
				a := play(t, r, page(t, c.page))
				a.good(t)
				if got := a.joined("choices.0.delta.content") + a.joined("choices.0.text"); got != c.text {
					t.Errorf("text %q", got)
				}
				if n := a.tokens + a.rest.Tokens; n != c.tokens {
					t.Errorf("%d tokens, want %d", n, c.tokens)
				}
				if !a.rest.UsageKnown || a.rest.Usage != c.usage {
					t.Errorf("usage %+v", a.rest.Usage)
				}
				n := 0
				if r.Envelope.IncludeUsage {
					n = 1
				}
				if got := a.count("usage"); got != n {
					t.Errorf("%d usage objects, want %d: %q", got, n, a.all())
				}
				for _, line := range a.all() {
					var got struct{ ID, Model, Object string }
					if err := json.Unmarshal([]byte(line), &got); err != nil || got.ID != "chatcmpl-ours" || got.Model != "ours" || got.Object == "" {
						t.Errorf("%s: %v", line, err)
					}
				}
			}
		})
	}
	a := play(t, with, page(t, "sglang_abort.sse"))
	if e := a.ends(t, openai.CauseEngineAbort); e.Deterministic {
		t.Error("an abort is not deterministic")
	}
	if len(a.lines) < 10 {
		t.Errorf("%d chunks before the abort", len(a.lines))
	}
}

func TestTranscript_UsageInOddPlaces(t *testing.T) {
	r := openai.Rules{Envelope: envelope()}
	r.Envelope.IncludeUsage = true
	inFinish := `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"x":[1]}}`
	for name, stream := range map[string]string{
		"own chunk": frames(role, hello, stop, usage, done), "first": frames(usage, role, hello, stop, done), "between": frames(role, usage, hello, usage, stop, done),
		"in the finish": frames(role, hello, inFinish, done), "before the finish": frames(role, hello, usage, stop, done),
		"null": frames(role, strings.Replace(hello, "{", `{"usage":null,`, 1), stop, usage, done),
	} {
		a := play(t, r, stream)
		a.good(t)
		last := a.final[len(a.final)-1]
		if a.count("usage") != 1 || gjson.Get(last, "usage.total_tokens").Int() != 5 || gjson.Get(last, "choices.#").Int() != 0 || !gjson.Get(last, "choices").IsArray() {
			t.Errorf("%s: %q", name, a.all())
		}
		plain := play(t, openai.Rules{Envelope: envelope()}, stream)
		plain.good(t)
		if strings.Contains(strings.Join(plain.all(), ""), "usage") || plain.rest.Usage != a.rest.Usage {
			t.Errorf("%s, not asked for: %q", name, plain.all())
		}
	}
	if a := play(t, r, frames(role, hello, stop, done)); a.rest.UsageKnown || len(a.final) != 1 {
		t.Errorf("usage is invented: %q", a.final)
	}
}

func TestTranscript_OtherChunksPass(t *testing.T) {
	filter := `{"choices":[],"prompt_filter_results":[{"prompt_index":0}]}`
	a := play(t, openai.Rules{Envelope: envelope()}, frames(filter, role, hello, stop, done))
	a.good(t)
	if a.count("prompt_filter_results") != 1 || a.content[0] {
		t.Errorf("%q", a.all())
	}
	multi := "data: {\"choices\":[{\"index\":0,\ndata: \"delta\":{\"content\":\"x\"}}]}\n\n"
	a = play(t, openai.Rules{Envelope: envelope()}, multi+frames(stop, done))
	a.good(t)
	if d := cmp.Diff("x", a.joined("choices.0.delta.content")); d != "" {
		t.Error(d)
	}
}
