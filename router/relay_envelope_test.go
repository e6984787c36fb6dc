// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/router"
)

// payloads are the events of a stream that are chunks.
func payloads(raw string) []string {
	var list []string
	for line := range strings.Lines(raw) {
		if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: {"); ok {
			list = append(list, "{"+data)
		}
	}
	return list
}

// Every chunk has the router's id, time and model, whatever the server sends; the rest is its own, byte for byte.
func TestRelay_EnvelopeOfEveryChunk(t *testing.T) {
	const odd = `"x_seq": 1e3 ,"vendor":{"a":[1, 2.50,"\u00e9"]},`
	for _, endpoint := range []string{"chat", "completions"} {
		relay(t, "", "s1", nil, func(t *testing.T, w *relays) {
			w.servers["s1"].play = func(a *answer) {
				a.role()
				a.deltas(2)
				content := `"delta":{"content":"w2 ","annotations": [ ]},"logprobs": {"content":null}, "finish_reason":null`
				if !a.chat {
					content = `"text":"w2 ","logprobs": {"content":null}, "finish_reason":null`
				}
				a.event(`{"id":"a","error":null,` + odd + `"choices":[{"index":0,` + content + `}],"created":5}`)
				a.finish("stop")
				a.done()
			}
			path, body := ask(endpoint, true, includeUsage)
			resp := w.post(path, body)
			tr := w.stream(resp)
			if tr.text != words(0, 3) || !tr.done {
				t.Fatalf("%s", tr.raw)
			}
			session, created := resp.Header.Get("X-Segue-Session"), 0
			for _, p := range payloads(tr.raw) {
				var c map[string]json.RawMessage
				if err := json.Unmarshal([]byte(p), &c); err != nil {
					t.Fatal(err)
				}
				var at int
				_ = json.Unmarshal(c["created"], &at)
				if created == 0 {
					created = at
				}
				if !strings.HasSuffix(string(c["id"]), session+`"`) || string(c["model"]) != `"sim"` || at != created || at < 900_000_000 || c["system_fingerprint"] != nil || c["error"] != nil {
					t.Errorf("%s: %s", endpoint, p)
				}
			}
			if !strings.Contains(tr.raw, odd) || !strings.Contains(tr.raw, `"logprobs": {"content":null}, "finish_reason":null`) {
				t.Errorf("unknown members changed: %s", tr.raw)
			}
			if endpoint == "chat" && !strings.Contains(tr.raw, `"annotations": [ ]`) {
				t.Errorf("unknown members of a delta changed: %s", tr.raw)
			}
		})
	}
}

// Exactly one chunk has a role, whatever the servers send.
func TestRelay_OneRole(t *testing.T) {
	deltas := func(a *answer) { _ = a.deltas(2) && a.finish("stop") && a.done() }
	for _, tt := range []struct {
		name string
		play map[string]func(*answer)
	}{
		{"none", map[string]func(*answer){"s1": deltas}},
		{"one", map[string]func(*answer){"s1": func(a *answer) { a.role(); deltas(a) }}},
		{"two", map[string]func(*answer){"s1": func(a *answer) { a.role(); a.role(); deltas(a) }}},
		{"in every delta", map[string]func(*answer){"s1": func(a *answer) {
			for ; a.next < 2; a.next++ {
				a.chunk(fmt.Sprintf(`"delta":{"role":"assistant","content":%q},"finish_reason":null`, word(a.next)))
			}
			deltas(a)
		}}},
		{"empty and null", map[string]func(*answer){"s1": func(a *answer) {
			a.chunk(`"delta":{"role":""},"finish_reason":null`)
			a.chunk(`"delta":{"role":null},"finish_reason":null`)
			deltas(a)
		}}},
		{"after a retry", map[string]func(*answer){"s1": func(a *answer) { a.role(); a.played("cut"); a.abort() }, "s2": func(a *answer) { a.role(); deltas(a) }}},
		{"after a retry, none", map[string]func(*answer){"s1": func(a *answer) { a.role(); a.played("cut"); a.abort() }, "s2": deltas}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			relay(t, "", "s1 s2", nil, func(t *testing.T, w *relays) {
				for id, play := range tt.play {
					w.servers[id].play = play
				}
				tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
				roles := 0
				for _, p := range payloads(tr.raw) {
					roles += strings.Count(p, `"role":"assistant"`)
				}
				if roles != 1 || !strings.Contains(payloads(tr.raw)[0], `"role":"assistant"`) || tr.text != words(0, 2) || !tr.done {
					t.Errorf("%d roles: %s", roles, tr.raw)
				}
				if len(tt.play) == 2 && w.asked("s1", 1)[0].state().fault != "cut" {
					t.Error("the fault was not played")
				}
			})
		})
	}
}

