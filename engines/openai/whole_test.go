// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/engines/openai"
)

func TestWhole(t *testing.T) {
	chat := `{"id":"x","object":"chat.completion","created":1,"model":"m","error":null,"choices":[{"index":0,"message":{"role":"assistant","content":"hi","extra":[1, 2]},` +
		`"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,"details":null},"timings":{"a":1.50}}`
	out, u, err := openai.Whole([]byte(chat), envelope())
	want := `{"id":"chatcmpl-ours","object":"chat.completion","created":7,"model":"ours","choices":[{"index":0,"message":{"role":"assistant","content":"hi","extra":[1, 2]},` +
		`"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,"details":null},"timings":{"a":1.50},"system_fingerprint":"fp"}`
	if d := cmp.Diff(want, string(out)); d != "" || err != nil || u != (openai.Usage{PromptTokens: 3, CompletionTokens: 1, TotalTokens: 4}) {
		t.Errorf("%v, %+v (-want +got):\n%s", err, u, d)
	}
}

func TestWhole_Calls(t *testing.T) {
	body := `{"choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[` +
		`{"id":"x","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},{"id":"y","type":"function","function":{"name":"f","arguments":"{}"}},` +
		`{"id":"z","type":"custom","custom":{"name":"f","input":"{ no JSON"}}]},"finish_reason":"tool_calls"}]}`
	tr := openai.NewTranscript(openai.Rules{Envelope: envelope()})
	out, _, err := tr.Whole([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer(`"x"`, `"`+callID(0)+`"`, `"y"`, `"`+callID(1)+`"`, `"z"`, `"`+callID(2)+`"`).Replace(body)
	if d := cmp.Diff(strings.TrimSuffix(want, "}")+","+head+"}", string(out)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if list := tr.ToolCalls(); len(list) != 3 || list[0].ID != callID(0) || list[0].Arguments == list[1].Arguments || tr.FinishReason() != "tool_calls" {
		t.Errorf("calls %+v", list)
	}
}

func TestWhole_Endings(t *testing.T) {
	c := func(message, finish string) string {
		return `{"choices":[{"index":0,"message":` + message + `,"finish_reason":` + finish + `}]}`
	}
	const text = `{"role":"assistant","content":"x"}`
	for _, tc := range []struct {
		body string
		want openai.Cause
	}{
		{c(text, `"length"`), ""},
		{`{"choices":[{"index":0,"text":"x","finish_reason":"stop"}]}`, ""},
		{c(text, "null"), openai.CauseEOFNoFinish},
		{c(text, `"abort"`), openai.CauseEngineAbort},
		{`{"choices":[]}`, openai.CauseEOFNoFinish},
		{`{}`, openai.CauseEOFNoFinish},
		{`{"error":{"message":"no","code":500}}`, openai.CauseEngineErrorEvent},
		{`{"object":"error","message":"no"}`, openai.CauseEngineErrorEvent},
		{c(text, `"stop"`)[:20], openai.CauseMalformedFrame},
		{"", openai.CauseMalformedFrame},
		{"<html>", openai.CauseMalformedFrame},
		{c(`{"tool_calls":[{"id":"x","function":{"name":"f","arguments":"{\"a"}}]}`, `"tool_calls"`), openai.CauseInvalidToolJSON},
		{c(`{"function_call":{"name":"f","arguments":"{\"a"}}`, `"function_call"`), openai.CauseInvalidToolJSON},
		{c(`{"tool_calls":[],"tool_calls":[]}`, `"stop"`), openai.CauseMalformedFrame},
	} {
		_, _, err := openai.Whole([]byte(tc.body), envelope())
		e, _ := errors.AsType[*openai.EndError](err)
		switch {
		case tc.want == "" && err == nil:
		case e == nil || e.Cause != tc.want:
			t.Errorf("%s: %v, want %q", tc.body, err, tc.want)
		}
	}
	if _, _, err := openai.NewTranscript(openai.Rules{Choices: 2}).Whole([]byte(c(text, `"stop"`))); err == nil {
		t.Error("one of two choices is enough")
	}
}
