// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	upstream "github.com/seguekv/segue/engines/openai"
	"github.com/seguekv/segue/router"
)

// ledgerAnswer is what a tool runner gets.
type ledgerAnswer struct {
	Request string          `json:"request"`
	Call    string          `json:"call"`
	State   string          `json:"state"`
	Granted bool            `json:"granted"`
	By      string          `json:"by"`
	Result  json.RawMessage `json:"result"`
	Error   errorObject     `json:"error"`
}

func (r reply) action(t *testing.T) ledgerAnswer {
	t.Helper()
	var a ledgerAnswer
	if err := json.Unmarshal([]byte(r.body), &a); err != nil {
		t.Fatalf("status %d, %q: %v", r.status, r.body, err)
	}
	return a
}

// action asks the ledger: PUT with a body, GET without one.
func (l *lives) action(name, body string, header ...string) reply {
	l.t.Helper()
	method := http.MethodPut
	if body == "" {
		method = http.MethodGet
	}
	return l.ask("router", method, "/v1/actions/"+name, body, header...)
}

func claim(arguments string) string { return `{"by":"runner","arguments":` + arguments + `}` }

func TestActions_ClaimThenResult(t *testing.T) {
	journalled(t, "", "u", nil, func(t *testing.T, l *lives) {
		const name = "0123:call_1"
		if r := l.action(name, ""); r.status != 404 {
			t.Errorf("before the claim: status %d: %s", r.status, r.body)
		}
		if r := l.action(name+"/result", `{"arguments":{"a":1},"result":1}`); r.status != 409 || r.fault(t).Code != "action_not_claimed" {
			t.Errorf("result before the claim: status %d: %s", r.status, r.body)
		}
		r := l.action(name, claim(`{"a":1}`))
		if a := r.action(t); r.status != 201 || !a.Granted || a.State != "claimed" || a.Request != "0123" || a.Call != "call_1" || a.By != "runner" {
			t.Fatalf("claim: status %d: %s", r.status, r.body)
		}
		taken := func(when string) {
			t.Helper()
			r := l.action(name, claim(`{"a":1}`))
			if a := r.action(t); r.status != 409 || a.Granted || a.State != "claimed" || a.By != "runner" || r.header.Get("Retry-After") != "1" || r.header.Get("X-Should-Retry") != "false" {
				t.Errorf("%s: status %d, header %v: %s", when, r.status, r.header, r.body)
			}
			if r := l.action(name, ""); r.status != 200 || r.action(t).Granted {
				t.Errorf("%s: look: status %d: %s", when, r.status, r.body)
			}
		}
		taken("second claim")
		l.restart()
		taken("after a restart")
		for what, r := range map[string]reply{
			"claim": l.action(name, claim(`{"a":2}`)), "result": l.action(name+"/result", `{"arguments":{"a":2},"result":1}`),
		} {
			if r.status != 422 || r.fault(t).Code != "action_arguments_differ" {
				t.Errorf("%s with other arguments: status %d: %s", what, r.status, r.body)
			}
		}
		const result = `{"paid":12345678901234567890,"text":"ü <b> \u2028"}`
		if r := l.action(name+"/result", `{"arguments":{"a":1},"result":`+result+`}`); r.status != 200 || r.action(t).State != "done" {
			t.Errorf("result: status %d: %s", r.status, r.body)
		}
		for n := range 2 {
			for what, r := range map[string]reply{
				"claim": l.action(name, claim(`{"a":1}`)), "look": l.action(name, ""), "other result": l.action(name+"/result", `{"arguments":{"a":1},"result":null}`),
			} {
				a := r.action(t)
				if r.status != 200 || a.State != "done" || a.Granted || plain(a.Result) != plain([]byte(result)) {
					t.Errorf("%s after the result, %d restarts: status %d: %s", what, n, r.status, r.body)
				}
			}
			l.restart()
		}
	})
}

