// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
)

// other is a request for another model than the agents'.
func other(body string) string { return strings.Replace(body, `"sim"`, `"other"`, 1) }

// servesToo gives a server more models.
func servesToo(server string, models ...string) func(*router.Config, *relays) {
	return func(_ *router.Config, w *relays) { w.servers[server].models = models }
}

// A request runs on agents when they can serve it, else on a server of its model.
func TestRelay_Dispatch(t *testing.T) {
	for _, tt := range []struct {
		name, agents, servers string
		models                []string // of s1
		body                  string
		ran                   string // node, or the error's code
		granted               string
	}{
		{"agents only", "a b", "", nil, chat(true, ""), "a", "sync"},
		{"agents only, unknown model", "a b", "", nil, other(chat(true, "")), "model_not_found", ""},
		{"agents only, tools", "a b", "", nil, chat(true, `"tools":[{"type":"function"}]`), "unsupported_parameter", ""},
		{"servers only", "", "s1", []string{"sim"}, chat(true, ""), "s1", "none; reason=no_agent"},
		{"servers only, tools", "", "s1", []string{"sim"}, chat(true, `"tools":[{"type":"function"}]`), "s1", "none; reason=no_agent"},
		{"servers only, unknown model", "", "s1", []string{"sim"}, other(chat(true, "")), "model_not_found", ""},
		{"both have the model", "a b", "s1", []string{"sim"}, chat(true, ""), "a", "sync"},
		{"the server's model", "a b", "s1", []string{"other"}, other(chat(true, "")), "s1", "none; reason=no_agent"},
		{"the agents' model", "a b", "s1", []string{"other"}, chat(true, ""), "a", "sync"},
		{"nobody's model", "a b", "s1", []string{"sim"}, other(chat(true, "")), "model_not_found", ""},
		{"tools", "a b", "s1", []string{"sim"}, chat(true, `"tools":[{"type":"function"}]`), "s1", "none; reason=unsupported_parameter=tools"},
		{"n", "a b", "s1", []string{"sim"}, chat(true, `"n":2`), "s1", "none; reason=unsupported_parameter=n"},
		{"response_format", "a b", "s1", []string{"sim"}, chat(true, `"response_format":{"type":"json_object"}`), "s1", "none; reason=unsupported_parameter=response_format"},
		{"logprobs", "a b", "s1", []string{"sim"}, chat(true, `"logprobs":true`), "s1", "none; reason=unsupported_parameter=logprobs"},
		{"tools, the server has another model", "a b", "s1", []string{"other"}, chat(true, `"tools":[{"type":"function"}]`), "unsupported_parameter", ""},
		{"a wrong field is wrong anywhere", "a b", "s1", []string{"sim"}, chat(true, `"temperature":"hot"`), "invalid_request", ""},
		{"the same key twice", "", "s1", []string{"sim"}, chat(true, `"model":"sim"`), "invalid_request", ""},
		{"the same key twice, agents too", "a b", "s1", []string{"sim"}, chat(true, `"tools":[],"tools":[{"type":"function"}]`), "invalid_request", ""},
		{"no model", "", "s1", []string{"sim"}, `{"messages":[]}`, "invalid_request", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			change := func(*router.Config, *relays) {}
			if tt.servers != "" {
				change = servesToo("s1", tt.models...)
			}
			relay(t, tt.agents, tt.servers, change, func(t *testing.T, w *relays) {
				if o := w.servers["s1"]; o != nil {
					o.play = func(a *answer) { // as many choices as were asked for
						if a.q.member(t, "n") == "2" {
							a.event(`{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"},{"index":1,"delta":{"content":"y"},"finish_reason":"stop"}]}`)
							a.done()
							return
						}
						a.whole(total)
					}
				}
				resp := w.post("/v1/chat/completions", tt.body)
				asked := 0
				for _, a := range w.agents {
					asked += len(a.calls().generates)
				}
				for _, o := range w.servers {
					asked += len(o.asked())
				}
				if strings.Contains(tt.ran, "_") {
					if e := w.failure(resp); e.Code != tt.ran || resp.StatusCode/100 != 4 || asked != 0 {
						t.Errorf("status %d, %d runs: %+v", resp.StatusCode, asked, e)
					}
					return
				}
				if tr := w.stream(resp); !tr.done || asked != 1 {
					t.Errorf("%d runs: %s", asked, tr.raw)
				}
				if got := resp.Header.Get("X-Segue-Protection"); got != tt.granted || ran(w.session(resp)) != tt.ran {
					t.Errorf("granted %q, ran %q", got, ran(w.session(resp)))
				}
			})
		})
	}
}