// The server is always asked for usage; the client gets it when it asked itself, in one chunk at the end.
func TestRelay_Usage(t *testing.T) {
	for _, asked := range []bool{false, true} {
		for _, continuous := range []bool{false, true} {
			for _, endpoint := range []string{"chat", "completions"} {
				t.Run(fmt.Sprintf("%s/asked=%v/continuous=%v", endpoint, asked, continuous), func(t *testing.T) {
					relay(t, "", "s1", func(c *router.Config, _ *relays) { c.Upstreams[0].ContinuousUsage = continuous }, func(t *testing.T, w *relays) {
						w.servers["s1"].play = func(a *answer) {
							a.role()
							for ; a.next < 3; a.next++ {
								content := fmt.Sprintf(`"delta":{"content":%q}`, word(a.next))
								if !a.chat {
									content = fmt.Sprintf(`"text":%q`, word(a.next))
								}
								usage := ""
								if continuous {
									usage = fmt.Sprintf(`,"usage":{"prompt_tokens":7,"completion_tokens":%d,"total_tokens":%d}`, 2*a.next+2, 2*a.next+9)
								}
								a.event(`{"id":"x","choices":[{"index":0,` + content + `,"finish_reason":null}]` + usage + `}`)
							}
							a.next = 6
							a.finish("stop")
							a.done()
						}
						more := `"seed":3`
						if asked {
							more = includeUsage
						}
						path, body := ask(endpoint, true, more)
						resp := w.post(path, body)
						tr := w.stream(resp)
						want := `{"include_usage":true}`
						if continuous {
							want = `{"include_usage":true,"continuous_usage_stats":true}`
						}
						if got := w.asked("s1", 1)[0].member(t, "stream_options"); got != want {
							t.Errorf("the server was asked for %s, want %s", got, want)
						}
						counted := strings.Count(tr.raw, `"completion_tokens"`)
						switch {
						case !asked && strings.Contains(tr.raw, `"usage"`):
							t.Errorf("usage that nobody asked for: %s", tr.raw)
						case asked && (counted != 1 || !strings.Contains(tr.usage, `"completion_tokens":6`)):
							t.Errorf("usage %q: %s", tr.usage, tr.raw)
						}
						info := w.session(resp)
						if accepted := map[bool]int{false: 3, true: 6}[continuous]; info.AcceptedTokens != accepted || info.PromptTokens != 7 {
							t.Errorf("%d tokens accepted, want %d; session %+v", info.AcceptedTokens, accepted, info)
						}
					})
				})
			}
		}
	}
}

