// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/engines/openai"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/keys"
)

// A server's stream ends inside a tool call, after text, without finish and terminator: the last frame is the error, the
// body ends as a body should, and no cut call is in it.
func TestCase_C8_UpstreamEndsInsideAToolCall(t *testing.T) {
	for k := 1; k <= total; k++ {
		relay(t, "", "s1 s2", nil, func(t *testing.T, w *relays) {
			w.servers["s1"].play = func(a *answer) {
				a.role()
				a.deltas(k)
				a.callBegins(0, "get_weather")
				a.arguments(0, `{"city": "Par`)
				a.played("EOF")
			}
			resp := w.post("/v1/chat/completions", chat(true, `"tools":[{"type":"function"}]`))
			raw, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Errorf("k = %d: the body ends with %v", k, err)
			}
			text := string(raw)
			events := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
			last := events[len(events)-1]
			if !strings.HasPrefix(last, `data: {"error":{`) || !strings.HasSuffix(text, "\n\n") || !strings.Contains(last, fmt.Sprintf(`"delivered_output_tokens":%d`, k)) {
				t.Errorf("k = %d: %s", k, text)
			}
			for _, no := range []string{"[DONE]", `"finish_reason":"`, "tool_calls", "Par"} {
				if strings.Contains(text, no) {
					t.Errorf("k = %d: there is %s in %s", k, no, text)
				}
			}
			if w.asked("s1", 1)[0].state().fault != "EOF" {
				t.Error("the fault was not played")
			}
			w.asked("s2", 0)
		})
	}
}

// The same by every ending that a client could take for a whole answer: none of them looks like one.
func TestCase_C10_UpstreamCutIsVisible(t *testing.T) {
	for _, endpoint := range []string{"chat", "completions"} {
		for name, end := range map[string]func(*answer){
			"EOF":           func(*answer) {},
			"cut":           func(a *answer) { a.abort() },
			"abort, DONE":   func(a *answer) { a.finish("abort"); a.done() },
			"finish, EOF":   func(a *answer) { a.finish("stop") },
			"DONE in text":  func(a *answer) { a.text("data: [DONE]\n\n") },
			"half a DONE":   func(a *answer) { a.send("data: [DONE]") },
			"DONE and more": func(a *answer) { a.send("data: [DONE] \n\n") },
		} {
			t.Run(endpoint+"/"+name, func(t *testing.T) {
				relay(t, "", "s1", nil, func(t *testing.T, w *relays) {
					w.servers["s1"].play = func(a *answer) { a.role(); a.deltas(3); a.played(name); end(a) }
					path, body := ask(endpoint, true, "")
					tr := w.stream(w.post(path, body))
					if tr.err == nil || tr.done || tr.finish != "" || !tr.err.Partial {
						t.Errorf("%s", tr.raw)
					}
					if w.asked("s1", 1)[0].state().fault != name {
						t.Error("the fault was not played")
					}
				})
			})
		}
	}
}

// A call that was in flight when its server ended is there once after the retry, with the same id, name and index, and
// its arguments are joined once; a call after content isn't repeated.
func TestCase_C14_UpstreamCallsOnceAfterARetry(t *testing.T) {
	pieces := []string{`{"a"`, `: [1`, `, 2]`, `}`}
	for cut := 0; cut <= len(pieces); cut++ {
		for _, text := range []bool{false, true} {
			relay(t, "", "s1 s2", nil, func(t *testing.T, w *relays) {
				play := func(a *answer, upTo int) {
					a.role()
					if text {
						a.deltas(1)
					}
					a.callBegins(0, "f")
					for _, piece := range pieces[:upTo] {
						a.arguments(0, piece)
					}
				}
				w.servers["s1"].play = func(a *answer) { play(a, cut); a.played("cut"); a.abort() }
				w.servers["s2"].play = func(a *answer) {
					play(a, len(pieces))
					a.finish("tool_calls")
					a.done()
				}
				resp := w.post("/v1/chat/completions", chat(true, ""))
				tr := w.stream(resp)
				if w.asked("s1", 1)[0].state().fault != "cut" {
					t.Fatal("the fault was not played")
				}
				calls := joinedCalls(t, tr.raw)
				if text {
					w.asked("s2", 0)
					if tr.err == nil || len(calls) != 0 || tr.done {
						t.Errorf("cut = %d: %s", cut, tr.raw)
					}
					return
				}
				want := joinedCall{openai.CallID(keys.DefaultTenant, resp.Header.Get("X-Segue-Session"), 0, 0), "f", `{"a": [1, 2]}`, 1}
				if len(calls) != 1 || calls[0] != want || !tr.done || tr.finish != "tool_calls" {
					t.Errorf("cut = %d: %+v in %s", cut, calls, tr.raw)
				}
			})
		}
	}
}