// With n choices an answer is whole when each of them is.
func TestRelay_EveryChoiceMustFinish(t *testing.T) {
	const first = `{"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}`
	for _, stream := range []bool{true, false} {
		relay(t, "", "s1 s2", nil, func(t *testing.T, w *relays) {
			w.servers["s1"].play = func(a *answer) {
				a.played("one choice")
				if !stream {
					a.json(200, a.wholeBody(2, "stop"))
					return
				}
				a.event(first)
				a.done()
			}
			w.servers["s2"].play = func(a *answer) {
				if !stream {
					a.json(200, `{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"},{"index":1,"message":{"content":"y"},"finish_reason":"length"}]}`)
					return
				}
				a.event(`{"choices":[{"index":1,"delta":{"content":"y"},"finish_reason":"length"}]}`)
				a.event(`{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}`)
				a.done()
			}
			resp := w.post("/v1/chat/completions", chat(stream, `"n":2`))
			raw := body(t, resp)
			if got := ran(w.session(resp)); got != "s1 eof_no_finish, s2" || !strings.Contains(raw, `"y"`) || !strings.Contains(raw, `"x"`) {
				t.Errorf("ran %q: %s", got, raw)
			}
			if w.asked("s1", 1)[0].state().fault != "one choice" {
				t.Error("the fault was not played")
			}
		})
	}
}

// Work goes by weight, and a server that failed is left alone for a while.
func TestRelay_WeightsAndExclusion(t *testing.T) {
	relay(t, "", "s1 s2", func(c *router.Config, _ *relays) { c.Upstreams[0].Weight = 3 }, func(t *testing.T, w *relays) {
		for _, o := range w.servers {
			o.play = func(a *answer) {
				a.role()
				time.Sleep(5 * time.Second)
				a.deltas(2)
				a.finish("stop")
				a.done()
			}
		}
		change := w.servers["s1"]
		var waits []func() *transcript
		for range 8 {
			got := make(chan *transcript, 1)
			go func() { got <- w.stream(w.post("/v1/chat/completions", chat(true, ""))) }() // ends with the answer
			waits = append(waits, func() *transcript { return <-got })
			w.settle()
		}
		if a, b := len(w.servers["s1"].asked()), len(w.servers["s2"].asked()); a != 6 || b != 2 {
			t.Errorf("%d and %d requests at once, want 6 and 2", a, b)
		}
		for _, wait := range waits {
			if tr := wait(); !tr.done {
				t.Errorf("%s", tr.raw)
			}
		}
		change.mu.Lock()
		change.play = func(a *answer) { a.played("boom"); a.json(500, serverError) }
		change.mu.Unlock()
		before := len(change.asked())
		for range 5 {
			if tr := w.stream(w.post("/v1/chat/completions", chat(true, ""))); !tr.done {
				t.Errorf("%s", tr.raw)
			}
		}
		if n := len(change.asked()) - before; n < 1 || n > 4 {
			t.Errorf("the failing server was asked %d times by 5 requests over 25 s", n)
		}
	})
	relay(t, "", "s1 s2", nil, func(t *testing.T, w *relays) {
		w.servers["s1"].play = func(a *answer) { a.played("boom"); a.json(500, serverError) }
		for range 5 {
			if tr := w.stream(w.post("/v1/chat/completions", chat(true, ""))); !tr.done {
				t.Errorf("%s", tr.raw)
			}
		}
		w.asked("s1", 1)
		w.asked("s2", 5)
	})
}

// A server gets no more requests at once than its configuration says; the next one waits.
func TestRelay_Contexts(t *testing.T) {
	relay(t, "", "s1", func(c *router.Config, _ *relays) { c.Upstreams[0].Contexts = 1 }, func(t *testing.T, w *relays) {
		w.servers["s1"].play = func(a *answer) { time.Sleep(2 * time.Second); a.whole(2) }
		start := time.Now()
		got := make(chan *transcript, 2)
		for range 2 {
			go func() { got <- w.stream(w.post("/v1/chat/completions", chat(true, ""))) }() // ends with the answer
		}
		time.Sleep(time.Second)
		w.asked("s1", 1)
		for range 2 {
			if tr := <-got; !tr.done {
				t.Errorf("%s", tr.raw)
			}
		}
		within(t, "both", time.Since(start), 4*time.Second, 5*time.Second)
	})
}

