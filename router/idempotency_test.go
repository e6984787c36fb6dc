// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/journal"
	"github.com/seguekv/segue/router/keys"
)

// lives is a world whose router may be started again on the same journal.
type lives struct {
	*relays
	cfg router.Config
	mu  sync.Mutex // guards http
}

// journalled runs f against a router with agents and servers, in virtual time.
func journalled(t *testing.T, agents, servers string, change func(*router.Config, *relays), f func(*testing.T, *lives)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &lives{}
		l.relays = newRelays(t, agents, servers, func(c *router.Config, w *relays) {
			if change != nil {
				change(c, w)
			}
			c.InsecurePlaintext = true // the addresses are names of pipes
			l.cfg = *c
		}, nil)
		defer func() { l.close() }()
		f(t, l)
	})
}

// reply is a response, read whole.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

// fault is the reply's error object.
func (r reply) fault(t *testing.T) errorObject {
	t.Helper()
	var b struct {
		Error errorObject `json:"error"`
	}
	if err := json.Unmarshal([]byte(r.body), &b); err != nil {
		t.Fatalf("status %d, body %q: %v", r.status, r.body, err)
	}
	return b.Error
}

// ask sends a request to the clients' listener, or to the operators' when host is admin.
func (l *lives) ask(host, method, path, body string, header ...string) reply {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.t.Context(), method, "http://"+host+path, strings.NewReader(body))
	if err != nil {
		l.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	res, err := l.over().Do(req)
	if err != nil {
		l.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(b), err}
}

func (l *lives) chat(stream bool, header ...string) reply {
	l.t.Helper()
	return l.ask("router", http.MethodPost, "/v1/chat/completions", chat(stream, ""), header...)
}

// view is the journal's view of a request.
func (l *lives) view(id string, header ...string) journal.Request {
	l.t.Helper()
	r := l.ask("router", http.MethodGet, "/v1/requests/"+id, "", header...)
	var v journal.Request
	if err := json.Unmarshal([]byte(r.body), &v); r.status != http.StatusOK || err != nil {
		l.t.Fatalf("request %s: status %d, %s, %v", id, r.status, r.body, err)
	}
	return v
}

// restart ends the router in good order and starts another one on its journal.
func (l *lives) restart() {
	l.t.Helper()
	l.http.CloseIdleConnections()
	l.stop()
	if err := <-l.done; err != nil {
		l.t.Errorf("Run = %v", err)
	}
	l.begin(l.journal)
}

// crash starts another router on what was committed; the one before can't commit any more, and its clients are cut.
func (l *lives) crash(cut ...io.Closer) {
	l.t.Helper()
	storage := l.journal.Crash()
	for _, c := range cut {
		c.Close()
	}
	l.http.CloseIdleConnections()
	l.stop()
	<-l.done // it complains about its journal
	l.begin(storage)
}

// over is the client of the present router; a request may be on its way while another one begins.
func (l *lives) over() *http.Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.http
}

func (l *lives) begin(storage *journal.Memory) {
	l.t.Helper()
	l.client, l.admin, l.metrics, l.journal = newPipes(), newPipes(), prometheus.NewRegistry(), storage
	client, admin := l.client, l.admin
	l.mu.Lock()
	l.http = over(client, admin)
	l.mu.Unlock()
	deps := l.deps(l.cfg)
	deps.JournalStorage = storage
	deps.Listen = func(_, addr string) (net.Listener, error) {
		if addr == l.cfg.Admin {
			return admin, nil
		}
		return client, nil
	}
	r, err := router.New(l.cfg, deps)
	if err != nil {
		l.t.Fatal(err)
	}
	l.router = r
	ctx, stop := context.WithCancel(l.t.Context())
	l.stop = stop
	go func() { l.done <- r.Run(ctx) }() // ends with close
	synctest.Wait()
}

const idempotencyKey = "Idempotency-Key"

