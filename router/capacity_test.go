// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
)

// runs is a script of a run that ends when told.
func runs(end <-chan struct{}) func(*seguev1.GenerateRequest, *events) error {
	return func(_ *seguev1.GenerateRequest, e *events) error {
		if err := e.begin("", 1); err != nil {
			return err
		}
		for {
			select {
			case <-end:
				return e.finish("stop")
			case <-e.ctx.Done():
				return e.ctx.Err()
			case <-time.After(time.Second):
				if err := e.progress(1, 1, 1); err != nil {
					return err
				}
			}
		}
	}
}

// occupy starts n streams, returns when their headers are here, and reads them in the background.
func (w *world) occupy(n int) []func() *transcript {
	w.t.Helper()
	list := make([]func() *transcript, n)
	for i := range list {
		list[i] = w.reading(w.post("/v1/chat/completions", chat(true, "")))
	}
	return list
}

func TestRouter_QueueTimesOut(t *testing.T) {
	end := make(chan struct{})
	bubble(t, "a b", func(_ *router.Config, agents map[string]*agent) {
		end = make(chan struct{})
		for _, a := range agents {
			a.generate = runs(end)
		}
	}, func(t *testing.T, w *world) {
		live := w.occupy(4) // two unreserved contexts each
		start := time.Now()
		resp := w.post("/v1/chat/completions", chat(true, ""))
		e := w.failure(resp)
		if resp.StatusCode != http.StatusTooManyRequests || e.Code != "no_capacity" || e.Type != "rate_limit_error" || !e.Retryable || e.Cause != "no_capacity" {
			t.Errorf("status %d: %+v", resp.StatusCode, e)
		}
		if resp.Header.Get("Retry-After") == "" || resp.Header.Get("X-Should-Retry") != "true" {
			t.Errorf("headers %v", resp.Header)
		}
		if waited := time.Since(start); waited != 5*time.Second {
			t.Errorf("waited %v, want queue.wait", waited)
		}
		close(end)
		for _, wait := range live {
			wait()
		}
		if a, b := w.agents["a"].calls(), w.agents["b"].calls(); len(a.generates) != 2 || len(b.generates) != 2 {
			t.Errorf("%d sessions on a, %d on b: the reserve is for takeovers", len(a.generates), len(b.generates))
		}
	})
}

func TestRouter_QueueHandsOver(t *testing.T) {
	var end chan struct{}
	bubble(t, "a", func(_ *router.Config, agents map[string]*agent) {
		end = make(chan struct{})
		agents["a"].generate = runs(end)
	}, func(t *testing.T, w *world) {
		live := w.occupy(2)
		var phase string
		go func() {
			time.Sleep(3 * time.Second)
			var list []router.SessionInfo
			w.get("/v1/sessions", &list)
			phase = list[0].Phase
			close(end)
		}()
		start := time.Now()
		tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
		if waited := time.Since(start); !tr.done || waited != 3*time.Second || phase != "queued" {
			t.Errorf("waited %v in phase %s: %s", waited, phase, tr.raw)
		}
		for _, wait := range live {
			wait()
		}
	})
}

func TestRouter_QueueIsBounded(t *testing.T) {
	var end chan struct{}
	bubble(t, "a", func(c *router.Config, agents map[string]*agent) {
		end = make(chan struct{})
		c.Queue.Depth = 1
		agents["a"].generate = runs(end)
	}, func(t *testing.T, w *world) {
		live := w.occupy(2)
		waiting := make(chan *http.Response, 1)
		go func() { waiting <- w.post("/v1/chat/completions", chat(true, "")) }()
		time.Sleep(time.Second)
		start := time.Now()
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if e := w.failure(resp); resp.StatusCode != http.StatusTooManyRequests || time.Since(start) != 0 {
			t.Errorf("status %d after %v: %+v", resp.StatusCode, time.Since(start), e)
		}
		close(end)
		live = append(live, w.reading(<-waiting))
		for _, wait := range live {
			wait()
		}
	})
}

// A node that says no at once isn't an attempt: the session goes elsewhere.
func TestRouter_RefusalGoesElsewhere(t *testing.T) {
	for _, reason := range []seguev1.Reason{seguev1.Reason_REASON_NO_CAPACITY, seguev1.Reason_REASON_NOT_READY} {
		bubble(t, "a b", func(c *router.Config, agents map[string]*agent) {
			c.MaxAttempts = 1
			agents["a"].generate = func(*seguev1.GenerateRequest, *events) error {
				agents["a"].setDescribe(func(d *seguev1.DescribeResponse) { d.Ready = reason != seguev1.Reason_REASON_NOT_READY })
				return refusal(reason, "full")
			}
		}, func(t *testing.T, w *world) {
			start := time.Now()
			resp := w.post("/v1/chat/completions", chat(true, ""))
			tr := w.stream(resp)
			if !tr.done || time.Since(start) != 0 {
				t.Errorf("after %v: %s", time.Since(start), tr.raw)
			}
			info := w.session(resp)
			if len(info.Attempts) != 2 || info.Attempts[1].Kind != "generate" || info.Attempts[1].Node != "b" {
				t.Errorf("attempts %+v", info.Attempts)
			}
			c := w.agents["b"].calls()
			if len(c.takeovers) != 0 {
				t.Errorf("a holder was asked about a run that never was: %v", c.takeovers)
			}
			// A node without a free context can still hold.
			if full := reason == seguev1.Reason_REASON_NO_CAPACITY; full != (c.generates[0].GetHolder().GetId() == "a") {
				t.Errorf("%v: holder %v", reason, c.generates[0].GetHolder())
			}
		})
	}
}

