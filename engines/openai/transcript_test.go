// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/seguekv/segue/engines/openai"
)

const (
	role   = `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`
	hello  = `{"choices":[{"index":0,"delta":{"content":"hello"},"finish_reason":null}]}`
	stop   = `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	usage  = `{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"details":{"x":1}}}`
	done   = "[DONE]"
	opened = `{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"up","type":"function","function":{"name":"f","arguments":""}}]},"finish_reason":null}]}`
	part   = `{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":"}}]},"finish_reason":null}]}`
	rest   = `{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]},"finish_reason":null}]}`
	called = `{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`
)

func finish(reason string) string { return strings.Replace(stop, "stop", reason, 1) }

// TestTranscript_Endings has every way in which an answer ends.
func TestTranscript_Endings(t *testing.T) {
	for _, c := range []struct {
		name, stream string
		want         openai.Cause // empty: good
	}{
		{"good", frames(role, hello, stop, done), ""},
		{"good with usage", frames(role, hello, stop, usage, done), ""},
		{"length", frames(role, hello, finish("length"), done), ""},
		{"content filter", frames(role, hello, finish("content_filter"), done), ""},
		{"no content at all", frames(role, stop, done), ""},
		{"good, then cut", frames(role, hello, stop, done) + "data: {", ""},
		{"nothing", "", openai.CauseEOFNoFinish},
		{"clean end, no finish, no terminator", frames(role, hello), openai.CauseEOFNoFinish},
		{"finish, no terminator", frames(role, hello, stop), openai.CauseEOFNoFinish},
		{"finish and usage, no terminator", frames(role, hello, stop, usage), openai.CauseEOFNoFinish},
		{"terminator, no finish", frames(role, hello, done), openai.CauseEOFNoFinish},
		{"terminator alone", frames(done), openai.CauseEOFNoFinish},
		{"terminator without its blank line", frames(role, hello, stop) + "data: [DONE]\n", openai.CauseEOFNoFinish},
		{"terminator inside text", frames(role, `{"choices":[{"index":0,"delta":{"content":"data: [DONE]\n\n"}}]}`, stop), openai.CauseEOFNoFinish},
		{"error object, clean end", frames(role, hello, `{"error":{"message":"no","type":"x","code":500}}`), openai.CauseEngineErrorEvent},
		{"error object, then terminator", frames(role, hello, `{"error":{"message":"EngineCore died","code":500}}`, done), openai.CauseEngineErrorEvent},
		{"error object after the finish", frames(role, hello, stop, `{"error":{"code":500}}`, done), openai.CauseEngineErrorEvent},
		{"error string", frames(role, `{"error":"no"}`, done), openai.CauseEngineErrorEvent},
		{"error object in the older form", frames(`{"object":"error","message":"no","code":400}`), openai.CauseEngineErrorEvent},
		{"error beside choices", frames(role, `{"error":{},"choices":[{"index":0,"delta":{"content":"x"}}]}`, stop, done), openai.CauseEngineErrorEvent},
		{"error event without its blank line", frames(role, hello) + `data: {"error":{}}` + "\n", openai.CauseEOFNoFinish},
		{"event named error", frames(role) + "event: error\ndata: {\"message\":\"no\"}\n\n", openai.CauseEngineErrorEvent},
		{"event named error, no JSON", frames(role) + "event: error\ndata: no\n\n", openai.CauseEngineErrorEvent},
		{"healthy chunks with error:null", frames(`{"error":null,"choices":[{"index":0,"delta":{"content":"x"}}]}`, stop, done), ""},
		{"abort", frames(role, hello, finish("abort"), done), openai.CauseEngineAbort},
		{"finish error", frames(role, hello, finish("error"), done), openai.CauseEngineAbort},
		{"unknown finish", frames(role, hello, finish("because"), done), openai.CauseEngineAbort},
		{"empty finish is none", frames(role, hello, finish(""), done), openai.CauseEOFNoFinish},
		{"finish spelled with an escape", frames(role, hello, finish(`\u0073top`), done), ""},
		{"abort relabelled tool_calls, cut JSON", frames(role, opened, part, called, done), openai.CauseInvalidToolJSON},
		{"abort inside a call", frames(role, opened, part, finish("abort"), done), openai.CauseEngineAbort},
		{"end inside a call", frames(role, opened, part), openai.CauseEOFNoFinish},
		{"call without arguments", frames(role, opened, called, done), openai.CauseInvalidToolJSON},
		{"call that the limit cut", frames(role, opened, part, finish("length"), done), openai.CauseInvalidToolJSON},
		{"call", frames(role, opened, part, rest, called, done), ""},
		{"not JSON", frames(role, hello, `{"choices":[`), openai.CauseMalformedFrame},
		{"text", frames(role, "hello"), openai.CauseMalformedFrame},
		{"two objects", frames(role, hello+hello), openai.CauseMalformedFrame},
		{"not UTF-8", frames(role, "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\xe4\xb8\"}}]}"), openai.CauseMalformedFrame},
		{"choices that are none", frames(`{"choices":7}`), openai.CauseMalformedFrame},
		{"index too large", frames(`{"choices":[{"index":128,"delta":{}}]}`), openai.CauseMalformedFrame},
		{"content after the finish", frames(role, stop, hello, done), openai.CauseMalformedFrame},
		{"another finish", frames(role, stop, finish("length"), done), openai.CauseMalformedFrame},
		{"the same finish again", frames(role, hello, stop, stop, done), ""},
		{"empty, blank and comment frames", frames(role, "", " ", hello) + ": x\n\n" + frames(stop, done), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := play(t, openai.Rules{Envelope: envelope()}, c.stream)
			if c.want != "" {
				a.ends(t, c.want)
				return
			}
			a.good(t)
			if n := a.count("choices.0.finish_reason"); n != 1 && c.name != "the same finish again" {
				t.Errorf("%d finishes: %q", n, a.all())
			}
		})
	}
}

func TestTranscript_EndIsFinal(t *testing.T) {
	for _, c := range []struct {
		err  error
		want openai.Cause
	}{
		{io.EOF, openai.CauseEOFNoFinish},
		{openai.ErrUnfinished, openai.CauseEOFNoFinish},
		{fmt.Errorf("read: %w", openai.ErrTooLong), openai.CauseMalformedFrame},
		{errors.New("connection reset by peer"), openai.CauseReset},
		{&openai.EndError{Cause: openai.CauseStall}, openai.CauseStall},
	} {
		tr := openai.NewTranscript(openai.Rules{})
		for _, err := range []error{c.err, io.EOF} {
			if e, ok := errors.AsType[*openai.EndError](tr.End(err)); !ok || e.Cause != c.want {
				t.Errorf("%v: got %v, want %s", c.err, e, c.want)
			}
		}
		if _, err := tr.Push(openai.Event{Data: []byte(hello)}); err == nil {
			t.Errorf("%v: an ended answer goes on", c.err)
		}
	}
}

func TestTranscript_HoldsTheFinish(t *testing.T) {
	tr := openai.NewTranscript(openai.Rules{Envelope: envelope()})
	for _, chunk := range []string{role, hello} {
		if s, err := tr.Push(openai.Event{Data: []byte(chunk)}); err != nil || len(s.Emit) == 0 {
			t.Fatalf("%s: %v, %v", chunk, s, err)
		}
	}
	last := `{"choices":[{"index":0,"delta":{"content":"!"},"finish_reason":"stop"}]}`
	if s, err := tr.Push(openai.Event{Data: []byte(last)}); err != nil || len(s.Emit) != 0 || !s.Progress || s.Content {
		t.Fatalf("the finish isn't held: %+v, %v", s, err)
	}
	s, err := tr.Push(openai.Event{Data: []byte(done)})
	if err != nil || !s.Done {
		t.Fatalf("%+v, %v", s, err)
	}
	f := tr.Final()
	if len(f.Chunks) != 1 || !f.Content || f.Tokens != 1 || gjson.GetBytes(f.Chunks[0], "choices.0.delta.content").String() != "!" {
		t.Errorf("rest: %+v %s", f, f.Chunks)
	}
}

func TestTranscript_Choices(t *testing.T) {
	c := func(index, text, finish string) string {
		return `{"choices":[{"index":` + index + `,"delta":{"content":"` + text + `"},"finish_reason":` + finish + `}]}`
	}
	two := openai.Rules{Envelope: envelope(), Choices: 2}
	a := play(t, two, frames(c("0", "a", "null"), c("1", "x", "null"), c("0", "b", `"stop"`), c("1", "y", "null"), c("1", "", `"length"`), done))
	a.good(t)
	if got := a.joined(`choices.#(index==0).delta.content`); got != "ab" {
		t.Errorf("choice 0: %q", got)
	}
	if got := a.joined(`choices.#(index==1).delta.content`); got != "xy" {
		t.Errorf("choice 1: %q", got)
	}
	for _, index := range []string{"0", "1"} {
		if n := a.count("choices.#(index==" + index + ").delta.role"); n != 1 {
			t.Errorf("%d roles for choice %s", n, index)
		}
	}
	play(t, two, frames(c("0", "a", `"stop"`), done)).ends(t, openai.CauseEOFNoFinish)
	play(t, two, frames(c("0", "a", `"stop"`), c("1", "", "null"), done)).ends(t, openai.CauseEOFNoFinish)
	play(t, two, frames(c("2", "a", `"stop"`), done)).ends(t, openai.CauseMalformedFrame)

	both := `{"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"},{"index":1,"delta":{"content":"y"}}]}`
	a = play(t, two, frames(c("0", "a", "null"), c("1", "x", "null"), both, c("1", "z", "null"), c("1", "", `"stop"`), done))
	a.good(t)
	if got := a.joined(`choices.#(index==1).delta.content`); got != "xyz" {
		t.Errorf("a held chunk is overtaken: %q", got)
	}
}

func TestTranscript_Restart(t *testing.T) {
	tr := openai.NewTranscript(openai.Rules{Envelope: envelope()})
	first := playOn(t, tr, frames(role))
	first.ends(t, openai.CauseEOFNoFinish)
	tr.Restart()
	second := playOn(t, tr, frames(role, hello, stop, done))
	second.good(t)
	if n := first.count("choices.0.delta.role") + second.count("choices.0.delta.role"); n != 1 {
		t.Errorf("%d roles", n)
	}
	tr = openai.NewTranscript(openai.Rules{Envelope: envelope()})
	held := playOn(t, tr, frames(finish("length")))
	held.ends(t, openai.CauseEOFNoFinish)
	tr.Restart()
	again := playOn(t, tr, frames(stop, done))
	again.good(t)
	if again.count("choices.0.delta.role") != 1 {
		t.Errorf("the role of a chunk that was held and dropped counts as written: %q", again.all())
	}
}

func TestTranscript_ErrorObject(t *testing.T) {
	for _, c := range []struct {
		object        string
		status        int
		deterministic bool
	}{
		{`{"message":"no","code":500}`, 500, false},
		{`{"message":"no","code":"400"}`, 400, true},
		{`{"message":"no","code":429}`, 429, false},
		{`{"message":"no","code":"context_length_exceeded"}`, 0, false},
		{`"no"`, 0, false},
	} {
		e := play(t, openai.Rules{}, frames(hello, `{"error":`+c.object+`}`)).ends(t, openai.CauseEngineErrorEvent)
		if e.Status != c.status || e.Deterministic != c.deterministic || string(e.Object) != c.object {
			t.Errorf("%s: status %d, deterministic %v, object %s", c.object, e.Status, e.Deterministic, e.Object)
		}
		if strings.Contains(e.Error(), "no") && strings.Contains(e.Error(), "message") {
			t.Errorf("the error quotes the server: %v", e)
		}
	}
}

func TestTranscript_Bounds(t *testing.T) {
	r := openai.Rules{Envelope: envelope(), Limit: 1000}
	stream := frames(role, opened) + strings.Repeat(frames(part), 1000)
	if e := play(t, r, stream).ends(t, openai.CauseMalformedFrame); !e.Deterministic {
		t.Error("too long a call would be too long again")
	}
	play(t, r, frames(hello)+strings.Repeat(frames(stop), 1000)).ends(t, openai.CauseMalformedFrame)
}