// twoTenants makes a key file; the keys are the tenants' Authorization headers.
func twoTenants(t *testing.T, c *router.Config) (acme, other string) {
	t.Helper()
	c.Keys = filepath.Join(t.TempDir(), "keys")
	var text strings.Builder
	headers := map[string]string{}
	for _, tenant := range []string{"acme", "other"} {
		line, err := keys.Line(tenant, "sk-"+tenant)
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(line + "\n")
		headers[tenant] = "Bearer sk-" + tenant
	}
	if err := os.WriteFile(c.Keys, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return headers["acme"], headers["other"]
}

func TestIdempotency_KeyForms(t *testing.T) {
	journalled(t, "", "u", nil, func(t *testing.T, l *lives) {
		for name, c := range map[string]struct {
			header []string
			status int
		}{
			"bare":      {[]string{idempotencyKey, "a"}, 200},
			"quoted":    {[]string{idempotencyKey, `"b c"`}, 200},
			"longest":   {[]string{idempotencyKey, strings.Repeat("k", 255)}, 200},
			"quotes":    {[]string{idempotencyKey, `"` + strings.Repeat("q", 255) + `"`}, 200},
			"too long":  {[]string{idempotencyKey, strings.Repeat("k", 256)}, 400},
			"twice":     {[]string{idempotencyKey, "x", idempotencyKey, "x"}, 400},
			"non-ASCII": {[]string{idempotencyKey, "schlüssel"}, 400},
			"empty":     {[]string{idempotencyKey, ""}, 400},
			"nothing":   {[]string{idempotencyKey, `""`}, 400},
		} {
			before := len(l.servers["u"].asked())
			r := l.chat(false, c.header...)
			if r.status != c.status {
				t.Errorf("%s: status %d, want %d: %s", name, r.status, c.status, r.body)
			}
			ran := len(l.servers["u"].asked()) - before
			if c.status == 200 && ran != 1 || c.status != 200 && ran != 0 {
				t.Errorf("%s: status %d and %d runs", name, r.status, ran)
			}
			if c.status == 400 {
				if e := r.fault(t); e.Param != idempotencyKey || e.Code != "invalid_request" || !strings.Contains(e.Message, "255") {
					t.Errorf("%s: %+v", name, e)
				}
			}
		}
		// Quoted and bare are the same key.
		for _, k := range []string{`"a"`, "b c"} {
			if r := l.chat(false, idempotencyKey, k); r.status != 409 {
				t.Errorf("%s again: status %d, want 409: %s", k, r.status, r.body)
			}
		}
	})
}

func TestIdempotency_Running(t *testing.T) {
	var goOn chan struct{}
	journalled(t, "", "u", func(_ *router.Config, w *relays) {
		goOn = make(chan struct{})
		w.servers["u"].play = func(a *answer) {
			_ = a.role() && a.deltas(2)
			<-goOn
			_ = a.deltas(total) && a.finish("stop") && a.done()
		}
	}, func(t *testing.T, l *lives) {
		first := l.post("/v1/chat/completions", chat(true, ""), idempotencyKey, "k", "X-Request-Id", "mine")
		wait := l.reading(first)
		r := l.chat(true, idempotencyKey, "k")
		if r.status != 409 || r.header.Get("Retry-After") != "1" || r.header.Get("X-Should-Retry") != "false" {
			t.Errorf("status %d, header %v", r.status, r.header)
		}
		session := first.Header.Get("X-Segue-Session")
		if e := r.fault(t); e.Code != "idempotency_key_running" || e.Retryable || !strings.Contains(e.Message, session) || !strings.Contains(e.Message, "mine") {
			t.Errorf("error %+v", e)
		}
		if got := r.header.Get("X-Segue-Session"); got != session {
			t.Errorf("session %q, want the running one, %s", got, session)
		}
		// Another body is told apart while the first one runs, too.
		if r := l.ask("router", "POST", "/v1/chat/completions", chat(true, `"max_tokens":9`), idempotencyKey, "k"); r.status != 422 {
			t.Errorf("another body: status %d: %s", r.status, r.body)
		}
		close(goOn)
		if tr := wait(); tr.text != words(0, total) {
			t.Errorf("the first request got %q", tr.text)
		}
		l.relays.asked("u", 1)
	})
}

func TestIdempotency_OtherPayload(t *testing.T) {
	journalled(t, "", "u", nil, func(t *testing.T, l *lives) {
		l.chat(false, idempotencyKey, "k", "X-Request-Id", "mine")
		for _, restarted := range []bool{false, true} {
			if restarted {
				l.restart()
			}
			for path, body := range map[string]string{
				"/v1/chat/completions": chat(false, `"max_tokens":9`),
				"/v1/completions":      `{"model":"sim","prompt":"hi"}`,
			} {
				r := l.ask("router", "POST", path, body, idempotencyKey, "k")
				if e := r.fault(t); r.status != 422 || e.Code != "idempotency_key_reused" || e.Param != idempotencyKey || e.Retryable || !strings.Contains(e.Message, "mine") {
					t.Errorf("restarted %v, %s: status %d, %+v", restarted, path, r.status, e)
				}
				if got := r.header.Get("X-Segue-Session"); got != "" {
					t.Errorf("%s: session %q, but there is none", path, got)
				}
			}
		}
		l.relays.asked("u", 1)
	})
}

func TestIdempotency_Replay(t *testing.T) {
	for _, on := range []struct{ name, agents, servers string }{{"agent", "a", ""}, {"server", "", "u"}} {
		for _, endpoint := range []string{"chat", "completion"} {
			for _, stream := range []bool{false, true} {
				t.Run(on.name+"/"+endpoint+map[bool]string{true: "/stream", false: "/whole"}[stream], func(t *testing.T) {
					change := func(c *router.Config, _ *relays) { c.Journal.Replay = true }
					journalled(t, on.agents, on.servers, change, func(t *testing.T, l *lives) {
						path, body := ask(endpoint, stream, includeUsage)
						if !stream {
							path, body = ask(endpoint, stream, "")
						}
						first := l.ask("router", "POST", path, body, idempotencyKey, "k")
						if first.status != 200 || first.header.Get("Idempotent-Replayed") != "" {
							t.Fatalf("status %d, header %v", first.status, first.header)
						}
						for _, again := range []string{"at once", "restarted"} {
							if again == "restarted" {
								l.restart()
							}
							r := l.ask("router", "POST", path, body, idempotencyKey, "k")
							if r.status != 200 || r.body != first.body || r.header.Get("Idempotent-Replayed") != "true" {
								t.Errorf("%s: status %d, header %v, body %q, want %q", again, r.status, r.header, r.body, first.body)
							}
							for _, name := range []string{"Content-Type", "Cache-Control", "X-Accel-Buffering", "Content-Length", "X-Segue-Session"} {
								if got, want := r.header.Get(name), first.header.Get(name); got != want {
									t.Errorf("%s: %s is %q, want %q", again, name, got, want)
								}
							}
						}
						runs := 0
						for _, a := range l.agents {
							runs += len(a.calls().generates)
						}
						for _, u := range l.servers {
							runs += len(u.asked())
						}
						if runs != 1 {
							t.Errorf("%d runs, want 1", runs)
						}
						if v := l.view(first.header.Get("X-Segue-Session")); !v.ReplayRetained || v.Phase != journal.PhaseDone {
							t.Errorf("journal: %+v", v)
						}
					})
				})
			}
		}
	}
}

// Comments that kept the connection alive are no part of the answer.
func TestIdempotency_ReplayWithoutKeepAlives(t *testing.T) {
	journalled(t, "", "u", func(c *router.Config, w *relays) {
		c.Journal.Replay, c.HeaderHold = true, time.Second
		w.servers["u"].play = func(a *answer) { time.Sleep(2 * time.Second); a.whole(2) }
	}, func(t *testing.T, l *lives) {
		first, again := l.chat(true, idempotencyKey, "k"), l.chat(true, idempotencyKey, "k")
		const comment = ": keep-alive\n\n"
		if !strings.Contains(first.body, comment) {
			t.Fatalf("no comment in %q", first.body)
		}
		if again.body != strings.ReplaceAll(first.body, comment, "") {
			t.Errorf("replayed %q, want %q without comments", again.body, first.body)
		}
	})
}

func TestIdempotency_AnswerNotKept(t *testing.T) {
	for name, change := range map[string]func(*router.Config){
		"off":       func(*router.Config) {},
		"too large": func(c *router.Config) { c.Journal.Replay, c.Journal.MaxAnswer = true, 100 },
	} {
		t.Run(name, func(t *testing.T) {
			journalled(t, "", "u", func(c *router.Config, _ *relays) { change(c) }, func(t *testing.T, l *lives) {
				first := l.chat(true, idempotencyKey, "k", "X-Request-Id", "mine")
				for range 2 {
					r := l.chat(true, idempotencyKey, "k")
					e := r.fault(t)
					if r.status != 409 || e.Code != "idempotency_key_finished" || r.header.Get("X-Should-Retry") != "false" || !strings.Contains(e.Message, "mine") {
						t.Errorf("status %d, header %v, %+v", r.status, r.header, e)
					}
					if r.header.Get("X-Segue-Session") != first.header.Get("X-Segue-Session") {
						t.Errorf("session %q, want the finished one", r.header.Get("X-Segue-Session"))
					}
					l.restart()
				}
				l.relays.asked("u", 1)
			})
		})
	}
}

func TestIdempotency_InterruptedAfterContent(t *testing.T) {
	journalled(t, "a b", "", func(_ *router.Config, w *relays) {
		for _, a := range w.agents {
			a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
				if err := e.begin("", 3); err != nil {
					return err
				}
				return refusal(seguev1.Reason_REASON_ENGINE_LOST, "signal: <killed> & gone")
			}
		}
	}, func(t *testing.T, l *lives) {
		header := []string{idempotencyKey, "k", "X-Segue-Protection", "off", "X-Request-Id", "mine"}
		first := l.chat(true, header...)
		at := strings.LastIndex(first.body, `data: {"error":`)
		if at < 0 {
			t.Fatalf("no error event in %q", first.body)
		}
		event := strings.TrimSuffix(strings.TrimPrefix(first.body[at:], "data: "), "\n\n")
		for range 2 {
			r := l.chat(true, idempotencyKey, "k")
			if r.status != 502 || r.header.Get("X-Should-Retry") != "false" || strings.TrimSuffix(r.body, "\n") != event {
				t.Errorf("status %d, header %v,\n%s, want\n%s", r.status, r.header, r.body, event)
			}
			if e := r.fault(t); !e.Partial || e.Delivered != 3 || e.RequestID != "mine" {
				t.Errorf("error %+v", e)
			}
			l.restart()
		}
		if n := len(l.agents["a"].calls().generates) + len(l.agents["b"].calls().generates); n != 1 {
			t.Errorf("%d runs, want 1", n)
		}
	})
}