// plain is equal for equal JSON; numbers count as they are written.
func plain(b []byte) string {
	var v map[string]json.RawMessage
	_ = json.Unmarshal(b, &v)
	var text string
	_ = json.Unmarshal(v["text"], &text)
	return string(v["paid"]) + text
}

func TestActions_BelongToTheirTenant(t *testing.T) {
	var acme, other string
	journalled(t, "", "u", func(c *router.Config, _ *relays) { acme, other = twoTenants(t, c) }, func(t *testing.T, l *lives) {
		for _, authorization := range []string{acme, other} {
			if r := l.action("r:c", claim(`{}`), "Authorization", authorization); r.status != 201 {
				t.Errorf("claim: status %d: %s", r.status, r.body)
			}
		}
		l.action("r:c/result", `{"arguments":{},"result":"secret"}`, "Authorization", acme)
		if r := l.action("r:c", "", "Authorization", other); strings.Contains(r.body, "secret") || r.action(t).State != "claimed" {
			t.Errorf("the other tenant sees %s", r.body)
		}
		if r := l.action("r:c", claim(`{}`)); r.status != 401 {
			t.Errorf("without a key: status %d: %s", r.status, r.body)
		}
	})
}

func TestActions_SameArguments(t *testing.T) {
	for i, c := range []struct {
		a, b string
		same bool
	}{
		{`{"a":1,"b":[true]}`, `"{\"a\":1,\"b\":[true]}"`, true},
		{`{"a":1}`, "{ \"a\" :\n\t1 }", true},
		{`"{\"a\":1}"`, `" { \"a\": 1 } "`, true},
		{`"{\"city\":\"Köln\"}"`, `{"city":"Köln"}`, true},
		{`"not json"`, `"not json"`, true},
		{`""`, `""`, true},
		{`"not json"`, `"not  json"`, false},
		{`{"a":1}`, `{"a":1.0}`, false},
		{`{"a":1}`, `{"a":"1"}`, false},
		{`{"a":"x y"}`, `{"a":"x  y"}`, false},
		{`{}`, `[]`, false},
		{`{}`, `""`, false},
	} {
		journalled(t, "", "u", nil, func(t *testing.T, l *lives) {
			want := map[bool]int{true: 409, false: 422}[c.same]
			first, second := l.action("r:c", claim(c.a)), l.action("r:c", claim(c.b))
			if first.status != 201 || second.status != want {
				t.Errorf("%d: %s and then %s: status %d and %d, want %d", i, c.a, c.b, first.status, second.status, want)
			}
		})
	}
}

