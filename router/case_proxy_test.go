// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
)

// However a stream begins and ends, its headers ask proxies to hold nothing back and to change nothing, a client's offer of
// compression included; and each delta is out before the engine has the next one.
func TestCase_G1_HeadersAskForNoBuffering(t *testing.T) {
	gate := make(chan struct{})
	for _, endpoint := range []string{"chat", "completion"} {
		for _, upstream := range []string{"agent", "server"} {
			for name, c := range map[string]struct {
				// silent: the headers go out after header_hold, before any delta. Otherwise the first delta brings them.
				silent, broken bool
			}{
				"whole": {}, "broken": {broken: true}, "held": {silent: true}, "held and broken": {silent: true, broken: true},
			} {
				what := endpoint + " from an " + upstream + ", " + name
				agents, servers := "a", ""
				if upstream == "server" {
					agents, servers = "", "s"
				}
				relay(t, agents, servers, func(c *router.Config, w *relays) {
					c.HeaderHold = 500 * time.Millisecond
					c.MaxAttempts = 1
					gate = make(chan struct{})
				}, func(t *testing.T, w *relays) {
					wait := func() {
						if c.silent {
							time.Sleep(time.Second) // less than any silence that ends it
						}
					}
					if a := w.agents["a"]; a != nil {
						a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
							if err := e.prompt(); err != nil {
								return err
							}
							wait()
							if c.silent && c.broken {
								return refusal(seguev1.Reason_REASON_ENGINE_LOST, "")
							}
							if err := e.text(word(0), 0); err != nil {
								return err
							}
							select {
							case <-gate:
							case <-e.ctx.Done():
								return e.ctx.Err()
							}
							if c.broken {
								return refusal(seguev1.Reason_REASON_ENGINE_LOST, "")
							}
							return e.finish("stop")
						}
					} else {
						w.servers["s"].play = func(a *answer) {
							a.role()
							wait()
							if c.silent && c.broken {
								a.abort()
							}
							a.text(word(0))
							select {
							case <-gate:
							case <-a.r.Context().Done():
								return
							}
							if c.broken {
								a.abort()
							}
							_ = a.finish("stop") && a.done()
						}
					}
					path, body := ask(endpoint, true, "")
					resp := w.post(path, body, "Accept-Encoding", "gzip, deflate, br, zstd")
					defer resp.Body.Close()
					h := resp.Header
					if resp.StatusCode != 200 || h.Get("Content-Type") != "text/event-stream; charset=utf-8" {
						t.Fatalf("%s: status %d, %v", what, resp.StatusCode, h)
					}
					if control := h.Get("Cache-Control"); !strings.Contains(control, "no-cache") || !strings.Contains(control, "no-transform") || h.Get("X-Accel-Buffering") != "no" {
						t.Errorf("%s: Cache-Control %q, X-Accel-Buffering %q", what, control, h.Get("X-Accel-Buffering"))
					}
					if h.Get("Content-Encoding") != "" || h.Get("Content-Length") != "" || resp.ContentLength >= 0 {
						t.Errorf("%s: encoding %q, length %d", what, h.Get("Content-Encoding"), resp.ContentLength)
					}
					raw := ""
					if !c.silent || !c.broken {
						for !strings.Contains(raw, strings.TrimSpace(word(0))) {
							raw += readEvents(t, resp.Body, 1) // while the engine waits
						}
					}
					synctest.Wait()
					close(gate)
					rest, err := io.ReadAll(resp.Body)
					raw += string(rest)
					if err != nil || strings.HasSuffix(raw, "data: [DONE]\n\n") == c.broken || strings.Contains(raw, `{"error":`) != c.broken {
						t.Errorf("%s: %v: %s", what, err, raw)
					}
				})
			}
		}
	}
}