// The client disconnects: within a second the server's connection is closed, and nobody else is asked.
func TestCase_C16_DisconnectReachesTheServer(t *testing.T) {
	for _, phase := range []string{"prefill", "decode", "whole", "header"} {
		for _, endpoint := range []string{"chat", "completions"} {
			t.Run(endpoint+"/"+phase, func(t *testing.T) {
				relay(t, "", "s1 s2", func(c *router.Config, _ *relays) { c.UpstreamSilence = router.DefaultConfig().UpstreamSilence }, func(t *testing.T, w *relays) {
					w.servers["s1"].play = func(a *answer) {
						switch phase {
						case "prefill":
							a.role()
						case "decode":
							a.role()
							for a.deltas(a.next + 1) {
								time.Sleep(100 * time.Millisecond)
							}
						}
						a.hang()
					}
					ctx, cancel := newTestContext(t)
					gone := make(chan struct{})
					go func() { // ends with the request
						defer close(gone)
						path, body := ask(endpoint, phase != "whole", "")
						if resp, err := w.tryPost(ctx, path, body); err == nil {
							_, _ = io.Copy(io.Discard, resp.Body)
							resp.Body.Close()
						}
					}()
					time.Sleep(2 * time.Second)
					q := w.asked("s1", 1)[0]
					if !q.state().closed.IsZero() || w.counter("segue_router_active_sessions") != 1 {
						t.Fatalf("before the client leaves: %+v", q.state())
					}
					left := time.Now()
					cancel()
					<-gone
					time.Sleep(time.Second)
					if at := q.state().closed; at.IsZero() || at.Sub(left) > time.Second {
						t.Errorf("the server's connection was closed at %v, the client left at %v", at, left)
					}
					w.asked("s2", 0)
					if active, gone := w.counter("segue_router_active_sessions"), w.counter("segue_router_sessions_total", "client_gone"); active != 0 || gone != 1 {
						t.Errorf("%v active sessions, %v counted as gone", active, gone)
					}
				})
			})
		}
	}
}

