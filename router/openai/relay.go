// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"github.com/tidwall/gjson"
)

// ParseRelayed reads what a router needs to know of a request that it passes on as it is. Fields that it doesn't know
// aren't looked at. Errors are *Error with status 400.
func ParseRelayed(kind Kind, body []byte) (*Request, error) {
	raw, err := parseObject(body)
	if err != nil {
		return nil, err
	}
	if name := repeated(body); name != "" {
		return nil, Invalid(name, name+": is there twice, and servers differ in which one they take")
	}
	f := &fields{raw: raw}
	r := &Request{Kind: kind, Body: body}
	r.Engine.Model = f.str("model")
	if r.Engine.Model == "" {
		f.fail("model", "is required; GET /v1/models lists what is served")
	}
	f.streaming(r)
	r.ReturnTokenIDs = false // the server's own matter
	r.Engine.MaxTokens = f.integer("max_tokens", 0, 0, maxTokens)
	if kind == Chat {
		r.Engine.MaxTokens = f.integer("max_completion_tokens", r.Engine.MaxTokens, 0, maxTokens)
		r.promptBytes = len(raw["messages"])
	} else {
		r.promptBytes = len(raw["prompt"])
	}
	if f.err != nil {
		return nil, f.err
	}
	return r, nil
}

// repeated is the name of a field that a valid JSON object has twice, or empty.
func repeated(body []byte) (name string) {
	seen := map[string]bool{}
	gjson.ParseBytes(body).ForEach(func(key, _ gjson.Result) bool {
		if seen[key.String()] {
			name = key.String()
		}
		seen[key.String()] = true
		return name == ""
	})
	return name
}
