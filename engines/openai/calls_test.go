// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"github.com/seguekv/segue/engines/openai"
)

// joinedCall is what a client reads of one call.
type joinedCall struct{ ID, Name, Arguments string }

// calls joins fragments as the client libraries do: strings are appended, whatever they say.
func (a *answered) calls(choice int) []joinedCall {
	var out []joinedCall
	for _, line := range a.all() {
		gjson.Get(line, `choices.#(index==`+strconv.Itoa(choice)+`).delta.tool_calls`).ForEach(func(_, c gjson.Result) bool {
			for len(out) <= int(c.Get("index").Int()) {
				out = append(out, joinedCall{})
			}
			k := &out[c.Get("index").Int()]
			k.ID += c.Get("id").String()
			k.Name += c.Get("function.name").String()
			k.Arguments += c.Get("function.arguments").String()
			return true
		})
	}
	return out
}

func rules(hold bool) openai.Rules {
	return openai.Rules{Envelope: envelope(), HoldToolCalls: hold}
}

func callID(ordinal int) string { return openai.CallID("t", "s", 0, ordinal) }

func TestTranscript_ParallelCalls(t *testing.T) {
	want := []joinedCall{{callID(0), "get_weather", `{"city": "Paris"}`}, {callID(1), "get_time", `{}`}}
	for _, hold := range []bool{false, true} {
		a := play(t, rules(hold), page(t, "vllm_tools.sse"))
		a.good(t)
		if d := cmp.Diff(want, a.calls(0)); d != "" {
			t.Errorf("hold %v (-want +got):\n%s", hold, d)
		}
		if a.count("choices.0.delta.role") != 1 || a.joined("choices.0.finish_reason") != "tool_calls" {
			t.Errorf("hold %v: %q", hold, a.all())
		}
		committed := false
		for _, c := range a.content {
			committed = committed || c
		}
		if committed == hold || a.rest.Content != hold {
			t.Errorf("hold %v: committed before the end %v, rest bears content %v", hold, committed, a.rest.Content)
		}
		if n := a.tokens + a.rest.Tokens; n != 5 {
			t.Errorf("hold %v: %d tokens, want one per fragment", hold, n)
		}
	}
}

func TestTranscript_HeldCallsComeWholeOrNotAtAll(t *testing.T) {
	stream := page(t, "vllm_tools.sse")
	events := strings.SplitAfter(stream, "\n\n")
	for n := range len(events) - 2 {
		a := play(t, rules(true), strings.Join(events[:n], ""))
		a.ends(t, openai.CauseEOFNoFinish)
		if strings.Contains(strings.Join(a.lines, ""), "tool_calls") {
			t.Errorf("a call was given before the end: %q", a.lines)
		}
		for i, c := range a.content {
			if c {
				t.Errorf("committed by %s", a.lines[i])
			}
		}
	}
}

func TestTranscript_TextBesideHeldCalls(t *testing.T) {
	both := `{"choices":[{"index":0,"delta":{"content":"I look.","tool_calls":[{"index":0,"id":"x","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":null}]}`
	for _, hold := range []bool{false, true} {
		a := play(t, rules(hold), frames(both, called, done))
		a.good(t)
		if !cmp.Equal(a.calls(0), []joinedCall{{callID(0), "f", "{}"}}) || a.joined("choices.0.delta.content") != "I look." {
			t.Errorf("hold %v: %q", hold, a.all())
		}
		if len(a.content) != 1 || !a.content[0] {
			t.Errorf("hold %v: the text doesn't commit: %v", hold, a.content)
		}
		if strings.Contains(a.lines[0], "tool_calls") == hold {
			t.Errorf("hold %v: %s", hold, a.lines[0])
		}
	}
}