// Frames that say nothing don't end a stream, and don't look like content: empty events, comments, keep-alives, an empty
// argument delta, null members, and every kind of line end.
func TestCase_G4_UpstreamEmptyFrames(t *testing.T) {
	for _, tt := range []struct {
		name string
		send func(*answer)
	}{
		{"comment", func(a *answer) { a.send(":\n\n: keep-alive\n\n") }},
		{"empty event", func(a *answer) { a.send("data:\n\ndata: \n\n\n\n") }},
		{"other fields", func(a *answer) { a.send("id: 7\nretry: 10\n\nevent: ping\n\n") }},
		{"no choices", func(a *answer) { a.event(`{"id":"x","choices":[]}`) }},
		{"null choices", func(a *answer) { a.event(`{"id":"x","choices":null}`) }},
		{"null error", func(a *answer) { a.event(`{"error":null,"choices":[]}`) }},
		{"empty delta", func(a *answer) { a.chunk(`"delta":{},"finish_reason":null`) }},
		{"null delta", func(a *answer) { a.chunk(`"delta":null,"finish_reason":null`) }},
		{"null content", func(a *answer) { a.chunk(`"delta":{"content":null,"tool_calls":null},"finish_reason":null`) }},
		{"empty finish", func(a *answer) { a.chunk(`"delta":{},"finish_reason":""`) }},
		{"empty arguments", func(a *answer) { a.arguments(0, "") }},
		{"CR lines", func(a *answer) { a.send(": x\r\rdata: {\"choices\":[]}\r\r") }},
		{"CRLF lines", func(a *answer) { a.send("data: {\"choices\":\r\ndata: []}\r\n\r\n") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			relay(t, "", "s1", nil, func(t *testing.T, w *relays) {
				w.servers["s1"].play = func(a *answer) {
					tt.send(a)
					a.role()
					tt.send(a)
					a.deltas(1)
					tt.send(a)
					a.callBegins(0, "f")
					tt.send(a)
					a.arguments(0, `{"a":`)
					tt.send(a)
					a.arguments(0, `1}`)
					tt.send(a)
					a.finish("tool_calls")
					tt.send(a)
					a.done()
				}
				tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
				calls := joinedCalls(t, tr.raw)
				if tr.text != word(0) || !tr.done || tr.roles != 1 || tr.finish != "tool_calls" || len(calls) != 1 || calls[0].arguments != `{"a":1}` {
					t.Errorf("%+v: %s", calls, tr.raw)
				}
			})
			// Alone they don't commit.
			relay(t, "", "s1 s2", nil, func(t *testing.T, w *relays) {
				w.servers["s1"].play = func(a *answer) { a.role(); tt.send(a); a.played("cut"); a.abort() }
				resp := w.post("/v1/chat/completions", chat(true, ""))
				if tr := w.stream(resp); tr.text != words(0, total) || !tr.done || tr.roles != 1 {
					t.Errorf("%s", tr.raw)
				}
				if w.asked("s1", 1)[0].state().fault != "cut" || ran(w.session(resp)) != "s1 reset, s2" {
					t.Errorf("ran %q", ran(w.session(resp)))
				}
			})
		})
	}
}

// A server that sends frames without content, without end, takes bounded memory: what isn't committed can't be thrown away
// and isn't kept without limit.
func TestRelay_PreambleIsBounded(t *testing.T) {
	relay(t, "", "s1 s2", func(c *router.Config, _ *relays) { c.UpstreamSilence.Prefill = time.Hour }, func(t *testing.T, w *relays) {
		pad := strings.Repeat("p", 64<<10)
		w.servers["s1"].play = func(a *answer) {
			a.played("flood")
			for range 1024 {
				if !a.event(`{"choices":[],"pad":[` + `"` + pad + `"]}`) {
					return
				}
			}
			a.whole(total)
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if tr := w.stream(resp); tr.text != words(0, total) || !tr.done || len(tr.raw) > 1<<20 {
			t.Errorf("%d bytes", len(tr.raw))
		}
		q := w.asked("s1", 1)[0].state()
		if q.fault != "flood" || q.written > 8<<20 || ran(w.session(resp)) != "s1 malformed_frame, s2" {
			t.Errorf("the server could send %d bytes without content; ran %q", q.written, ran(w.session(resp)))
		}
	})
}

// A server's own count of its tokens can't cost memory, whatever it says.
func TestRelay_AbsurdUsage(t *testing.T) {
	for _, stream := range []bool{true, false} {
		relay(t, "", "s1", func(c *router.Config, _ *relays) { c.Upstreams[0].ContinuousUsage = true }, func(t *testing.T, w *relays) {
			const usage = `"usage":{"prompt_tokens":7,"completion_tokens":2147483647,"total_tokens":2147483647}`
			w.servers["s1"].play = func(a *answer) {
				if !stream {
					a.json(200, `{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}],`+usage+`}`)
					return
				}
				a.event(`{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}],` + usage + `}`)
				a.finish("stop")
				a.done()
			}
			resp := w.post("/v1/chat/completions", chat(stream, ""))
			_ = body(t, resp)
			if info := w.session(resp); info.AcceptedTokens > 1<<20 {
				t.Errorf("%d tokens accepted", info.AcceptedTokens)
			}
		})
	}
}
