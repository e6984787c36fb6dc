// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
)

// epochs lists the takeovers' epochs.
func epochs(list []*seguev1.TakeoverRequest) []uint64 {
	var out []uint64
	for _, r := range list {
		out = append(out, r.GetEpoch())
	}
	return out
}

// within checks how long something took, in virtual time.
func within(t *testing.T, what string, got, lo, hi time.Duration) {
	t.Helper()
	if got < lo || got > hi {
		t.Errorf("%s took %v, want %v to %v", what, got, lo, hi)
	}
}

// A holder whose engine restarts still holds: it is asked again, each time under a new epoch.
func TestRouter_HolderNotReadyIsAskedAgain(t *testing.T) {
	bubble(t, "a b", func(c *router.Config, _ map[string]*agent) { c.MaxTakeovers = 1 }, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = a.dies("b", 3)
		start := time.Now()
		b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
			if time.Since(start) < 350*time.Millisecond {
				return refusal(seguev1.Reason_REASON_NOT_READY, "the engine restarts")
			}
			return e.resume(r, 4, total)
		}
		resp := w.post("/v1/chat/completions", chat(true, `"return_token_ids":true`))
		tr := w.stream(resp)
		if tr.text != words(0, total) || !tr.done || len(tr.ids) != total {
			t.Errorf("%s", tr.raw)
		}
		within(t, "the answer", time.Since(start), 350*time.Millisecond, 460*time.Millisecond)
		got := epochs(b.calls().takeovers)
		for i, e := range got {
			if e != uint64(i+2) {
				t.Errorf("epochs %v, want a new one for each call", got)
				break
			}
		}
		info := w.session(resp)
		if len(info.Seams) != 1 || info.Seams[0].Cause != router.CauseReset || info.Seams[0].Epoch != got[len(got)-1] {
			t.Errorf("seams %+v", info.Seams)
		}
		if n := w.counter("segue_router_takeovers_total", "ok", "reset"); n != 1 {
			t.Errorf("takeovers: %v", n)
		}
	})
}

// The fleet's probe wakes the session: nobody waits for a timer.
func TestRouter_HolderOutOfReachIsAskedAgain(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		var lost, back time.Time
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.begin("b", 3)
			b.kill()
			time.Sleep(400 * time.Millisecond) // the connection is in back-off
			lost = time.Now()
			return refusal(seguev1.Reason_REASON_ENGINE_LOST, "signal: killed")
		}
		b.takeover = continues(4)
		go func() {
			time.Sleep(1500 * time.Millisecond)
			back = time.Now()
			b.start()
		}()
		resp := w.post("/v1/chat/completions", chat(true, ""))
		tr := w.stream(resp)
		if tr.text != words(0, total) || !tr.done {
			t.Errorf("%s", tr.raw)
		}
		if lost.IsZero() || back.Before(lost) {
			t.Fatal("b was back too early")
		}
		within(t, "the return of b", time.Since(back), 0, 250*time.Millisecond)
		if n := len(b.calls().takeovers); n != 1 {
			t.Errorf("%d takeovers reached b", n)
		}
	})
}

// A holder without a free context still holds: it is asked again until there is one, ever less often.
func TestRouter_HolderWithoutRoomIsAskedAgain(t *testing.T) {
	for _, full := range []time.Duration{5 * time.Millisecond, 45 * time.Millisecond, 3 * time.Second} {
		t.Run(full.String(), func(t *testing.T) {
			bubble(t, "a b", nil, func(t *testing.T, w *world) {
				a, b := w.agents["a"], w.agents["b"]
				a.generate = a.dies("b", 3)
				start := time.Now()
				b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
					if time.Since(start) < full {
						return refusal(seguev1.Reason_REASON_NO_CAPACITY, "4 of 4 contexts in use")
					}
					return e.resume(r, 4, total)
				}
				resp := w.post("/v1/chat/completions", chat(true, `"return_token_ids":true`))
				tr := w.stream(resp)
				if tr.text != words(0, total) || !tr.done || len(tr.ids) != total {
					t.Errorf("%s", tr.raw)
				}
				within(t, "the answer", time.Since(start), full, 2*full+10*time.Millisecond)
				within(t, "the last pause", time.Since(start)-full, 0, 110*time.Millisecond)
				if n := len(b.calls().takeovers); n < 2 || n > 40 {
					t.Errorf("%d takeovers", n)
				}
				if n := len(b.calls().cancels); n != 0 {
					t.Errorf("%d cancels would have dropped what is held", n)
				}
				if info := w.session(resp); len(info.Seams) != 1 || info.Seams[0].Cause != router.CauseReset {
					t.Errorf("seams %+v", info.Seams)
				}
			})
		})
	}
}