func TestActions_BadInput(t *testing.T) {
	journalled(t, "", "u", nil, func(t *testing.T, l *lives) {
		l.action("r:c", claim(`{}`))
		for name, c := range map[string]struct {
			method, path, body string
			status             int
		}{
			"no call":          {"PUT", "r", claim(`{}`), 404},
			"empty call":       {"PUT", "r:", claim(`{}`), 404},
			"empty request":    {"PUT", ":c", claim(`{}`), 404},
			"nothing":          {"PUT", "", claim(`{}`), 404},
			"method":           {"POST", "r:c", claim(`{}`), 405},
			"delete":           {"DELETE", "r:c", "", 405},
			"no body":          {"PUT", "r:c", "", 400},
			"list":             {"PUT", "r:c", "[]", 400},
			"cut":              {"PUT", "r:c", `{"arguments":{}`, 400},
			"two":              {"PUT", "r:c", claim(`{}`) + "{}", 400},
			"unknown member":   {"PUT", "r:c", `{"arguments":{},"argument":1}`, 400},
			"no arguments":     {"PUT", "r:c", `{"by":"x"}`, 400},
			"no result":        {"PUT", "r:c/result", claim(`{}`), 400},
			"long call":        {"PUT", "r:" + strings.Repeat("c", 256), claim(`{}`), 400},
			"long request":     {"PUT", strings.Repeat("r", 256) + ":c", claim(`{}`), 400},
			"long name":        {"PUT", "r:d", `{"arguments":{},"by":"` + strings.Repeat("b", 256) + `"}`, 400},
			"large result":     {"PUT", "r:c/result", `{"arguments":{},"result":"` + strings.Repeat("x", 256<<10) + `"}`, 413},
			"large body":       {"PUT", "r:c", claim(`"` + strings.Repeat("x", 1<<20) + `"`), 413},
			"result is null":   {"PUT", "r:c/result", `{"arguments":{},"result":null}`, 200},
			"escaped":          {"PUT", "a%2Fb:c%3Ad", claim(`{}`), 201},
			"result in a name": {"PUT", "a/result:c", claim(`{}`), 201},
		} {
			r := l.ask("router", c.method, "/v1/actions/"+c.path, c.body)
			if r.status != c.status {
				t.Errorf("%s: status %d, want %d: %s", name, r.status, c.status, r.body)
			}
			if r.status >= 400 && r.fault(t).Message == "" {
				t.Errorf("%s: no message in %s", name, r.body)
			}
			if r.status == 405 && r.header.Get("Allow") != "PUT, GET, HEAD" {
				t.Errorf("%s: Allow %q", name, r.header.Get("Allow"))
			}
		}
	})
}

// What isn't durable is never granted, and may be claimed again.
func TestActions_JournalFails(t *testing.T) {
	journalled(t, "", "u", nil, func(t *testing.T, l *lives) {
		l.action("r:held", claim(`{}`))
		l.journal.Fail(errors.New("no space left on device"))
		for range 2 {
			for name, body := range map[string]string{"r:c": claim(`{}`), "r:held/result": `{"arguments":{},"result":1}`} {
				r := l.action(name, body)
				if e := r.fault(t); r.status != 503 || !e.Retryable || r.header.Get("Retry-After") == "" || r.action(t).Granted {
					t.Errorf("%s: status %d: %s", name, r.status, r.body)
				}
			}
		}
		l.journal.Fail(nil)
		time.Sleep(2 * time.Second) // virtual: it is tried again
		if r := l.action("r:c", claim(`{}`)); r.status != 201 || !r.action(t).Granted {
			t.Errorf("claim: status %d: %s", r.status, r.body)
		}
		if r := l.action("r:held/result", `{"arguments":{},"result":1}`); r.status != 200 || r.action(t).State != "done" {
			t.Errorf("result: status %d: %s", r.status, r.body)
		}
	})
}

// Of many claims, before and after crashes, at most one is granted.
func TestActions_GrantedOnceOverCrashes(t *testing.T) {
	journalled(t, "", "u", nil, func(t *testing.T, l *lives) {
		grants := map[string]int{}
		var mu sync.Mutex
		for round := range 20 {
			name := fmt.Sprintf("r:%d", round)
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://router/v1/actions/"+name, strings.NewReader(claim(`{}`)))
					if err != nil {
						t.Error(err)
						return
					}
					res, err := l.over().Do(req)
					if err != nil {
						return // the router crashed
					}
					defer res.Body.Close()
					if res.StatusCode == http.StatusCreated {
						mu.Lock()
						defer mu.Unlock()
						grants[name]++
					}
				})
			}
			if round%2 == 0 {
				all.Wait()
			}
			l.crash()
			all.Wait()
			if r := l.action(name, claim(`{}`)); r.status == 201 {
				grants[name]++
			}
			if grants[name] > 1 || round%2 == 0 && grants[name] != 1 {
				t.Errorf("%s was granted %d times", name, grants[name])
			}
		}
	})
}

// till is a tool: it counts what it did, and says for an action whether it is done.
type till struct {
	mu       sync.Mutex
	executed map[string]int
	results  map[string]string
}

func newTill() *till { return &till{executed: map[string]int{}, results: map[string]string{}} }