func TestTranscript_LegacyFunctionCall(t *testing.T) {
	c := func(inside, finish string) string {
		return `{"choices":[{"index":0,"delta":{"role":"assistant","content":null,"function_call":{` + inside + `}},"finish_reason":` + finish + `}]}`
	}
	stream := frames(c(`"name":"f","arguments":""`, "null"), c(`"arguments":"{\"a\""`, "null"), c(`"name":"f","arguments":":1}"`, "null"), finish("function_call"), done)
	for _, hold := range []bool{false, true} {
		a := play(t, rules(hold), stream)
		a.good(t)
		if got := a.joined("choices.0.delta.function_call.name"); got != "f" {
			t.Errorf("hold %v: name %q", hold, got)
		}
		if got := a.joined("choices.0.delta.function_call.arguments"); got != `{"a":1}` {
			t.Errorf("hold %v: arguments %q", hold, got)
		}
	}
	play(t, rules(false), frames(c(`"name":"f","arguments":"{"`, "null"), finish("function_call"), done)).ends(t, openai.CauseInvalidToolJSON)
	play(t, rules(false), frames(c(`"arguments":"{}"`, "null"), finish("function_call"), done)).ends(t, openai.CauseInvalidToolJSON)
}

// TestTranscript_CallFragments has fragments as servers send them.
func TestTranscript_CallFragments(t *testing.T) {
	f := func(calls string) string {
		return `{"choices":[{"index":0,"delta":{"tool_calls":[` + calls + `]}}]}`
	}
	one := []joinedCall{{callID(0), "f", `{"a":1}`}}
	for _, c := range []struct {
		name  string
		calls []string
		want  []joinedCall // nil: invalid_tool_json
	}{
		{"in one", []string{`{"index":0,"id":"x","function":{"name":"f","arguments":"{\"a\":1}"}}`}, one},
		{"id and name again with each", []string{
			`{"index":0,"id":"x","function":{"name":"f","arguments":"{\"a\""}}`, `{"index":0,"id":"x","function":{"name":"f","arguments":":1}"}}`,
		}, one},
		{"empty id and null name later", []string{
			`{"index":0,"id":"x","function":{"name":"f","arguments":"{\"a\""}}`, `{"index":0,"id":"","function":{"name":null,"arguments":":1}"}}`,
		}, one},
		{"empty and null arguments", []string{
			`{"index":0,"id":"x","function":{"name":"f","arguments":""}}`, `{"index":0,"function":{"arguments":""}}`,
			`{"index":0,"function":{"arguments":"{\"a\":1}"}}`, `{"index":0,"function":{"arguments":null}}`, `{"index":0}`, `{"index":0,"function":null}`,
		}, one},
		{"id behind the function", []string{`{"function":{"arguments":"{\"a\":1}","name":"f"},"id":"x","index":0}`}, one},
		{"no id", []string{`{"index":0,"function":{"name":"f","arguments":"{\"a\":"}}`, `{"index":0,"function":{"arguments":"1}"}}`}, one},
		{"name in pieces", []string{`{"index":0,"id":"x","function":{"name":"get_"}}`, `{"index":0,"function":{"name":"x","arguments":"{}"}}`}, []joinedCall{{callID(0), "get_x", "{}"}}},
		{"no function yet", []string{`{"index":0,"id":"x"}`, `{"index":0,"function":{"name":"f","arguments":"{\"a\":1}"}}`}, one},
		{"two in one chunk", []string{
			`{"index":0,"id":"x","function":{"name":"f","arguments":"{\"a\""}},{"index":1,"id":"y","function":{"name":"g"}}`,
			`{"index":1,"function":{"arguments":"[]"}},{"index":0,"function":{"arguments":":1}"}}`,
		}, append(one, joinedCall{callID(1), "g", "[]"})},
		{"escapes across fragments", []string{
			`{"index":0,"id":"x","function":{"name":"f","arguments":"{\"a\":\"\\ud83d"}}`, `{"index":0,"function":{"arguments":"\\ude00\"}"}}`,
		}, []joinedCall{{callID(0), "f", `{"a":"\ud83d\ude00"}`}}},
		{"a surrogate pair across fragments", []string{
			`{"index":0,"id":"x","function":{"name":"f","arguments":"\"\ud83d\ude00"}}`, `{"index":0,"function":{"arguments":"\""}}`,
		}, []joinedCall{{callID(0), "f", "\"\U0001f600\""}}},
		{"all calls at index 0", []string{
			`{"index":0,"id":"x","function":{"name":"f","arguments":"{}"}}`, `{"index":0,"id":"y","function":{"name":"g","arguments":"{}"}}`,
		}, nil},
		{"an index left out", []string{`{"index":1,"id":"x","function":{"name":"f","arguments":"{}"}}`}, nil},
		{"a bare number", []string{`{"index":0,"id":"x","function":{"name":"f","arguments":"1"}}`}, nil},
		{"no name", []string{`{"index":0,"id":"x","function":{"arguments":"{}"}}`}, nil},
		{"rest behind the JSON", []string{`{"index":0,"id":"x","function":{"name":"f","arguments":"{}{}"}}`}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			stream := []string{role}
			for _, x := range c.calls {
				stream = append(stream, f(x))
			}
			for _, hold := range []bool{false, true} {
				a := play(t, rules(hold), frames(append(stream, called, done)...))
				if c.want == nil {
					a.ends(t, openai.CauseInvalidToolJSON)
					continue
				}
				a.good(t)
				if d := cmp.Diff(c.want, a.calls(0)); d != "" {
					t.Errorf("hold %v (-want +got):\n%s\n%s", hold, d, strings.Join(a.all(), "\n"))
				}
				if !cmp.Equal(ids(play(t, rules(hold), frames(append(stream, called, done)...)).calls(0)), ids(c.want)) {
					t.Errorf("hold %v: another answer has other ids", hold)
				}
			}
		})
	}
}

