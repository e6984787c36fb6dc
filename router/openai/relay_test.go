// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/seguekv/segue/internal/invariant"
	"github.com/seguekv/segue/router/openai"
)

func TestParseRelayed_Accepts(t *testing.T) {
	body := []byte(chat(`"stream":true,"stream_options":{"include_usage":true},"tools":[{"type":"function"}],"n":2,"max_tokens":9,"future_field":{"a":[1]}`))
	r, err := openai.ParseRelayed(openai.Chat, body)
	if err != nil {
		t.Fatal(err)
	}
	if r.Engine.Model != "m" || !r.Stream || !r.IncludeUsage || r.Engine.MaxTokens != 9 || string(r.Body) != string(body) {
		t.Errorf("%+v", r)
	}
	if short, long := r.PromptEstimate(), estimate(t, strings.Repeat("word ", 4000)); short < 1 || short > 50 || long < 4000 || long > 6000 {
		t.Errorf("estimates %d and %d", short, long)
	}
}

func estimate(t *testing.T, prompt string) int {
	t.Helper()
	r, err := openai.ParseRelayed(openai.Completion, []byte(completion(`"`+prompt+`"`, "")))
	if err != nil {
		t.Fatal(err)
	}
	return r.PromptEstimate()
}

func TestParseRelayed_Refuses(t *testing.T) {
	for name, tt := range map[string]struct{ body, param string }{
		"no model":               {`{"messages":[]}`, "model"},
		"model twice":            {`{"model":"a","messages":[],"model":"b"}`, "model"},
		"a field twice, escaped": {`{"model":"a","stream":true,"str\u0065am":false}`, "stream"},
		"stream isn't a bool":    {chat(`"stream":"yes"`), "stream"},
		"no object":              {`[]`, ""},
		"cut":                    {`{"model":"m"`, ""},
		"options without stream": {chat(`"stream_options":{}`), "stream_options"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := openai.ParseRelayed(openai.Chat, []byte(tt.body))
			e, ok := errors.AsType[*openai.Error](err)
			if !ok || e.Status != 400 || e.Param != tt.param || e.Message == "" {
				t.Errorf("%#v", err)
			}
		})
	}
}

func TestParseUpstreamError(t *testing.T) {
	for _, tt := range []struct {
		object string
		want   openai.UpstreamError
	}{
		{`{"error":{"message":"too long","type":"t","code":"c","param":"p"}}`, openai.UpstreamError{Message: "too long", Type: "t", Code: "c", Param: "p"}},
		{`{"object":"error","message":"too long","code":400}`, openai.UpstreamError{Message: "too long"}},
		{`{"detail":"Not Found"}`, openai.UpstreamError{}},
		{`<html>`, openai.UpstreamError{}},
	} {
		got := openai.ParseUpstreamError([]byte(tt.object))
		if (got == nil) != (tt.want == openai.UpstreamError{}) || got != nil && *got != tt.want {
			t.Errorf("%s: %+v", tt.object, got)
		}
	}
}

func FuzzParseRelayed(f *testing.F) {
	f.Add([]byte(chat(`"stream":true,"n":3`)), true)
	f.Add([]byte(`{"model":"m","prompt":["a","b"],"mod\u0065l":"x"}`), false)
	f.Add([]byte(`{"model":"m"`), false)
	f.Fuzz(func(t *testing.T, body []byte, isChat bool) {
		kind := openai.Completion
		if isChat {
			kind = openai.Chat
		}
		var r *openai.Request
		var err error
		if over := invariant.WithinBytes(1<<20+256*len(body), func() { r, err = openai.ParseRelayed(kind, body) }); over != nil {
			t.Fatalf("a body of %d bytes: %v", len(body), over)
		}
		if err != nil {
			if e, ok := errors.AsType[*openai.Error](err); !ok || e.Status < 400 || e.Status > 499 || !json.Valid(e.Body()) {
				t.Errorf("%#v", err)
			}
			return
		}
		var top map[string]json.RawMessage
		if json.Unmarshal(body, &top) != nil || r.Engine.Model == "" || r.PromptEstimate() < 1 {
			t.Errorf("accepted %q as %+v", body, r)
		}
	})
}
