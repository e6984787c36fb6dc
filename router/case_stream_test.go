// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
)

// The engine dies after k deltas, for every k, and the next one says again what was said: no delta comes twice.
func TestCase_C2_NoDeltaComesAgain(t *testing.T) {
	for k := range total + 1 {
		for c := max(k, 1); c <= total; c += 2 {
			for _, replay := range []bool{false, true} {
				t.Run(fmt.Sprintf("k=%d c=%d replay=%v", k, c, replay), func(t *testing.T) {
					bubble(t, "a b", nil, func(t *testing.T, w *world) {
						a, b := w.agents["a"], w.agents["b"]
						a.generate = a.dies("b", k)
						b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
							if !replay {
								return e.resume(r, c, total)
							}
							e.seam(c)
							e.tokens(total) // all of them
							return e.finish("length")
						}
						resp := w.post("/v1/chat/completions", chat(true, `"return_token_ids":true`))
						tr := w.stream(resp)
						if tr.text != words(0, total) || !slices.Equal(tr.ids, tokenIDs(total)) || !tr.done || tr.roles != 1 {
							t.Errorf("%s", tr.raw)
						}
						if info := w.session(resp); len(info.Seams) != 1 || info.Seams[0].Delivered != k {
							t.Errorf("seams %+v", info.Seams)
						}
					})
				})
			}
		}
	}
}

// The error event of a partial answer says in so many words that a repeat can't complete it, and nothing else about the
// answer invites one.
func TestCase_C4_PartialAnswerIsNotRetryable(t *testing.T) {
	for k := 1; k <= total; k++ {
		bubble(t, "a b", nil, func(t *testing.T, w *world) {
			w.agents["a"].generate = w.agents["a"].dies("b", k)
			resp := w.post("/v1/chat/completions", chat(true, ""))
			tr := w.stream(resp)
			last := tr.raw[strings.LastIndex(strings.TrimSpace(tr.raw), "\n")+1:]
			for _, want := range []string{`"code":"upstream_decode_interrupted"`, `"partial_output":true`, `"retryable":false`, fmt.Sprintf(`"delivered_output_tokens":%d`, k)} {
				if !strings.Contains(last, want) {
					t.Errorf("k = %d: the last event lacks %s: %s", k, want, last)
				}
			}
			if h := resp.Header; h.Get("Retry-After") != "" || h.Get("X-Should-Retry") == "true" || resp.Trailer.Get("Retry-After") != "" {
				t.Errorf("headers %v", h)
			}
		})
	}
}

// Failover is off and the engine dies after k deltas: the last event is the error, nothing ends the answer like a whole
// one, and the body ends as HTTP says.
func TestCase_C8_StrictStreamEndsInTheError(t *testing.T) {
	for k := 1; k <= total; k++ {
		for path, body := range map[string]string{
			"/v1/chat/completions": chat(true, `"stream_options":{"include_usage":true}`),
			"/v1/completions":      `{"model":"sim","prompt":"hi","stream":true}`,
		} {
			bubble(t, "a b", nil, func(t *testing.T, w *world) {
				a, b := w.agents["a"], w.agents["b"]
				a.generate = a.dies("", k)
				resp := w.post(path, body, "X-Segue-Protection", "off")
				raw, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil {
					t.Errorf("k = %d: the body ends with %v", k, err)
				}
				text := string(raw)
				events := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
				last := events[len(events)-1]
				if !strings.HasPrefix(last, `data: {"error":{`) || !strings.HasSuffix(text, "\n\n") || strings.Count(text, `"error":{`) != 1 {
					t.Errorf("k = %d: %s", k, text)
				}
				for _, no := range []string{"[DONE]", `"finish_reason":"stop"`, `"finish_reason":"length"`, `"finish_reason":"error"`} {
					if strings.Contains(text, no) {
						t.Errorf("k = %d: there is %s in %s", k, no, text)
					}
				}
				if c := b.calls(); len(c.generates)+len(c.takeovers) != 0 {
					t.Errorf("k = %d: a second run: %+v", k, c)
				}
			})
		}
	}
}