func (k *till) pay(action string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.executed[action]++
	k.results[action] = fmt.Sprintf(`{"receipt":%d}`, len(k.results)+1)
	return k.results[action]
}

func (k *till) status(action string) (string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, ok := k.results[action]
	return r, ok
}

// runner does an action as a tool runner should. With killed it ends right after the call and stores nothing.
func (l *lives) runner(k *till, action, arguments string, killed bool) string {
	l.t.Helper()
	r := l.action(action, claim(arguments))
	result := ""
	switch a := r.action(l.t); r.status {
	case http.StatusCreated:
		if result = k.pay(action); killed {
			return ""
		}
	case http.StatusOK:
		return string(a.Result)
	case http.StatusConflict:
		// An earlier runner began; only the tool knows how far it came.
		done := false
		if result, done = k.status(action); !done {
			l.t.Fatalf("%s is claimed and was never done", action)
		}
	default:
		l.t.Fatalf("claim: status %d: %s", r.status, r.body)
	}
	if r := l.action(action+"/result", `{"arguments":`+arguments+`,"result":`+result+`}`); r.status != http.StatusOK {
		l.t.Fatalf("result: status %d: %s", r.status, r.body)
	}
	return result
}

// calls are the tool calls of a stream, as "id name arguments".
func toolCalls(t *testing.T, stream string) [][3]string {
	t.Helper()
	var calls [][3]string
	for line := range strings.Lines(stream) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: {")
		if !ok {
			continue
		}
		var c struct {
			Choices []struct {
				Delta struct {
					Calls []struct {
						Index    int    `json:"index"`
						ID       string `json:"id"`
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				} `json:"delta"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte("{"+data), &c); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		for _, choice := range c.Choices {
			for _, call := range choice.Delta.Calls {
				for len(calls) <= call.Index {
					calls = append(calls, [3]string{})
				}
				calls[call.Index][0] += call.ID
				calls[call.Index][1] += call.Function.Name
				calls[call.Index][2] += call.Function.Arguments
			}
		}
	}
	return calls
}

// A server dies right after a tool call: nothing of the call is forwarded by then, another server's answer carries the
// same call id, and whatever the client repeats afterwards, the action is done once.
func TestR10_5_strict(t *testing.T) {
	dying := func(a *answer, before func()) {
		a.role()
		before()
		if a.callBegins(0, "pay") && a.arguments(0, `{"eur": `) && a.arguments(0, `5}`) {
			a.played("died after the call")
		}
		a.o.cut(true)
	}
	good := func(a *answer) {
		_ = a.role() && a.callBegins(0, "pay") && a.arguments(0, `{"eur": 5}`) && a.finish("tool_calls") && a.done()
		a.played("died after the answer")
		a.o.cut(true)
	}
	// The first server dies after the call, the second after its answer.
	journalled(t, "", "u v", func(c *router.Config, w *relays) {
		c.Journal.Replay = true
		var runs atomic.Int32
		for _, o := range w.servers {
			o.play = func(a *answer) {
				if runs.Add(1) > 1 {
					good(a)
					return
				}
				dying(a, func() {})
			}
		}
	}, func(t *testing.T, l *lives) {
		k := newTill()
		var first string
		for n := range 4 {
			r := l.chat(true, idempotencyKey, "k")
			calls := toolCalls(t, r.body)
			if r.status != 200 || len(calls) != 1 || calls[0][1] != "pay" {
				t.Fatalf("answer %d: status %d, calls %q: %s", n, r.status, calls, r.body)
			}
			session := r.header.Get("X-Segue-Session")
			if want := upstream.CallID("default", session, 0, 0); calls[0][0] != want {
				t.Errorf("call %s, want %s", calls[0][0], want)
			}
			action := session + ":" + calls[0][0]
			if n == 0 {
				first = action
			}
			arguments, _ := json.Marshal(calls[0][2])
			result := l.runner(k, action, string(arguments), n == 0) // the first one is killed after the call
			if n > 0 && result != `{"receipt":1}` {
				t.Errorf("run %d gets %s", n, result)
			}
			if action != first || k.executed[action] != 1 || len(k.executed) != 1 {
				t.Errorf("answer %d: action %s, first %s, executed %v", n, action, first, k.executed)
			}
			if n == 1 {
				l.crash()
			}
		}
		var faults []string
		for _, o := range l.servers {
			for _, q := range o.asked() {
				faults = append(faults, q.state().fault)
			}
		}
		if slices.Sort(faults); !slices.Equal(faults, []string{"died after the answer", "died after the call"}) {
			t.Errorf("runs: %q", faults)
		}
	})
	// Text was delivered before the call: the answer ends in an error, the half of it is never executable, no run follows.
	journalled(t, "", "u v", func(_ *router.Config, w *relays) {
		for _, o := range w.servers {
			o.play = func(a *answer) { dying(a, func() { a.deltas(2) }) }
		}
	}, func(t *testing.T, l *lives) {
		for n := range 3 {
			r := l.chat(true, idempotencyKey, "k")
			if calls := toolCalls(t, r.body); len(calls) > 0 || !strings.Contains(r.body, "upstream_decode_interrupted") || n > 0 && r.status != 502 {
				t.Errorf("answer %d: status %d, calls %q: %s", n, r.status, calls, r.body)
			}
			if n == 1 {
				l.restart()
			}
		}
		if n := len(l.servers["u"].asked()) + len(l.servers["v"].asked()); n != 1 {
			t.Errorf("%d runs, want 1", n)
		}
	})
}

// A node dies right after a call that the client read from the text and had done: the session goes on on the holder,
// and the runner, killed after the call and started again, does it no second time.
func TestR10_5_protected(t *testing.T) {
	for _, killed := range []bool{true, false} {
		t.Run(fmt.Sprintf("runner killed %v", killed), func(t *testing.T) {
			var done chan struct{}
			journalled(t, "a b", "", func(_ *router.Config, w *relays) {
				done = make(chan struct{})
				a, b := w.agents["a"], w.agents["b"]
				a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
					if err := e.begin("b", 0); err != nil {
						return err
					}
					for _, piece := range []string{"<tool>", `{"pay":5}`, "</tool>"} {
						if err := e.text(piece, 0); err != nil {
							return err
						}
					}
					<-done
					go a.kill()
					return e.hang()
				}
				b.takeover = func(r *seguev1.TakeoverRequest, e *events) error { return e.resume(r, 3, total) }
			}, func(t *testing.T, l *lives) {
				k := newTill()
				res := l.post("/v1/chat/completions", chat(true, ""))
				action := res.Header.Get("X-Segue-Session") + ":call_0"
				seen := readEvents(t, res.Body, 4) // the role and three tokens
				if !strings.Contains(seen, "/tool") {
					t.Fatalf("no call in %q", seen)
				}
				l.runner(k, action, `{"pay":5}`, killed)
				close(done)
				rest, err := io.ReadAll(res.Body)
				if err != nil || !strings.Contains(string(rest), "[DONE]") {
					t.Errorf("%q, %v", rest, err)
				}
				if result := l.runner(k, action, `"{\"pay\": 5}"`, false); result != `{"receipt":1}` {
					t.Errorf("the runner started again gets %s", result)
				}
				if k.executed[action] != 1 {
					t.Errorf("executed %v", k.executed)
				}
				synctest.Wait()
				info := l.session(res)
				if len(info.Seams) != 1 || info.Seams[0].Delivered != 3 || len(l.agents["b"].calls().takeovers) != 1 || len(l.agents["b"].calls().generates) != 0 {
					t.Errorf("seams %+v", info.Seams)
				}
			})
		})
	}
}
