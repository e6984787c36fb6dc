// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/engines/openai"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/keys"
)

// fault is one way in which a stream ends without being whole.
type fault struct {
	name  string
	cause router.Cause
	play  func(*answer)
	// callOnly needs a tool call that has begun.
	callOnly bool
}

const serverError = `{"error":{"message":"CUDA error at layer 7","type":"InternalServerError","code":500}}`

// faults are the endings that real servers and the connections to them give.
var faults = []fault{
	{name: "clean EOF", cause: router.CauseEOFNoFinish, play: func(*answer) {}},
	{name: "finish and EOF, no DONE", cause: router.CauseEOFNoFinish, play: func(a *answer) { a.finish("stop") }},
	{name: "DONE without a finish", cause: router.CauseEOFNoFinish, play: func(a *answer) { a.done() }},
	{name: "error event, EOF", cause: router.CauseEngineErrorEvent, play: func(a *answer) { a.event(serverError) }},
	{name: "error event, DONE", cause: router.CauseEngineErrorEvent, play: func(a *answer) { a.event(serverError); a.done() }},
	{name: "error event, cut", cause: router.CauseEngineErrorEvent, play: func(a *answer) { a.event(serverError); a.abort() }},
	{name: "named error event", cause: router.CauseEngineErrorEvent, play: func(a *answer) { a.send("event: error\ndata: {\"message\":\"boom\"}\n\n") }},
	{name: "error event without its end", cause: router.CauseEOFNoFinish, play: func(a *answer) { a.send("data: " + serverError) }},
	{name: "cut", cause: router.CauseReset, play: func(a *answer) { a.abort() }},
	{name: "cut inside an event", cause: router.CauseReset, play: func(a *answer) { a.send(`data: {"id":"x","choi`); a.abort() }},
	{name: "abort, DONE", cause: router.CauseEngineAbort, play: func(a *answer) { a.finish("abort"); a.done() }},
	{name: "finish error, DONE", cause: router.CauseEngineAbort, play: func(a *answer) { a.finish("error"); a.done() }},
	{name: "not JSON", cause: router.CauseMalformedFrame, play: func(a *answer) { a.event(`{"id":"x","choices":[`); a.done() }},
	{name: "not UTF-8", cause: router.CauseMalformedFrame, play: func(a *answer) { a.text("x"); a.event("{\"x\":\"\xff\"}"); a.done() }},
	{name: "silence", cause: router.CauseStall, play: func(a *answer) { a.hang() }},
	{name: "keep-alives alone", cause: router.CauseStall, play: func(a *answer) {
		for a.send(": ping\n\n") {
			time.Sleep(time.Second)
		}
	}},
	{name: "cut arguments relabelled tool_calls", cause: router.CauseInvalidToolJSON, callOnly: true, play: func(a *answer) { a.finish("tool_calls"); a.done() }},
	{name: "cut arguments and stop", cause: router.CauseInvalidToolJSON, callOnly: true, play: func(a *answer) { a.finish("stop"); a.done() }},
}

// place is where in an answer the fault comes.
type place struct {
	name   string
	chat   bool // only there
	deltas int
	reach  func(*answer)
}

var places = []place{
	{name: "before the header", reach: func(*answer) {}},
	{name: "before content", reach: func(a *answer) { a.role() }},
	{name: "after one delta", deltas: 1, reach: func(a *answer) { a.role(); a.deltas(1) }},
	{name: "after three deltas", deltas: 3, reach: func(a *answer) { a.role(); a.deltas(3) }},
	{name: "inside a tool call", chat: true, reach: func(a *answer) {
		a.role()
		a.callBegins(0, "get_weather")
		a.arguments(0, `{"city":`)
	}},
	{name: "inside a tool call after text", chat: true, deltas: 2, reach: func(a *answer) {
		a.role()
		a.deltas(2)
		a.callBegins(0, "get_weather")
		a.arguments(0, `{"city":`)
	}},
}

// tokens is how many output tokens the fault itself adds to what the place has.
func (f fault) tokens() int {
	if f.name == "not UTF-8" {
		return 1
	}
	return 0
}

// script plays the fault at the place.
func (p place) script(f fault) func(*answer) {
	return func(a *answer) {
		p.reach(a)
		a.played(f.name)
		f.play(a)
	}
}

// eachEnding runs g for every ending at every place by both endpoints.
func eachEnding(t *testing.T, g func(t *testing.T, f fault, p place, endpoint string)) {
	for _, endpoint := range []string{"chat", "completions"} {
		for _, p := range places {
			for _, f := range faults {
				inCall := strings.Contains(p.name, "call")
				if p.chat && endpoint != "chat" || f.callOnly && !inCall || inCall && f.name == "finish and EOF, no DONE" {
					continue
				}
				t.Run(endpoint+"/"+p.name+"/"+f.name, func(t *testing.T) { g(t, f, p, endpoint) })
			}
		}
	}
}

