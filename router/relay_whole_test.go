// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/engines/openai"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/keys"
)

// wholeFaults are the endings of answers in one piece.
var wholeFaults = []fault{
	{name: "empty body", cause: router.CauseMalformedFrame, play: func(a *answer) { a.json(200, "") }},
	{name: "cut body", cause: router.CauseReset, play: func(a *answer) {
		a.json(200, a.wholeBody(total, "stop")[:40], "Content-Length", "500")
		a.abort()
	}},
	{name: "cut before the header", cause: router.CauseReset, play: func(a *answer) { a.abort() }},
	{name: "half a body, cleanly", cause: router.CauseMalformedFrame, play: func(a *answer) { a.json(200, a.wholeBody(total, "stop")[:40]) }},
	{name: "error object with 200", cause: router.CauseEngineErrorEvent, play: func(a *answer) { a.json(200, serverError) }},
	{name: "abort", cause: router.CauseEngineAbort, play: func(a *answer) { a.json(200, a.wholeBody(3, "abort")) }},
	{name: "no finish reason", cause: router.CauseEOFNoFinish, play: func(a *answer) { a.json(200, a.wholeBody(3, "null")) }},
	{name: "no choices", cause: router.CauseEOFNoFinish, play: func(a *answer) { a.json(200, `{"object":"chat.completion","choices":[]}`) }},
	{name: "a stream", cause: router.CauseMalformedFrame, play: func(a *answer) { a.text("x"); a.done() }},
	{name: "silence", cause: router.CauseStall, play: func(a *answer) { a.hang() }},
	{name: "cut arguments", cause: router.CauseInvalidToolJSON, callOnly: true, play: func(a *answer) {
		a.json(200, a.wholeChoice(`"message":{"role":"assistant","content":null,"tool_calls":[{"id":"theirs","type":"function","function":{"name":"get_weather","arguments":"{\"city\":"}}]}`, 3, "tool_calls"))
	}},
}

func eachWhole(t *testing.T, g func(t *testing.T, f fault, endpoint string)) {
	for _, endpoint := range []string{"chat", "completions"} {
		for _, f := range wholeFaults {
			if f.callOnly && endpoint != "chat" {
				continue
			}
			t.Run(endpoint+"/"+f.name, func(t *testing.T) { g(t, f, endpoint) })
		}
	}
}

func (f fault) whole() func(*answer) { return func(a *answer) { a.played(f.name); f.play(a) } }

// Nothing of an answer in one piece is out before it is judged: every bad one is repeated.
func TestRelay_WholeEveryEndingWithAnotherServer(t *testing.T) {
	eachWhole(t, func(t *testing.T, f fault, endpoint string) {
		relay(t, "", "s1 s2", nil, func(t *testing.T, w *relays) {
			w.servers["s1"].play = f.whole()
			path, body := ask(endpoint, false, "")
			resp := w.post(path, body)
			text := wholeText(t, resp)
			if resp.StatusCode != 200 || text != words(0, total) {
				t.Errorf("status %d: %q", resp.StatusCode, text)
			}
			if w.asked("s1", 1)[0].state().fault != f.name || ran(w.session(resp)) != fmt.Sprintf("s1 %s, s2", f.cause) {
				t.Errorf("ran %q, want %s first", ran(w.session(resp)), f.cause)
			}
			w.asked("s2", 1)
		})
	})
}

func TestRelay_WholeEveryEndingAlone(t *testing.T) {
	eachWhole(t, func(t *testing.T, f fault, endpoint string) {
		relay(t, "", "s1", nil, func(t *testing.T, w *relays) {
			w.servers["s1"].play = f.whole()
			path, body := ask(endpoint, false, "")
			w.unanswered(w.post(path, body), f.cause)
			if w.asked("s1", 1)[0].state().fault != f.name {
				t.Error("the fault was not played")
			}
		})
	})
}

// wholeText reads an answer in one piece.
func wholeText(t *testing.T, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	var answer struct {
		ID, Model string
		Choices   []struct {
			Text    string
			Message struct{ Content string }
		}
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &answer); err != nil || len(answer.Choices) == 0 {
		t.Fatalf("%v: %q", err, raw)
	}
	if answer.Model != model || strings.Contains(string(raw), "their") {
		t.Errorf("the server's envelope is in %s", raw)
	}
	return answer.Choices[0].Message.Content + answer.Choices[0].Text
}