// Asking ends after takeover_wait, with one word about it.
func TestRouter_TakeoverWaitIsBounded(t *testing.T) {
	for _, tt := range []struct {
		wait   time.Duration
		reason seguev1.Reason
		detail string
		want   string
	}{
		{0, seguev1.Reason_REASON_NOT_READY, "the engine restarts", "not_ready: the engine restarts"},
		{2 * time.Second, seguev1.Reason_REASON_NOT_READY, "the engine restarts", "not_ready: the engine restarts"},
		{0, seguev1.Reason_REASON_NO_CAPACITY, "4 of 4 contexts in use", "no_capacity: 4 of 4 contexts in use"},
		{2 * time.Second, seguev1.Reason_REASON_NO_CAPACITY, "4 of 4 contexts in use", "no_capacity: 4 of 4 contexts in use"},
	} {
		wait := tt.wait
		t.Run(fmt.Sprintf("%v, %v", tt.reason, wait), func(t *testing.T) {
			bubble(t, "a b", func(c *router.Config, _ map[string]*agent) { c.TakeoverWait = wait }, func(t *testing.T, w *world) {
				a, b := w.agents["a"], w.agents["b"]
				a.generate = a.dies("b", 3)
				b.takeover = func(*seguev1.TakeoverRequest, *events) error { return refusal(tt.reason, tt.detail) }
				start := time.Now()
				tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
				if tr.err == nil || tr.err.Delivered != 3 || tr.err.Cause != "reset" || tr.err.Detail != tt.want {
					t.Errorf("%s", tr.raw)
				}
				within(t, "the answer", time.Since(start), wait, wait+50*time.Millisecond)
				if cause, _, _ := strings.Cut(tt.want, ":"); w.counter("segue_router_takeovers_total", "refused", cause) == 0 || w.counter("segue_router_sessions_total", "interrupted") != 1 {
					t.Error("the refusals or the interruption aren't counted")
				}
				n := len(b.calls().takeovers)
				if wait == 0 && n != 1 || wait > 0 && (n < 15 || n > 250) {
					t.Errorf("%d takeovers", n)
				}
			})
		})
	}
}

// While a holder can't take over, the client's connection is kept alive, and the client may leave.
func TestRouter_WaitingSessionHasAClient(t *testing.T) {
	never := func(c *router.Config, agents map[string]*agent) {
		c.TakeoverWait = 50 * time.Second
		a := agents["a"]
		a.generate = a.dies("b", 3)
		agents["b"].takeover = func(*seguev1.TakeoverRequest, *events) error {
			return refusal(seguev1.Reason_REASON_NOT_READY, "the engine restarts")
		}
	}
	bubble(t, "a b", never, func(t *testing.T, w *world) {
		tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
		if tr.comments != 3 {
			t.Errorf("%d keep-alives in 50s: %s", tr.comments, tr.raw)
		}
	})
	bubble(t, "a b", never, func(t *testing.T, w *world) {
		ctx, cancel := newTestContext(t)
		go func() {
			time.Sleep(time.Second)
			cancel()
		}()
		if resp, err := w.tryPost(ctx, "/v1/chat/completions", chat(false, "")); err == nil {
			resp.Body.Close()
			t.Error("the request went on")
		}
		w.settle()
		if n := w.counter("segue_router_sessions_total", "client_gone"); n != 1 {
			t.Errorf("client_gone sessions: %v", n)
		}
	})
}