// A stream that ends badly is repeated on another server while the client has no content of it, and the client reads one
// whole answer; after content it reads the error with the exact count, and nobody else is asked.
func TestRelay_EveryEndingWithAnotherServer(t *testing.T) {
	eachEnding(t, func(t *testing.T, f fault, p place, endpoint string) {
		relay(t, "", "s1 s2", nil, func(t *testing.T, w *relays) {
			w.servers["s1"].play = p.script(f)
			path, body := ask(endpoint, true, includeUsage)
			resp := w.post(path, body)
			tr := w.stream(resp)
			w.settle()
			if q := w.asked("s1", 1)[0].state(); q.fault != f.name {
				t.Fatalf("the fault was not played: %+v", q)
			}
			info := w.session(resp)
			if info.Attempts[0].Cause != f.cause {
				t.Errorf("cause %q (%s), want %q", info.Attempts[0].Cause, info.Attempts[0].Detail, f.cause)
			}
			if p.deltas+f.tokens() > 0 {
				w.asked("s2", 0)
				w.interrupted(tr, f.cause, p.deltas+f.tokens())
				return
			}
			w.asked("s2", 1)
			roles := map[string]int{"chat": 1, "completions": 0}[endpoint]
			if tr.text != words(0, total) || !tr.done || tr.err != nil || tr.finish != "stop" || tr.roles != roles || !strings.Contains(tr.usage, `"completion_tokens":8`) {
				t.Errorf("%s", tr.raw)
			}
			if want := fmt.Sprintf("s1 %s, s2", f.cause); ran(info) != want || info.Attempts[1].Kind != "retry" {
				t.Errorf("ran %q, want %q", ran(info), want)
			}
			if n := w.counter("segue_router_retries_total", string(f.cause)); n != 1 {
				t.Errorf("%v retries", n)
			}
		})
	})
}

// interrupted checks a stream that broke after so many tokens.
func (w *relays) interrupted(tr *transcript, cause router.Cause, delivered int) {
	w.t.Helper()
	if tr.err == nil || tr.done || tr.finish != "" {
		w.t.Fatalf("%s", tr.raw)
	}
	want := errorObject{Code: "upstream_decode_interrupted", Type: "server_error", Partial: true, Delivered: delivered, Cause: string(cause)}
	got := *tr.err
	if got.Code != want.Code || got.Type != want.Type || !got.Partial || got.Delivered != delivered || got.Retryable || got.Cause != want.Cause {
		w.t.Errorf("error %+v, want like %+v", got, want)
	}
	if n := fmt.Sprintf("after %d output tokens", delivered); !strings.Contains(got.Message, n) || got.RequestID == "" || !strings.Contains(got.Message, got.RequestID) {
		w.t.Errorf("message %q lacks %q or the request id", got.Message, n)
	}
	if strings.Contains(tr.raw, "CUDA") {
		w.t.Errorf("the server's words reached the client: %s", tr.raw)
	}
	events := strings.Split(strings.TrimSuffix(tr.raw, "\n\n"), "\n\n")
	if usage := events[len(events)-2]; !strings.Contains(usage, fmt.Sprintf(`"completion_tokens":%d`, delivered)) || !strings.Contains(usage, `"choices":[]`) {
		w.t.Errorf("before the error comes %q, want a usage chunk", usage)
	}
	if n := w.counter("segue_router_sessions_total", "interrupted"); n != 1 {
		w.t.Errorf("%v interrupted sessions", n)
	}
	if n := w.counter("segue_router_retries_total"); n != 0 {
		w.t.Errorf("%v retries", n)
	}
}

// Without another server the same endings are an HTTP error before content, and the same error event after it.
func TestRelay_EveryEndingAlone(t *testing.T) {
	eachEnding(t, func(t *testing.T, f fault, p place, endpoint string) {
		relay(t, "", "s1", nil, func(t *testing.T, w *relays) {
			w.servers["s1"].play = p.script(f)
			path, body := ask(endpoint, true, includeUsage)
			resp := w.post(path, body)
			if p.deltas+f.tokens() > 0 {
				w.interrupted(w.stream(resp), f.cause, p.deltas+f.tokens())
			} else {
				w.unanswered(resp, f.cause)
			}
			if q := w.asked("s1", 1)[0].state(); q.fault != f.name {
				t.Fatalf("the fault was not played: %+v", q)
			}
		})
	})
}