// Full everywhere, whatever Describe says: bounded waiting, no storm of calls.
func TestRouter_RefusalsArePaced(t *testing.T) {
	bubble(t, "a b", func(_ *router.Config, agents map[string]*agent) {
		for _, a := range agents {
			a.generate = func(*seguev1.GenerateRequest, *events) error {
				return refusal(seguev1.Reason_REASON_NO_CAPACITY, "full")
			}
		}
	}, func(t *testing.T, w *world) {
		start := time.Now()
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if e := w.failure(resp); resp.StatusCode != http.StatusTooManyRequests {
			t.Errorf("status %d: %+v", resp.StatusCode, e)
		}
		if d := time.Since(start); d < 5*time.Second || d > 5500*time.Millisecond {
			t.Errorf("after %v", d)
		}
		if n := len(w.agents["a"].calls().generates); n > 25 {
			t.Errorf("%d calls", n)
		}
	})
}

func TestRouter_DeadNodeIsSkipped(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		w.agents["a"].kill()
		synctest.Wait()
		for range 3 {
			start := time.Now()
			tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
			if !tr.done || time.Since(start) != 0 {
				t.Errorf("after %v: %s", time.Since(start), tr.raw)
			}
		}
		w.agents["a"].start()
		time.Sleep(600 * time.Millisecond)
		w.stream(w.post("/v1/chat/completions", chat(true, "")))
		if n := len(w.agents["a"].calls().generates); n != 1 {
			t.Errorf("a restarted agent got %d sessions", n)
		}
	})
}

// The context of a failed session is given back, but not to a session that waits.
func TestRouter_QueuedSessionAvoidsFailedNode(t *testing.T) {
	end := make(chan struct{})
	bubble(t, "a b", func(_ *router.Config, agents map[string]*agent) {
		end = make(chan struct{})
		for _, a := range agents {
			a.describe.Contexts = 3 // one unreserved context each
			a.generate = runs(end)
			a.takeover = continues(1)
		}
	}, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.begin("b", 1)
			time.Sleep(1100 * time.Millisecond) // between two probes
			a.setDescribe(func(d *seguev1.DescribeResponse) { d.Ready = false })
			return refusal(seguev1.Reason_REASON_ENGINE_LOST, "signal: killed")
		}
		live := w.occupy(2)
		waiting := make(chan *http.Response, 1)
		go func() { waiting <- w.post("/v1/chat/completions", chat(true, "")) }()
		time.Sleep(2 * time.Second)
		if n := len(a.calls().generates); n != 1 {
			t.Errorf("%d sessions were sent to a", n)
		}
		close(end)
		for _, wait := range append(live, w.reading(<-waiting)) {
			wait()
		}
		if n := len(b.calls().generates); n != 2 {
			t.Errorf("%d sessions were sent to b", n)
		}
	})
}

func TestRouter_NoAgentReady(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		for _, a := range w.agents {
			a.kill()
		}
		synctest.Wait()
		if code := w.get("/readyz", nil); code != http.StatusServiceUnavailable {
			t.Errorf("readyz %d", code)
		}
		resp := w.post("/v1/chat/completions", chat(false, ""))
		if e := w.failure(resp); resp.StatusCode != http.StatusServiceUnavailable || e.Cause != "not_ready" || !e.Retryable {
			t.Errorf("status %d: %+v", resp.StatusCode, e)
		}
	})
}

