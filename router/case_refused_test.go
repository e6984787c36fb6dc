// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"net/http"
	"testing"
)

// Tests named TestCase_<number> show that a failure which another product was reported for doesn't happen here.

// refusedUpFront posts a request with each of the fields, which nothing here can continue after a failure, and checks
// that it is refused by name before any engine hears of it.
func refusedUpFront(t *testing.T, fields map[string]string) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		asked := 0
		for field, value := range fields {
			for _, stream := range []bool{true, false} {
				for path, body := range map[string]string{
					"/v1/chat/completions": chat(stream, `"`+field+`":`+value),
					"/v1/completions":      `{"model":"sim","prompt":"hi","` + field + `":` + value + `}`,
				} {
					asked++
					resp := w.post(path, body)
					e := w.failure(resp)
					if resp.StatusCode != http.StatusBadRequest || e.Code != "unsupported_parameter" || e.Param != field || e.Retryable || e.Partial {
						t.Errorf("%s with %s: status %d, %+v", path, field, resp.StatusCode, e)
					}
					if resp.Header.Get("X-Should-Retry") == "true" || resp.Header.Get("Retry-After") != "" {
						t.Errorf("%s with %s: headers %v invite to try again", path, field, resp.Header)
					}
				}
			}
		}
		for id, a := range w.agents {
			if c := a.calls(); len(c.generates)+len(c.takeovers)+len(c.pairs) != 0 {
				t.Errorf("%s was asked: %+v", id, c)
			}
		}
		if n := w.counter("segue_router_sessions_total", "rejected"); int(n) != asked {
			t.Errorf("%v refusals are counted, %d were made", n, asked)
		}
		// The same request without the field is served.
		if tr := w.stream(w.post("/v1/chat/completions", chat(true, ""))); !tr.done {
			t.Errorf("%s", tr.raw)
		}
	})
}

// Grammar state is no part of a snapshot: guided decoding is refused, never restarted at the grammar's root.
func TestCase_C1_GuidedDecodingIsRefused(t *testing.T) {
	const schema = `{"type":"object","properties":{"a":{"type":"integer"}}}`
	refusedUpFront(t, map[string]string{
		"response_format": `{"type":"json_schema","json_schema":{"name":"x","schema":` + schema + `}}`,
		"guided_json":     schema, "guided_regex": `"[ab]+"`, "guided_choice": `["a","b"]`, "guided_grammar": `"root ::= \"a\""`,
		"structured_outputs": `{"json":` + schema + `}`, "structural_tag": `{"begin":"<a>"}`, "json_schema": schema, "grammar": `"root ::= \"a\""`,
		"regex": `"[ab]"`, "ebnf": `"a"`, "guided_decoding_backend": `"outlines"`,
	})
	refusedUpFront(t, map[string]string{"response_format": `{"type":"json_object"}`})
}

// A tool call's parser state is unknown after a failure: requests with tools are refused, so that none is emitted twice.
func TestCase_C14_ToolsAreRefused(t *testing.T) {
	const tool = `{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}`
	refusedUpFront(t, map[string]string{
		"tools": `[` + tool + `]`, "functions": `[{"name":"f"}]`, "tool_choice": `"auto"`, "function_call": `{"name":"f"}`,
	})
	refusedUpFront(t, map[string]string{"tool_choice": `"required"`})
}