// unanswered checks the HTTP error of a request of which no output came, and that may be repeated. A keep-alive may have
// opened the stream before; then it is the event.
func (w *relays) unanswered(resp *http.Response, cause router.Cause) {
	w.t.Helper()
	status := http.StatusBadGateway
	if cause == router.CauseStall {
		status = http.StatusGatewayTimeout
	}
	if resp.StatusCode != status || resp.Header.Get("X-Should-Retry") != "true" || resp.Header.Get("Retry-After") != "1" || resp.Header.Get("Content-Type") != "application/json" {
		w.t.Errorf("status %d, want %d; headers %v", resp.StatusCode, status, resp.Header)
	}
	e := w.failure(resp)
	if e.Code != "upstream_unavailable" || e.Partial || e.Delivered != 0 || !e.Retryable || e.Cause != string(cause) || strings.Contains(e.Message, "CUDA") {
		w.t.Errorf("%+v, want cause %s", e, cause)
	}
	if n := w.counter("segue_router_retries_refused_total", "no_replica"); n != 1 {
		w.t.Errorf("%v retries refused for want of a replica", n)
	}
}

// Both servers fail: the second failure is told if it is another one, and the same one isn't tried a third time.
func TestRelay_BothServersFail(t *testing.T) {
	relay(t, "", "s1 s2 s3", func(c *router.Config, _ *relays) { c.MaxAttempts = 3 }, func(t *testing.T, w *relays) {
		for _, o := range w.servers {
			o.play = func(a *answer) { a.role(); a.played("abort"); a.finish("abort"); a.done() }
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		e := w.failure(resp)
		if resp.StatusCode != http.StatusBadGateway || e.Cause != "engine_abort" {
			t.Errorf("status %d: %+v", resp.StatusCode, e)
		}
		if got := ran(w.session(resp)); got != "s1 engine_abort, s2 engine_abort" {
			t.Errorf("ran %q", got)
		}
		w.asked("s3", 0)
		if n := w.counter("segue_router_retries_refused_total", "same_failure"); n != 1 {
			t.Errorf("%v refused for the same failure", n)
		}
	})
}

// A whole tool call arrives once per call, with ids that any server would get.
func TestRelay_ToolCallsAreWholeAndOnce(t *testing.T) {
	relay(t, "", "s1 s2", nil, func(t *testing.T, w *relays) {
		calls := func(a *answer) {
			a.role()
			a.callBegins(0, "get_weather")
			for _, piece := range []string{`{"ci`, `ty":`, `"Oslo"}`} {
				a.arguments(0, piece)
			}
			a.callBegins(1, "get_time")
			a.arguments(1, `{}`)
			a.finish("tool_calls")
			a.done()
		}
		w.servers["s1"].play = func(a *answer) {
			a.role()
			a.callBegins(0, "get_weather")
			a.arguments(0, `{"ci`)
			a.played("cut")
			a.abort()
		}
		w.servers["s2"].play = calls
		resp := w.post("/v1/chat/completions", chat(true, `"tools":[{"type":"function"}]`))
		tr := w.stream(resp)
		got := joinedCalls(t, tr.raw)
		session := resp.Header.Get("X-Segue-Session")
		want := []joinedCall{
			{openai.CallID(keys.DefaultTenant, session, 0, 0), "get_weather", `{"city":"Oslo"}`, 1},
			{openai.CallID(keys.DefaultTenant, session, 0, 1), "get_time", `{}`, 1},
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || tr.finish != "tool_calls" || !tr.done || tr.roles != 1 {
			t.Errorf("calls %+v, want %+v in %s", got, want, tr.raw)
		}
		if w.asked("s1", 1)[0].state().fault != "cut" || ran(w.session(resp)) != "s1 reset, s2" {
			t.Errorf("ran %q", ran(w.session(resp)))
		}
	})
}

// joinedCall is one call as a client joins it; chunks counts its fragments.
type joinedCall struct {
	id, name, arguments string
	chunks              int
}

func joinedCalls(t *testing.T, raw string) []joinedCall {
	t.Helper()
	var calls []joinedCall
	for line := range strings.Lines(raw) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: {")
		if !ok {
			continue
		}
		var c struct {
			Choices []struct {
				Delta struct {
					ToolCalls []struct {
						Index    int
						ID       string
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
			}
		}
		if err := json.Unmarshal([]byte("{"+data), &c); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		for _, choice := range c.Choices {
			for _, k := range choice.Delta.ToolCalls {
				for len(calls) <= k.Index {
					calls = append(calls, joinedCall{})
				}
				to := &calls[k.Index]
				to.id, to.name, to.arguments, to.chunks = to.id+k.ID, to.name+k.Function.Name, to.arguments+k.Function.Arguments, to.chunks+1
			}
		}
	}
	return calls
}
