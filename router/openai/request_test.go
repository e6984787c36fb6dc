// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/router/openai"
)

func chat(more string) string {
	if more != "" {
		more = "," + more
	}
	return `{"model":"m","messages":[{"role":"user","content":"hi"}]` + more + `}`
}

func completion(prompt, more string) string {
	if more != "" {
		more = "," + more
	}
	return `{"model":"m","prompt":` + prompt + more + `}`
}

var defaults = sampling.Params{Temperature: 1, TopP: 1, RepetitionPenalty: 1}

func TestParse_Accepts(t *testing.T) {
	hi := engines.Prompt{Messages: []engines.Message{{Role: "user", Content: "hi"}}}
	with := func(change func(*openai.Request)) openai.Request {
		r := openai.Request{Kind: openai.Chat, Engine: engines.Request{Model: "m", Prompt: hi, Sampling: defaults}}
		change(&r)
		return r
	}
	text := func(change func(*openai.Request)) openai.Request {
		r := openai.Request{Kind: openai.Completion, Engine: engines.Request{Model: "m", Prompt: engines.Prompt{Text: "hi"}, Sampling: defaults, MaxTokens: 16}}
		change(&r)
		return r
	}
	same := func(*openai.Request) {}
	for _, tt := range []struct {
		name, body string
		kind       openai.Kind
		want       openai.Request
	}{
		{"minimal", chat(""), openai.Chat, with(same)},
		{"unknown fields are ignored", chat(`"user":"u","metadata":{"a":1},"store":true,"service_tier":"auto","parallel_tool_calls":true,"whatever":[1]`), openai.Chat, with(same)},
		{"nulls are absent", chat(`"temperature":null,"seed":null,"stop":null,"tools":null,"n":null,"logprobs":null,"stream_options":null,"logit_bias":null`), openai.Chat, with(same)},
		{"harmless values", chat(`"n":1,"tools":[],"tool_choice":"none","response_format":{"type":"text"},"logprobs":false,"top_logprobs":0,"modalities":["text"],"guided_json":"","skip_special_tokens":true`), openai.Chat, with(same)},
		{"sampling", chat(`"temperature":0,"top_k":5,"top_p":0.5,"min_p":0.1,"repetition_penalty":1.1,"presence_penalty":-1,"frequency_penalty":2,"logit_bias":{"7":-100},"seed":42`), openai.Chat,
			with(func(r *openai.Request) {
				r.Seeded = true
				r.Engine.Sampling = sampling.Params{TopK: 5, TopP: .5, MinP: .1, RepetitionPenalty: 1.1, PresencePenalty: -1, FrequencyPenalty: 2, LogitBias: map[int32]float64{7: -100}, Seed: 42}
			})},
		{"top_k -1 is all", chat(`"top_k":-1`), openai.Chat, with(same)},
		{"negative seed", chat(`"seed":-1`), openai.Chat, with(func(r *openai.Request) { r.Seeded, r.Engine.Sampling.Seed = true, 1<<64-1 })},
		{"seed zero is a seed", chat(`"seed":0`), openai.Chat, with(func(r *openai.Request) { r.Seeded = true })},
		{"limits", chat(`"max_tokens":9,"max_completion_tokens":12,"min_tokens":3,"ignore_eos":true,"stop":["a","b"]`), openai.Chat,
			with(func(r *openai.Request) {
				r.Engine.MaxTokens, r.Engine.MinTokens, r.Engine.IgnoreEOS, r.Engine.Stop = 12, 3, true, []string{"a", "b"}
			})},
		{"huge max_tokens is cut", chat(`"max_tokens":2000000000`), openai.Chat, with(func(r *openai.Request) { r.Engine.MaxTokens = 1 << 20 })},
		{"one stop string", chat(`"stop":"x"`), openai.Chat, with(func(r *openai.Request) { r.Engine.Stop = []string{"x"} })},
		{"streaming", chat(`"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true`), openai.Chat,
			with(func(r *openai.Request) { r.Stream, r.IncludeUsage, r.ReturnTokenIDs = true, true, true })},
		{"roles and parts", `{"model":"m","messages":[{"role":"developer","content":"be brief"},{"role":"assistant","content":null},{"role":"user","content":[{"type":"text","text":"h"},{"type":"text","text":"i"}],"name":"x"}]}`, openai.Chat,
			with(func(r *openai.Request) {
				r.Engine.Prompt.Messages = []engines.Message{{Role: "system", Content: "be brief"}, {Role: "assistant"}, {Role: "user", Content: "hi"}}
			})},
		{"text prompt", completion(`"hi"`, ""), openai.Completion, text(same)},
		{"one prompt in a list", completion(`["hi"]`, ""), openai.Completion, text(same)},
		{"ids", completion(`[1,2]`, `"max_tokens":3`), openai.Completion, text(func(r *openai.Request) { r.Engine.Prompt, r.Engine.MaxTokens = engines.Prompt{IDs: []int32{1, 2}}, 3 })},
		{"one list of ids", completion(`[[1,2]]`, ""), openai.Completion, text(func(r *openai.Request) { r.Engine.Prompt = engines.Prompt{IDs: []int32{1, 2}} })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := openai.Parse(tt.kind, []byte(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, *got, cmpopts.IgnoreUnexported(openai.Request{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParse_Refuses(t *testing.T) {
	for _, tt := range []struct {
		body    string
		param   string
		message string
	}{
		{chat(`"n":2`), "n", "one choice"},
		{chat(`"n":0`), "n", "one choice"},
		{chat(`"tools":[{"type":"function"}]`), "tools", "tool calls"},
		{chat(`"tool_choice":"auto"`), "tool_choice", "tool calls"},
		{chat(`"functions":[{}]`), "functions", "tool calls"},
		{chat(`"response_format":{"type":"json_object"}`), "response_format", "guided decoding"},
		{chat(`"guided_choice":["a"]`), "guided_choice", "guided decoding"},
		{chat(`"guided_regex":"a+"`), "guided_regex", "guided decoding"},
		{chat(`"structured_outputs":{"json":{}}`), "structured_outputs", "guided decoding"},
		{chat(`"logprobs":true`), "logprobs", "log probabilities"},
		{chat(`"top_logprobs":2`), "top_logprobs", "log probabilities"},
		{chat(`"modalities":["text","audio"]`), "modalities", "only text"},
		{chat(`"audio":{"voice":"x"}`), "audio", "only text"},
		{chat(`"adapters":["x"]`), "adapters", "adapters"},
		{chat(`"lora":"x"`), "lora", "adapters"},
		{chat(`"use_beam_search":true`), "use_beam_search", "beam"},
		{chat(`"continue_final_message":true`), "continue_final_message", "last message"},
		{completion(`"x"`, `"best_of":3`), "best_of", "one choice"},
		{completion(`"x"`, `"echo":true`), "echo", "echo"},
		{completion(`"x"`, `"suffix":"y"`), "suffix", "suffix"},
		{completion(`"x"`, `"logprobs":0`), "logprobs", "log probabilities"},
		{completion(`["a","b"]`, ""), "prompt", "one prompt"},
		{completion(`""`, ""), "prompt", "empty"},
		{completion(`[]`, ""), "prompt", "empty"},
		{completion(`[-1]`, ""), "prompt", "negative"},
		{completion(`[1.5]`, ""), "prompt", "list of token ids"},
		{completion(`{}`, ""), "prompt", "list of token ids"},
		{completion(`["a",1]`, ""), "prompt", "one prompt"},
		{`{"model":"m","prompt":null}`, "prompt", "required"},
		{`{"prompt":"x"}`, "model", "/v1/models"},
		{`{"model":7,"prompt":"x"}`, "model", "a string"},
		{`{"model":"m"}`, "messages", "required"},
		{`{"model":"m","messages":[]}`, "messages", "1 to"},
		{`{"model":"m","messages":"hi"}`, "messages", "list"},
		{`{"model":"m","messages":[{"content":"x"}]}`, "messages[0].role", "required"},
		{`{"model":"m","messages":[{"role":"tool","content":"x"}]}`, "messages[0].role", "assistant"},
		{`{"model":"m","messages":[{"role":"user"}]}`, "messages[0].content", "required"},
		{`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, "messages[0].content[0]", "type text"},
		{`{"model":"m","messages":[{"role":"user","content":7}]}`, "messages[0].content", "list of text parts"},
		{`{"model":"m","messages":[{"role":"assistant","content":"x","tool_calls":[{}]}]}`, "messages[0].tool_calls", "only text"},
		{chat(`"temperature":3`), "temperature", "between 0 and 2"},
		{chat(`"temperature":"hot"`), "temperature", "a number"},
		{chat(`"top_p":1.5`), "top_p", "between 0 and 1"},
		{chat(`"top_k":-2`), "top_k", "between -1"},
		{chat(`"max_tokens":0`), "max_tokens", "between 1"},
		{chat(`"max_tokens":1.5`), "max_tokens", "an integer"},
		{chat(`"max_tokens":5,"min_tokens":6`), "min_tokens", "more than max_tokens"},
		{chat(`"seed":1.5`), "seed", "64-bit integer"},
		{chat(`"seed":18446744073709551616`), "seed", "64-bit integer"},
		{chat(`"logit_bias":{"x":1}`), "logit_bias", "not a token id"},
		{chat(`"logit_bias":{"1":101}`), "logit_bias", "between -100 and 100"},
		{chat(`"stop":[""]`), "stop", "empty"},
		{chat(`"stop":7`), "stop", "list of strings"},
		{chat(`"stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"]`), "stop", "limit 16"},
		{chat(`"stream":"yes"`), "stream", "true or false"},
		{chat(`"stream_options":{"include_usage":true}`), "stream_options", `"stream": true`},
		{chat(`"temperature":9,"top_p":9`), "temperature", "top_p"},
	} {
		t.Run(tt.body, func(t *testing.T) {
			kind := openai.Chat
			if strings.Contains(tt.body, `"prompt"`) {
				kind = openai.Completion
			}
			_, err := openai.Parse(kind, []byte(tt.body))
			e, ok := errors.AsType[*openai.Error](err)
			if !ok {
				t.Fatalf("Parse = %v", err)
			}
			if e.Status != 400 || e.Param != tt.param || !strings.Contains(e.Message, tt.message) {
				t.Errorf("status %d, param %q: %s", e.Status, e.Param, e.Message)
			}
		})
	}
}

func TestError_Body(t *testing.T) {
	e := &openai.Error{Status: 502, Code: openai.CodeInterrupted, Message: "m <&>", RequestID: "r", PartialOutput: true, Delivered: 37, Cause: "reset"}
	want := `{"error":{"code":"upstream_decode_interrupted","message":"m <&>","type":"server_error","request_id":"r","partial_output":true,"delivered_output_tokens":37,"retryable":false,"cause":"reset"}}`
	if got := string(e.Body()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	inner, err := json.Marshal(e)
	if err != nil || !strings.HasPrefix(string(inner), `{"code":`) {
		t.Errorf("MarshalJSON = %s, %v", inner, err)
	}
}

func TestAppendEvent_IsOneFrame(t *testing.T) {
	e := openai.Envelope{Kind: openai.Chat, ID: "x", Model: "m"}
	frame := string(openai.AppendEvent(nil, e.Content("a\nb\r\n\u2028\x00\"", openai.Tokens{})))
	if strings.Count(frame, "\n") != 2 || strings.Contains(frame, "\r") || !strings.HasSuffix(frame, "\n\n") || !strings.HasPrefix(frame, "data: {") {
		t.Errorf("%q", frame)
	}
}