func TestRelay_WholeToolCallsHaveTheRoutersIDs(t *testing.T) {
	relay(t, "", "s1", nil, func(t *testing.T, w *relays) {
		w.servers["s1"].play = func(a *answer) {
			a.json(200, a.wholeChoice(`"message":{"role":"assistant","content":null,"tool_calls":[{"id":"theirs-1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},{"id":"theirs-2","type":"function","function":{"name":"f","arguments":"{}"}}]}`, 3, "tool_calls"))
		}
		resp := w.post("/v1/chat/completions", chat(false, ""))
		raw, session := body(t, resp), resp.Header.Get("X-Segue-Session")
		for i := range 2 {
			if id := openai.CallID(keys.DefaultTenant, session, 0, i); strings.Count(raw, id) != 1 {
				t.Errorf("id %s is not in %s", id, raw)
			}
		}
		if strings.Contains(raw, "theirs") || !strings.Contains(raw, `"arguments":"{\"a\": 1}"`) {
			t.Error(raw)
		}
	})
}

// refusedWith is what a server answers instead of a completion.
type refusedWith struct {
	status int
	header []string
	body   string
}

const theirWords = `{"error":{"message":"max_tokens is too large","type":"BadRequestError","param":"max_tokens","code":"context_length_exceeded"}}`

// A 4xx is the client's: any server would say it, so nobody else is asked, and the client reads the server's own words.
func TestRelay_RefusedRequestsPassThrough(t *testing.T) {
	for _, stream := range []bool{true, false} {
		for _, endpoint := range []string{"chat", "completions"} {
			for _, s := range []refusedWith{
				{400, nil, theirWords}, {404, nil, theirWords}, {413, nil, theirWords}, {422, nil, theirWords}, {400, nil, "nginx says no"}, {400, nil, ""},
				{400, nil, `{"object":"error","message":"max_tokens is too large","type":"BadRequestError","param":"max_tokens","code":400}`},
			} {
				t.Run(fmt.Sprintf("%s/stream=%v/%d %.20s", endpoint, stream, s.status, s.body), func(t *testing.T) {
					relay(t, "", "s1 s2", nil, func(t *testing.T, w *relays) {
						for _, o := range w.servers {
							o.play = func(a *answer) { a.json(s.status, s.body) }
						}
						path, body := ask(endpoint, stream, "")
						resp := w.post(path, body)
						e := w.failure(resp)
						if resp.StatusCode != s.status || resp.Header.Get("Retry-After") != "" || resp.Header.Get("X-Should-Retry") == "true" || e.Partial || e.Retryable || e.Message == "" {
							t.Errorf("status %d, headers %v: %+v", resp.StatusCode, resp.Header, e)
						}
						if strings.Contains(s.body, "max_tokens") && (e.Message != "max_tokens is too large" || e.Type != "BadRequestError" || e.Param != "max_tokens") {
							t.Errorf("%+v, want the server's words", e)
						}
						w.asked("s1", 1)
						w.asked("s2", 0)
						if n := w.counter("segue_router_retries_refused_total", "final"); n != 1 {
							t.Errorf("%v refused retries", n)
						}
					})
				})
			}
		}
	}
}