func TestIdempotency_FailedBeforeContent(t *testing.T) {
	for _, stream := range []bool{false, true} {
		journalled(t, "", "u", func(c *router.Config, w *relays) {
			c.MaxAttempts = 1
			runs := 0
			w.servers["u"].play = func(a *answer) {
				if runs++; runs < 3 {
					a.json(500, `{"error":{"message":"boom"}}`)
					return
				}
				a.whole(total)
			}
		}, func(t *testing.T, l *lives) {
			for n, want := range []int{502, 502, 200, 409} {
				time.Sleep(time.Minute) // virtual: the server is no longer left alone for its failure
				if r := l.chat(stream, idempotencyKey, "k"); r.status != want {
					t.Errorf("stream %v, request %d: status %d, want %d: %s", stream, n, r.status, want, r.body)
				}
				if n == 0 {
					l.restart()
				}
			}
			l.relays.asked("u", 3)
		})
	}
}

func TestIdempotency_ScopedByCredential(t *testing.T) {
	var acme, other string
	journalled(t, "", "u", func(c *router.Config, _ *relays) {
		c.Journal.Replay = true
		acme, other = twoTenants(t, c)
	}, func(t *testing.T, l *lives) {
		header := []string{idempotencyKey, "k", "X-Request-Id", "mine", "Authorization"}
		first := l.chat(false, append(header, acme)...)
		second := l.ask("router", "POST", "/v1/chat/completions", chat(false, `"max_tokens":9`), append(header, other)...)
		if first.status != 200 || second.status != 200 || second.header.Get("Idempotent-Replayed") != "" {
			t.Errorf("status %d and %d, want 200 twice: %s", first.status, second.status, second.body)
		}
		l.relays.asked("u", 2)
		if r := l.chat(false, append(header, acme)...); r.header.Get("Idempotent-Replayed") != "true" || r.body != first.body {
			t.Errorf("own key: status %d, %q", r.status, r.body)
		}
		for _, authorization := range []string{"", "Bearer sk-nobody", "Basic c2s6"} {
			r := l.chat(false, append(header, authorization)...)
			if e := r.fault(t); r.status != 401 || e.Code != "invalid_api_key" || r.header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%q: status %d, %+v", authorization, r.status, e)
			}
		}
		l.relays.asked("u", 2)
	})
}

