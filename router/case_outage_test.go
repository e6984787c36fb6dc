// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
)

// A node stops at each point of a session, is replaced, and goes on: nothing of what it says then reaches the client.
func TestCase_F2_StoppedNodeWakesUpFenced(t *testing.T) {
	// stale is what a node says when it wakes up, longer than its stream may be read.
	stale := func(e *events, epoch int) {
		time.Sleep(2500 * time.Millisecond) // past the stall
		for range 20 {
			if e.text(fmt.Sprintf("STALE%d ", epoch), 0) != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		_ = e.finish("length")
	}
	slowly := func(from int, e *events) error {
		for i := from; i <= total; i++ {
			if err := e.tokens(i); err != nil {
				return err
			}
			time.Sleep(400 * time.Millisecond)
		}
		return e.finish("length")
	}
	check := func(t *testing.T, w *world, stopped ...string) {
		resp := w.post("/v1/chat/completions", chat(true, `"return_token_ids":true`))
		tr := w.stream(resp)
		if tr.text != words(0, total) || len(tr.ids) != total || !tr.done || tr.roles != 1 {
			t.Errorf("%s", tr.raw)
		}
		info := w.session(resp)
		for i, id := range stopped {
			if a := info.Attempts[i]; a.Node != id || a.Cause != router.CauseStall {
				t.Errorf("attempt %d: %+v, want a stop of %s", i, a, id)
			}
		}
		w.settle()
	}
	for k := 0; k <= total; k++ {
		for _, snapshot := range []bool{true, false} { // a base was complete when it stopped, or was on its way
			if !snapshot && k > 0 {
				continue
			}
			t.Run(fmt.Sprintf("primary at %d, snapshot=%v", k, snapshot), func(t *testing.T) {
				bubble(t, "a b", nil, func(t *testing.T, w *world) {
					a, b := w.agents["a"], w.agents["b"]
					a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
						e.begin("b", k)
						if !snapshot {
							e.progress(0, 0, 0)
						}
						stale(e, 1)
						return nil
					}
					b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
						if !snapshot {
							return refusal(seguev1.Reason_REASON_NOT_COVERED, "a base in progress")
						}
						e.next, e.textEnd = int(r.GetDelivered()), int(r.GetTextEnd())
						e.seam(max(k, 1))
						return slowly(max(k, 1), e)
					}
					b.generate = func(_ *seguev1.GenerateRequest, e *events) error { e.prompt(); return slowly(1, e) }
					check(t, w, "a")
				})
			})
		}
	}
	for _, stage := range []string{"before the seam", "after the seam", "after tokens"} {
		t.Run("holder "+stage, func(t *testing.T) {
			bubble(t, "a b c", three, func(t *testing.T, w *world) {
				a, b, c := w.agents["a"], w.agents["b"], w.agents["c"]
				a.generate = a.dies("b", 3)
				b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
					e.next, e.textEnd = int(r.GetDelivered()), int(r.GetTextEnd())
					if stage != "before the seam" {
						e.seam(4)
					}
					if stage == "after tokens" {
						e.protection("c", "")
						e.tokens(5)
					}
					stale(e, 2)
					return nil
				}
				c.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
					e.next, e.textEnd = int(r.GetDelivered()), int(r.GetTextEnd())
					e.seam(5)
					return slowly(e.next, e)
				}
				resp := w.post("/v1/chat/completions", chat(true, `"return_token_ids":true`))
				tr := w.stream(resp)
				if tr.text != words(0, total) || len(tr.ids) != total || !tr.done {
					t.Errorf("%s", tr.raw)
				}
				if info := w.session(resp); len(info.Attempts) != 3 || info.Attempts[1].Cause != router.CauseStall || info.Attempts[1].Node != "b" {
					t.Errorf("attempts %+v", info.Attempts)
				}
				w.settle()
			})
		})
	}
}