func ids(calls []joinedCall) (out []string) {
	for _, c := range calls {
		out = append(out, c.ID)
	}
	return out
}

// TestTranscript_CallsWithoutIndex: the joined form has no index to join by, so only ids and the verdict are looked at.
func TestTranscript_CallsWithoutIndex(t *testing.T) {
	f := func(call string) string { return `{"choices":[{"index":0,"delta":{"tool_calls":[` + call + `]}}]}` }
	tr := openai.NewTranscript(rules(false))
	a := playOn(t, tr, frames(f(`{"id":"x","function":{"name":"f","arguments":"{"}}`), f(`{"function":{"arguments":"}"}}`),
		f(`{"id":"y","function":{"name":"g","arguments":"{}"}}`), called, done))
	a.good(t)
	if got := a.joined("choices.0.delta.tool_calls.0.id"); got != callID(0)+callID(1) {
		t.Errorf("ids %q", got)
	}
	list := tr.ToolCalls()
	if len(list) != 2 || list[0].ID != callID(0) || list[1].ID != callID(1) || list[0].Name != "f" || list[0].Arguments != list[1].Arguments {
		t.Errorf("calls: %+v", list)
	}
}

func TestTranscript_CutCallsAreDeterministicOnlyAtALimit(t *testing.T) {
	for reason, want := range map[string]bool{"length": true, "content_filter": true, "tool_calls": false, "stop": false} {
		e := play(t, rules(false), frames(role, opened, part, finish(reason), done)).ends(t, openai.CauseInvalidToolJSON)
		if e.Deterministic != want {
			t.Errorf("%s: deterministic %v", reason, e.Deterministic)
		}
	}
}

func TestCallID(t *testing.T) {
	id := openai.CallID("tenant", "session", 0, 0)
	if len(id) != len("call_")+24 || !strings.HasPrefix(id, "call_") || id != openai.CallID("tenant", "session", 0, 0) {
		t.Errorf("id %q", id)
	}
	for _, other := range []string{
		openai.CallID("tenants", "ession", 0, 0), openai.CallID("", "tenantsession", 0, 0), openai.CallID("tenant", "session", 1, 0), openai.CallID("tenant", "session", 0, 1),
	} {
		if other == id {
			t.Error("two calls with one id")
		}
	}
}