// The client reads no finish before the server has said that the answer is whole.
func TestRelay_FinishIsHeldUntilDone(t *testing.T) {
	relay(t, "", "s1", nil, func(t *testing.T, w *relays) {
		w.servers["s1"].play = func(a *answer) {
			a.role()
			a.deltas(2)
			a.finish("stop")
			time.Sleep(3 * time.Second)
			a.done()
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		read := w.tail(resp.Body)
		time.Sleep(2 * time.Second)
		if got := read(); !strings.Contains(got, word(1)) || strings.Contains(got, `"stop"`) || strings.Contains(got, "[DONE]") {
			t.Errorf("before the end the client has %s", got)
		}
		time.Sleep(2 * time.Second)
		if got := read(); !strings.Contains(got, `"finish_reason":"stop"`) || !strings.HasSuffix(got, "data: [DONE]\n\n") {
			t.Errorf("at the end the client has %s", got)
		}
	})
}

// What has no content commits to nothing: after roles, comments and even after the client's headers are out, another
// server answers, and nothing of the first one is in the answer.
func TestRelay_PreamblesDontCommit(t *testing.T) {
	for _, wait := range []time.Duration{0, 12 * time.Second} {
		t.Run(wait.String(), func(t *testing.T) {
			relay(t, "", "s1 s2", func(c *router.Config, _ *relays) { c.UpstreamSilence.Prefill = time.Minute }, func(t *testing.T, w *relays) {
				w.servers["s1"].play = func(a *answer) {
					a.role()
					a.chunk(`"delta":{"content":""},"finish_reason":null`)
					a.event(`{"id":"x","choices":[],"prompt_progress":{"total":9}}`)
					a.send(": a comment\n\nevent: ping\n\n")
					time.Sleep(wait)
					a.played("cut")
					a.abort()
				}
				start := time.Now()
				resp := w.post("/v1/chat/completions", chat(true, ""))
				if held := time.Since(start); held != min(wait, 10*time.Second) {
					t.Errorf("headers after %v", held)
				}
				tr := w.stream(resp)
				if tr.text != words(0, total) || !tr.done || tr.roles != 1 || tr.comments != map[bool]int{true: 1, false: 0}[wait > 0] || strings.Contains(tr.raw, "prompt_progress") {
					t.Errorf("%s", tr.raw)
				}
				if w.asked("s1", 1)[0].state().fault != "cut" || ran(w.session(resp)) != "s1 reset, s2" {
					t.Errorf("ran %q", ran(w.session(resp)))
				}
			})
		})
	}
}

// Once the headers are out a failure without content is the event, and says that nothing was delivered.
func TestRelay_ErrorEventWithoutContent(t *testing.T) {
	relay(t, "", "s1", func(c *router.Config, _ *relays) { c.UpstreamSilence.Prefill = time.Minute }, func(t *testing.T, w *relays) {
		w.servers["s1"].play = func(a *answer) {
			a.role()
			time.Sleep(30 * time.Second)
			a.played("cut")
			a.abort()
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		tr := w.stream(resp)
		// At 10 s and 25 s.
		if tr.comments != 2 || tr.err == nil || tr.done || tr.err.Partial || tr.err.Delivered != 0 || tr.err.Code != "upstream_unavailable" || !tr.err.Retryable || tr.roles != 0 {
			t.Errorf("%s", tr.raw)
		}
	})
}

// The request goes on as it is, but for what the router must set, and without what is between client and router.
func TestRelay_RequestPassesThrough(t *testing.T) {
	relay(t, "", "s1", nil, func(t *testing.T, w *relays) {
		const odd = `"temperature": 0.70,"x_vendor":{"a": [1,2 ]},"messages":[{"role":"user","content":[{"type":"image_url"}]}]`
		sent := `{"model":"sim",` + odd + `,"stream":true}`
		resp := w.post("/v1/chat/completions", sent, "Authorization", "Bearer client-key", "Idempotency-Key", "k1", "X-Request-Id", "mine")
		if tr := w.stream(resp); !tr.done {
			t.Errorf("%s", tr.raw)
		}
		q := w.asked("s1", 1)[0]
		if !strings.Contains(string(q.body), odd) || q.member(t, "model") != `"sim"` || q.member(t, "stream") != "true" || q.path != "/v1/chat/completions" {
			t.Errorf("the server got %s", q.body)
		}
		for _, name := range []string{"Authorization", "Idempotency-Key", "Cookie"} {
			if v := q.header.Get(name); v != "" {
				t.Errorf("%s: %s went on", name, v)
			}
		}
		if got, want := resp.Header.Get("X-Segue-Protection"), "none; reason=no_agent"; got != want {
			t.Errorf("granted %q, want %q", got, want)
		}
	})
}