// An error object with a 4xx code in a stream is the same, unless content is out.
func TestRelay_RefusalInsideAStream(t *testing.T) {
	relay(t, "", "s1 s2", nil, func(t *testing.T, w *relays) {
		w.servers["s1"].play = func(a *answer) {
			a.role()
			a.event(`{"error":{"message":"the image can't be read","type":"BadRequestError","code":400}}`)
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if e := w.failure(resp); resp.StatusCode != 400 || e.Message != "the image can't be read" || e.Retryable {
			t.Errorf("status %d: %+v", resp.StatusCode, e)
		}
		w.asked("s2", 0)
	})
}

// A server that has no room or isn't ready costs no attempt: another one is asked under the same budget.
func TestRelay_FullOrStartingServersCostNoAttempt(t *testing.T) {
	for _, status := range []int{429, 503} {
		for _, stream := range []bool{true, false} {
			relay(t, "", "s1 s2 s3", func(c *router.Config, _ *relays) { c.MaxAttempts = 1 }, func(t *testing.T, w *relays) {
				for _, id := range []string{"s1", "s2"} {
					w.servers[id].play = func(a *answer) { a.played("said"); a.json(status, serverError, "Retry-After", "3") }
				}
				start := time.Now()
				resp := w.post("/v1/chat/completions", chat(stream, ""))
				raw := body(t, resp)
				if resp.StatusCode != 200 || !strings.Contains(raw, word(total-1)) && !strings.Contains(raw, words(0, total)) {
					t.Errorf("%d: status %d: %s", status, resp.StatusCode, raw)
				}
				for _, id := range []string{"s1", "s2"} {
					if w.asked(id, 1)[0].state().fault != "said" {
						t.Errorf("%s has not refused", id)
					}
				}
				w.asked("s3", 1)
				within(t, "the answer", time.Since(start), 0, 100*time.Millisecond)
				if n := w.counter("segue_router_retries_total"); n != 0 {
					t.Errorf("%d: %v retries were counted", status, n)
				}
			})
		}
	}
}

// When all servers say so, the client is told, with the time that they asked for.
func TestRelay_NobodyHasRoom(t *testing.T) {
	for _, tt := range []struct {
		status      int
		code, cause string
	}{{429, "no_capacity", "no_capacity"}, {503, "upstream_unavailable", "not_ready"}} {
		for _, servers := range []string{"s1", "s1 s2"} {
			t.Run(fmt.Sprintf("%d from %s", tt.status, servers), func(t *testing.T) {
				relay(t, "", servers, nil, func(t *testing.T, w *relays) {
					for _, o := range w.servers {
						o.play = func(a *answer) { a.json(tt.status, serverError, "Retry-After", "7") }
					}
					start := time.Now()
					resp := w.post("/v1/chat/completions", chat(true, ""))
					e := w.failure(resp)
					if resp.StatusCode != tt.status || resp.Header.Get("Retry-After") != "7" || resp.Header.Get("X-Should-Retry") != "true" || e.Code != tt.code || e.Cause != tt.cause || e.Partial || !e.Retryable {
						t.Errorf("status %d, headers %v: %+v", resp.StatusCode, resp.Header, e)
					}
					within(t, "the refusal", time.Since(start), 0, 6*time.Second)
					for id, o := range w.servers {
						if n := len(o.asked()); n == 0 || n > 25 {
							t.Errorf("%s was asked %d times", id, n)
						}
					}
					if n := w.counter("segue_router_retries_total"); n != 0 {
						t.Errorf("%v retries", n)
					}
				})
			})
		}
	}
}

// Statuses that say that the server failed are repeated elsewhere; its key being refused is the router's own affair.
func TestRelay_FailedStatuses(t *testing.T) {
	for _, status := range []int{401, 403, 408, 500, 501, 502, 504, 302} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			relay(t, "", "s1 s2", nil, func(t *testing.T, w *relays) {
				w.servers["s1"].play = func(a *answer) {
					a.played("said")
					a.json(status, `{"error":{"message":"Incorrect API key sk-secret"}}`, "Location", "http://elsewhere/")
				}
				resp := w.post("/v1/chat/completions", chat(true, ""))
				if tr := w.stream(resp); tr.text != words(0, total) || !tr.done {
					t.Errorf("%s", tr.raw)
				}
				if w.asked("s1", 1)[0].state().fault != "said" || ran(w.session(resp)) != "s1 engine_error_event, s2" {
					t.Errorf("ran %q", ran(w.session(resp)))
				}
			})
			relay(t, "", "s1", nil, func(t *testing.T, w *relays) {
				w.servers["s1"].play = func(a *answer) { a.json(status, `{"error":{"message":"Incorrect API key sk-secret"}}`) }
				resp := w.post("/v1/chat/completions", chat(true, ""))
				if e := w.failure(resp); resp.StatusCode != 502 || strings.Contains(e.Message+e.Detail, "sk-") || e.Cause != "engine_error_event" {
					t.Errorf("status %d: %+v", resp.StatusCode, e)
				}
			})
		})
	}
}

// A server that can't be reached is passed over, and alone it is a 503.
func TestRelay_Connect(t *testing.T) {
	relay(t, "", "s1 s2", func(c *router.Config, _ *relays) { c.MaxAttempts = 1 }, func(t *testing.T, w *relays) {
		w.servers["s1"].cut(true)
		w.settle() // the router sees that its idle connections are gone
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if tr := w.stream(resp); tr.text != words(0, total) || !tr.done {
			t.Errorf("%s", tr.raw)
		}
		if got := ran(w.session(resp)); got != "s1 connect, s2" {
			t.Errorf("ran %q", got)
		}
		w.servers["s2"].cut(true)
		w.settle() // the router sees that its idle connections are gone
		resp = w.post("/v1/chat/completions", chat(true, ""))
		if e := w.failure(resp); resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" || e.Partial || !e.Retryable || strings.Contains(e.Message, "s2:8000") {
			t.Errorf("status %d: %+v", resp.StatusCode, e)
		}
	})
}