// What a router that crashed had open is never run again once anything of it may have been delivered.
func TestIdempotency_RouterCrash(t *testing.T) {
	journalled(t, "", "u", func(_ *router.Config, w *relays) {
		w.servers["u"].play = func(a *answer) { _ = a.role() && a.deltas(3); a.hang() }
	}, func(t *testing.T, l *lives) {
		res := l.post("/v1/chat/completions", chat(true, ""), idempotencyKey, "k", "X-Request-Id", "mine")
		seen := readEvents(t, res.Body, 4) // the role and three deltas
		synctest.Wait()
		l.crash(res.Body)
		l.servers["u"].play = func(a *answer) { a.whole(total) }
		r := l.chat(true, idempotencyKey, "k")
		e := r.fault(t)
		if r.status != 502 || e.Code != "upstream_decode_interrupted" || e.Cause != "router_crash" || !e.Partial || e.Delivered < 3 || e.RequestID != "mine" || r.header.Get("X-Should-Retry") != "false" {
			t.Errorf("status %d, %+v", r.status, e)
		}
		v := l.view(res.Header.Get("X-Segue-Session"))
		if v.Phase != journal.PhaseFailed || !v.FirstDeltaSent || !v.UpperBound || v.Delivered < 3 || strings.Count(seen, "content\":\"w") != 3 {
			t.Errorf("journal: %+v, seen %q", v, seen)
		}
		l.relays.asked("u", 1)
	})
}

// readEvents reads n events of a stream.
func readEvents(t *testing.T, r io.Reader, n int) string {
	t.Helper()
	var b strings.Builder
	one := make([]byte, 1)
	for strings.Count(b.String(), "\n\n") < n {
		if _, err := io.ReadFull(r, one); err != nil {
			t.Fatalf("after %q: %v", b.String(), err)
		}
		b.Write(one)
	}
	return b.String()
}