func TestRouter_OnUnprotectedFail(t *testing.T) {
	fail := func(c *router.Config, _ map[string]*agent) { c.OnUnprotected = router.UnprotectedFail }
	t.Run("no holder", func(t *testing.T) {
		bubble(t, "a", fail, func(t *testing.T, w *world) {
			resp := w.post("/v1/chat/completions", chat(true, ""))
			if e := w.failure(resp); resp.StatusCode != http.StatusServiceUnavailable || e.Cause != "unprotected" || e.Detail != "no_holder" {
				t.Errorf("status %d: %+v", resp.StatusCode, e)
			}
			if n := len(w.agents["a"].calls().generates); n != 0 {
				t.Errorf("%d runs", n)
			}
			if tr := w.stream(w.post("/v1/chat/completions", chat(true, ""), "X-Segue-Protection", "off")); !tr.done {
				t.Errorf("off needs no holder: %s", tr.raw)
			}
		})
	})
	t.Run("lost before content", func(t *testing.T) {
		bubble(t, "a b", fail, func(t *testing.T, w *world) {
			w.agents["a"].generate = func(r *seguev1.GenerateRequest, e *events) error {
				if !r.GetRequireProtection() {
					t.Error("protection isn't required")
				}
				e.prompt()
				return refusal(seguev1.Reason_REASON_UNPROTECTED, "store_full")
			}
			resp := w.post("/v1/chat/completions", chat(true, ""))
			if e := w.failure(resp); resp.StatusCode != http.StatusServiceUnavailable || e.Code != "protection_unavailable" || e.Detail != "store_full" {
				t.Errorf("status %d: %+v", resp.StatusCode, e)
			}
		})
	})
	t.Run("lost after content", func(t *testing.T) {
		bubble(t, "a b", fail, func(t *testing.T, w *world) {
			w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error {
				e.begin("b", 2)
				return refusal(seguev1.Reason_REASON_HOLDER_LOST, "no ack for 500ms")
			}
			tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
			if tr.err == nil || tr.err.Cause != "unprotected" || tr.err.Delivered != 2 {
				t.Errorf("%s", tr.raw)
			}
		})
	})
	t.Run("takeover without a third node", func(t *testing.T) {
		bubble(t, "a b", fail, func(t *testing.T, w *world) {
			a := w.agents["a"]
			a.generate = a.dies("b", 2)
			tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
			if tr.err == nil || tr.err.Cause != "unprotected" || tr.err.Delivered != 2 {
				t.Errorf("%s", tr.raw)
			}
		})
	})
}

func TestRouter_Drain(t *testing.T) {
	t.Run("sessions finish", func(t *testing.T) {
		bubble(t, "a b", nil, func(t *testing.T, w *world) {
			end := make(chan struct{})
			w.agents["a"].generate = runs(end)
			resp := w.post("/v1/chat/completions", chat(true, ""))
			w.stop()
			time.Sleep(time.Second)
			if code := w.get("/readyz", nil); code != http.StatusServiceUnavailable {
				t.Errorf("readyz %d while draining", code)
			}
			if _, err := w.tryPost(t.Context(), "/v1/chat/completions", chat(true, "")); err == nil {
				t.Error("a new connection was accepted")
			}
			close(end)
			if tr := w.stream(resp); !tr.done {
				t.Errorf("%s", tr.raw)
			}
		})
	})
	t.Run("the rest ends honestly", func(t *testing.T) {
		bubble(t, "a b", nil, func(t *testing.T, w *world) {
			w.agents["a"].generate = runs(nil)
			start := time.Now()
			resp := w.post("/v1/chat/completions", chat(true, ""))
			w.stop()
			tr := w.stream(resp)
			if tr.err == nil || tr.err.Cause != "router_shutdown" || tr.err.Delivered != 1 || tr.err.Retryable {
				t.Errorf("%s", tr.raw)
			}
			if d := time.Since(start); d < 10*time.Second || d > 11*time.Second {
				t.Errorf("ended after %v, want drain", d)
			}
			w.settle()
			if a, b := w.agents["a"].calls(), w.agents["b"].calls(); len(a.cancels) != 1 || len(b.cancels) != 1 || len(b.takeovers) != 0 {
				t.Errorf("a %+v b %+v", a, b)
			}
		})
	})
	t.Run("an answer in one piece is a 503", func(t *testing.T) {
		bubble(t, "a b", nil, func(t *testing.T, w *world) {
			w.agents["a"].generate = runs(nil)
			done := make(chan *http.Response, 1)
			go func() { done <- w.post("/v1/chat/completions", chat(false, "")) }()
			time.Sleep(time.Second)
			w.stop()
			resp := <-done
			if e := w.failure(resp); resp.StatusCode != http.StatusServiceUnavailable || e.Cause != "router_shutdown" || e.Partial {
				t.Errorf("status %d: %+v", resp.StatusCode, e)
			}
			io.Copy(io.Discard, resp.Body)
		})
	})
}

// For the drain delay the router isn't ready and still serves.
func TestRouter_DrainDelay(t *testing.T) {
	bubble(t, "a b", func(c *router.Config, _ map[string]*agent) { c.DrainDelay = 3 * time.Second }, func(t *testing.T, w *world) {
		w.stop()
		time.Sleep(time.Second)
		if code := w.get("/readyz", nil); code != http.StatusServiceUnavailable {
			t.Errorf("readyz %d", code)
		}
		if tr := w.stream(w.post("/v1/chat/completions", chat(true, ""))); !tr.done {
			t.Errorf("%s", tr.raw)
		}
		time.Sleep(3 * time.Second)
		if _, err := w.tryPost(t.Context(), "/v1/chat/completions", chat(true, "")); err == nil {
			t.Error("served after the delay")
		}
	})
}