// Nobody says for a minute who is there, and no lease is renewed: streams that run finish untouched, and new ones are
// served when it is over.
func TestCase_F4_MembershipOutageTouchesNoStream(t *testing.T) {
	for _, how := range []string{"silent", "refusing"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, "a b", nil, func(t *testing.T, w *world) {
				a, b := w.agents["a"], w.agents["b"]
				const n = 120
				long := func(_ *seguev1.GenerateRequest, e *events) error {
					e.begin("", 1)
					for i := 2; i <= n; i++ {
						time.Sleep(600 * time.Millisecond) // 70 s and more
						if err := e.tokens(i); err != nil {
							return err
						}
					}
					return e.finish("length")
				}
				a.generate, b.generate = long, long
				end := make(chan struct{})
				streams := []*http.Response{w.post("/v1/chat/completions", chat(true, "")), w.post("/v1/chat/completions", chat(true, ""))}
				var answers []func() *transcript
				for _, resp := range streams {
					answers = append(answers, w.reading(resp))
				}
				time.Sleep(2500 * time.Millisecond) // between two renewals
				for _, x := range w.agents {
					x.outage(how, end)
				}
				renewed := w.counter("segue_router_lease_renewals_total", "ok")
				time.Sleep(30 * time.Second)
				var status []struct{ Ready bool }
				if w.get("/v1/agents", &status); status[0].Ready || status[1].Ready {
					t.Fatalf("nobody noticed the outage: %+v", status)
				}
				if r := w.counter("segue_router_lease_renewals_total", "ok"); r != renewed {
					t.Fatalf("%v renewals were answered", r-renewed)
				}
				time.Sleep(30 * time.Second)
				close(end)
				for i, read := range answers {
					tr := read()
					if tr.text != words(0, n) || !tr.done {
						t.Errorf("%s", tr.raw)
					}
					if info := w.session(streams[i]); len(info.Attempts) != 1 || len(info.Seams) != 0 {
						t.Errorf("session %+v", info)
					}
				}
				if len(a.calls().takeovers)+len(b.calls().takeovers) != 0 {
					t.Error("there was a takeover")
				}
				a.mu.Lock()
				a.generate = func(_ *seguev1.GenerateRequest, e *events) error { return e.whole(3) }
				a.mu.Unlock()
				b.mu.Lock()
				b.generate = a.generate
				b.mu.Unlock()
				time.Sleep(2 * time.Second)
				if tr := w.stream(w.post("/v1/chat/completions", chat(true, ""))); !tr.done {
					t.Errorf("%s", tr.raw)
				}
			})
		})
	}
}

// 64 requests a second for agents that serve a third of them: each one ends in its budget, with an answer or with an
// error that says when to come again.
func TestCase_A11_OverloadEndsEveryRequestInTime(t *testing.T) {
	const perSecond, seconds, run = 64, 5, 400 * time.Millisecond
	bubble(t, "a b", func(c *router.Config, agents map[string]*agent) {
		c.Queue = router.Queue{Depth: 64, Wait: 2 * time.Second}
		for _, a := range agents {
			a.describe.Contexts, a.describe.ContextsReserved = 6, 2
			a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
				e.begin("", 1)
				time.Sleep(run)
				e.tokens(3)
				return e.finish("length")
			}
		}
	}, func(t *testing.T, w *world) {
		var mu sync.Mutex
		ends := map[int]int{}
		var worst time.Duration
		var work sync.WaitGroup
		for range perSecond * seconds {
			time.Sleep(time.Second / perSecond)
			work.Go(func() {
				start := time.Now()
				resp, err := w.tryPost(t.Context(), "/v1/chat/completions", chat(true, ""))
				if err != nil {
					t.Error(err)
					return
				}
				raw, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				mu.Lock()
				defer mu.Unlock()
				ends[resp.StatusCode]++
				worst = max(worst, time.Since(start))
				switch whole := strings.HasSuffix(string(raw), "data: [DONE]\n\n"); {
				case err != nil:
					t.Error(err)
				case resp.StatusCode == http.StatusOK && !whole:
					t.Errorf("%s", raw)
				case resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") == "":
					t.Errorf("no word when to come again: %s", raw)
				}
			})
		}
		work.Wait()
		t.Logf("%v, the longest took %v", ends, worst)
		if ends[http.StatusOK] < 50 || ends[http.StatusTooManyRequests] < 50 || ends[http.StatusOK]+ends[http.StatusTooManyRequests] != perSecond*seconds {
			t.Errorf("%v", ends)
		}
		if limit := 2*time.Second + run + 100*time.Millisecond; worst > limit {
			t.Errorf("a request took %v, budget %v", worst, limit)
		}
	})
}

// outage makes an agent's Describe and Renew say nothing, or an error, until end.
func (a *agent) outage(how string, end <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.out = func(ctx context.Context) error {
		select {
		case <-end:
			return nil
		default:
		}
		if how == "silent" {
			select {
			case <-end:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return refusal(seguev1.Reason_REASON_UNSPECIFIED, "no answer today")
	}
	out := a.out
	a.renew = func(*seguev1.RenewRequest) error { return out(context.Background()) }
}