// Nothing is lost by a retry: it comes before any waiting.
func TestRouter_RetryBeforeWaiting(t *testing.T) {
	for _, reason := range []seguev1.Reason{seguev1.Reason_REASON_NOT_READY, seguev1.Reason_REASON_NO_CAPACITY} {
		t.Run(reason.String(), func(t *testing.T) {
			bubble(t, "a b c", nil, func(t *testing.T, w *world) {
				a := w.agents["a"]
				a.generate = a.dies("b", 0)
				w.agents["b"].takeover = func(*seguev1.TakeoverRequest, *events) error { return refusal(reason, "not now") }
				start := time.Now()
				resp := w.post("/v1/chat/completions", chat(true, ""))
				if tr := w.stream(resp); !tr.done {
					t.Errorf("%s", tr.raw)
				}
				within(t, "the answer", time.Since(start), 0, 10*time.Millisecond)
				if last := w.session(resp).Attempts; last[len(last)-1].Kind != "retry" {
					t.Errorf("attempts %+v", last)
				}
			})
		})
	}
}

// A takeover whose stream breaks before its first event may have begun: the same epoch finds it.
func TestRouter_BrokenTakeoverIsRepeated(t *testing.T) {
	for _, tt := range []struct {
		name string
		fail func(*agent, *events) error
	}{
		{"unavailable", func(*agent, *events) error { return status.Error(codes.Unavailable, "going away") }},
		{"connection cut", func(b *agent, e *events) error { b.cut(); return e.hang() }},
		{"unreachable for a second", func(b *agent, e *events) error {
			go func() {
				b.kill()
				time.Sleep(time.Second)
				b.start()
			}()
			return e.hang()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, "a b", nil, func(t *testing.T, w *world) {
				a, b := w.agents["a"], w.agents["b"]
				a.generate = a.dies("b", 3)
				failed := false
				b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
					if !failed {
						failed = true
						return tt.fail(b, e)
					}
					return e.resume(r, 4, total)
				}
				start := time.Now()
				resp := w.post("/v1/chat/completions", chat(true, ""))
				tr := w.stream(resp)
				if tr.text != words(0, total) || !tr.done {
					t.Errorf("%s", tr.raw)
				}
				within(t, "the answer", time.Since(start), 0, 1300*time.Millisecond)
				if got := epochs(b.calls().takeovers); !slices.Equal(got, []uint64{2, 2}) {
					t.Errorf("epochs %v", got)
				}
				info := w.session(resp)
				if len(info.Attempts) != 2 || len(info.Seams) != 1 {
					t.Errorf("session %+v", info)
				}
				w.settle()
				if n := len(b.calls().cancels); n != 0 {
					t.Errorf("%d cancels of the run that goes on", n)
				}
			})
		})
	}
}

// A second break is the end of that epoch, and no storm of calls follows.
func TestRouter_BrokenTakeoverIsRepeatedOnce(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = a.dies("b", 3)
		b.takeover = func(*seguev1.TakeoverRequest, *events) error { return status.Error(codes.Unavailable, "going away") }
		start := time.Now()
		tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
		if tr.err == nil || tr.err.Delivered != 3 || tr.err.Cause != "reset" {
			t.Errorf("%s", tr.raw)
		}
		within(t, "the answer", time.Since(start), 5*time.Second, 5100*time.Millisecond)
		got := epochs(b.calls().takeovers)
		if len(got) > 1000 || len(got) < 40 || len(got)%2 != 0 {
			t.Fatalf("%d takeovers", len(got))
		}
		for i := range got {
			if got[i] != uint64(2+i/2) {
				t.Fatalf("epochs %v, want each twice", got)
			}
		}
		w.settle()
		// A cancel before the end would drop what is held.
		if c := b.calls().cancels; len(c) != 1 || c[0].GetEpoch() != got[len(got)-1]+1 {
			t.Errorf("cancels %v", c)
		}
	})
}