// A node is only slow when its session goes on elsewhere: its place is free at once for another session, the old run is
// told to end, and the session has one owner.
func TestCase_C6_SlowNodeIsFree(t *testing.T) {
	one := func(_ *router.Config, agents map[string]*agent) {
		for _, a := range agents {
			a.describe.Contexts, a.describe.ContextsReserved = 3, 2
		}
	}
	bubble(t, "a b", one, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		woke := false
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.begin("b", 3)
			a.mu.Lock()
			a.generate = func(_ *seguev1.GenerateRequest, e *events) error { return e.whole(5) }
			a.mu.Unlock()
			time.Sleep(4 * time.Second) // slow, not dead
			woke = true
			e.tokens(total)
			return e.finish("length")
		}
		b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
			e.next, e.textEnd = int(r.GetDelivered()), int(r.GetTextEnd())
			e.seam(3)
			for i := 4; i <= total; i++ {
				time.Sleep(time.Second)
				e.tokens(i)
			}
			return e.finish("length")
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		first := w.reading(resp)
		time.Sleep(3 * time.Second) // past the stall
		if info := w.session(resp); info.Primary != "b" || info.Epoch != 2 || info.Attempts[0].Cause != router.CauseStall {
			t.Fatalf("session %+v", info)
		}
		if c := a.calls(); len(c.cancels) != 1 || c.cancels[0].GetEpoch() != 1 {
			t.Errorf("the old run was told %v", c.cancels)
		}
		// b is full; the other session finds room on a, at once.
		start := time.Now()
		other := w.post("/v1/chat/completions", chat(true, ""))
		if tr := w.stream(other); !tr.done {
			t.Errorf("%s", tr.raw)
		}
		within(t, "the other session", time.Since(start), 0, 300*time.Millisecond)
		if info := w.session(other); info.Primary != "a" {
			t.Errorf("the other session ran on %s", info.Primary)
		}
		if tr := first(); tr.text != words(0, total) || !tr.done || !woke {
			t.Errorf("woke: %v; %s", woke, tr.raw)
		}
		if info := w.session(resp); info.Primary != "b" || len(info.Attempts) != 2 {
			t.Errorf("session %+v", info)
		}
		w.settle()
	})
}

// The client disconnects: within a second every node that works for it, or holds for it, is told.
func TestCase_C16_DisconnectReachesTheEngines(t *testing.T) {
	for _, phase := range []string{"prefill", "decode", "takeover", "wait"} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, stream=%v", phase, stream), func(t *testing.T) {
				bubble(t, "a b", func(c *router.Config, _ map[string]*agent) { c.TakeoverWait = time.Minute }, func(t *testing.T, w *world) {
					a, b := w.agents["a"], w.agents["b"]
					busy := func(e *events) error {
						for {
							if err := e.progress(0, 0, 0); err != nil {
								return err
							}
							time.Sleep(100 * time.Millisecond)
						}
					}
					a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
						e.prompt()
						if phase == "prefill" {
							return busy(e)
						}
						e.tokens(3)
						if phase == "decode" {
							return busy(e)
						}
						return engineLost(e)
					}
					b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
						if phase == "wait" {
							return refusal(seguev1.Reason_REASON_NOT_READY, "the engine restarts")
						}
						e.next, e.textEnd = int(r.GetDelivered()), int(r.GetTextEnd())
						e.seam(3)
						return busy(e)
					}
					ctx, cancel := newTestContext(t)
					gone := make(chan struct{})
					go func() { // ends with the request
						defer close(gone)
						if resp, err := w.tryPost(ctx, "/v1/chat/completions", chat(stream, "")); err == nil {
							_, _ = io.Copy(io.Discard, resp.Body)
							resp.Body.Close()
						}
					}()
					time.Sleep(2 * time.Second)
					if n := w.counter("segue_router_active_sessions"); n != 1 {
						t.Fatalf("%v sessions before the client leaves", n)
					}
					cancel()
					<-gone
					time.Sleep(time.Second)
					if n := w.counter("segue_router_active_sessions"); n != 0 {
						t.Errorf("%v sessions a second later", n)
					}
					last := map[string]uint64{"prefill": 2, "decode": 2, "takeover": 3}[phase]
					for id, x := range w.agents {
						c := x.calls()
						if len(c.cancels) == 0 || c.ended != len(c.generates)+len(c.takeovers) {
							t.Errorf("%s: %d cancels, %d streams ended of %d", id, len(c.cancels), c.ended, len(c.generates)+len(c.takeovers))
							continue
						}
						highest := uint64(0)
						for _, x := range c.cancels {
							highest = max(highest, x.GetEpoch())
						}
						if id == "b" && last > 0 && highest != last {
							t.Errorf("%s: cancelled up to epoch %d, want %d", id, highest, last)
						}
					}
				})
			})
		}
	}
}