// on_unprotected: fail refuses what only a server can serve, unless the client asks for no protection.
func TestRelay_MustProtect(t *testing.T) {
	for _, header := range []string{"", "async", "sync", "off"} {
		relay(t, "", "s1", func(c *router.Config, _ *relays) { c.OnUnprotected = router.UnprotectedFail }, func(t *testing.T, w *relays) {
			resp := w.post("/v1/chat/completions", chat(true, ""), "X-Segue-Protection", header)
			if header == "off" {
				if tr := w.stream(resp); !tr.done || resp.Header.Get("X-Segue-Protection") != "off" {
					t.Errorf("granted %q: %s", resp.Header.Get("X-Segue-Protection"), tr.raw)
				}
				return
			}
			if e := w.failure(resp); resp.StatusCode != http.StatusServiceUnavailable || e.Code != "protection_unavailable" || !strings.Contains(e.Message, "no_agent") {
				t.Errorf("%q: status %d: %+v", header, resp.StatusCode, e)
			}
			w.asked("s1", 0)
		})
	}
}

// The router's key goes to the server, the client's doesn't.
func TestRelay_KeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("sk-ours\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	relay(t, "", "s1", func(c *router.Config, _ *relays) { c.Upstreams[0].KeyFile = path }, func(t *testing.T, w *relays) {
		if tr := w.stream(w.post("/v1/chat/completions", chat(true, ""), "Authorization", "Bearer sk-theirs")); !tr.done {
			t.Errorf("%s", tr.raw)
		}
		if got := w.asked("s1", 1)[0].header.Get("Authorization"); got != "Bearer sk-ours" {
			t.Errorf("Authorization %q", got)
		}
	})
}

// While agents and servers share the router, each failure stays on its own side.
func TestRelay_AgentsKeepTheirSessions(t *testing.T) {
	relay(t, "a b", "s1", nil, func(t *testing.T, w *relays) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = a.dies("b", 3)
		b.takeover = func(r *seguev1.TakeoverRequest, e *events) error { return e.resume(r, 4, total) }
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if tr := w.stream(resp); tr.text != words(0, total) || !tr.done {
			t.Errorf("%s", tr.raw)
		}
		if info := w.session(resp); len(info.Seams) != 1 || info.Primary != "b" {
			t.Errorf("session %+v", info)
		}
		w.asked("s1", 0)
	})
}

// What can't work is refused before the router starts.
func TestRelay_BadConfig(t *testing.T) {
	for i, tt := range []struct {
		change func(*router.Config)
		want   string
	}{
		{func(c *router.Config) { c.Upstreams[0].URL = "s1:8000" }, "router.upstreams[0].url"},
		{func(c *router.Config) { c.Upstreams[0].URL = "ftp://s1" }, "router.upstreams[0].url"},
		{func(c *router.Config) { c.Upstreams[0].ID = "" }, "router.upstreams[0].id"},
		{func(c *router.Config) { c.Upstreams = append(c.Upstreams, c.Upstreams[0]) }, "used twice"},
		{func(c *router.Config) { c.Upstreams[0].Weight = -1 }, "router.upstreams[0].weight"},
		{func(c *router.Config) { c.Upstreams[0].Contexts = -1 }, "router.upstreams[0].contexts"},
		{func(c *router.Config) { c.Upstreams[0].KeyFile = "/does/not/exist" }, "router.upstreams[0].key_file"},
		{func(c *router.Config) { c.Upstreams[0].URL = "http://u:p@s1:8000" }, "router.upstreams[0]"},
		{func(c *router.Config) { c.UpstreamSilence.Decode = 0 }, "router.upstream_silence.decode"},
		{func(c *router.Config) { c.Upstreams = nil }, "router.agents"},
	} {
		cfg := router.DefaultConfig()
		cfg.InsecurePlaintext = true
		cfg.Upstreams = []router.Upstream{{ID: "s1", URL: "http://s1:8000"}}
		tt.change(&cfg)
		if _, err := router.New(cfg, router.Deps{}); err == nil || !strings.Contains(fmt.Sprint(err), tt.want) {
			t.Errorf("%d: %v, want it to name %s", i, err, tt.want)
		}
	}
}
