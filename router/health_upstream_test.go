// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/router"
)

// vllm is a page as vLLM writes it.
func vllm(running, steps int) string {
	return fmt.Sprintf(`# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} %d
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} %d
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="m"} %d
vllm:iteration_tokens_total_count{engine="0",model_name="m"} %d
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} %d
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e+09
`, running, steps, steps, steps, steps)
}

// A hung engine behind an API that stays up is found by its counters, and its sessions leave it.
func TestHealth_AHungUpstreamIsLeft(t *testing.T) {
	relay(t, "", "s t", func(c *router.Config, w *relays) {
		c.UpstreamSilence = router.Silence{Prefill: time.Hour, Decode: time.Hour, Whole: time.Hour}
		c.Upstreams[1].Weight = 1e-3
		w.servers["s"].metrics = func() string { return vllm(1, 7) }
		w.servers["s"].play = func(a *answer) { a.role(); a.deltas(3); a.hang() }
	}, func(t *testing.T, w *relays) {
		path, body := ask("chat", true, "")
		start := time.Now()
		resp := w.post(path, body)
		tr := w.stream(resp)
		if tr.err == nil || tr.err.Cause != string(router.CauseHung) || tr.err.Delivered != 3 {
			t.Fatalf("%s", tr.raw)
		}
		blind := health.Defaults().BlindFloor
		if took := time.Since(start); took < blind || took > blind+10*time.Second {
			t.Errorf("found after %v, the limit is %v", took, blind)
		}
		if h := w.node("s").Health; h == nil || h.Verdict != health.Hung {
			t.Errorf("held of it: %+v", h)
		}
		if n := w.counter("segue_router_engine_verdicts_total", "server", "hung"); n != 1 {
			t.Errorf("%v verdicts counted", n)
		}
		next := w.post(path, body)
		if w.stream(next); ran(w.session(next)) != "t" {
			t.Errorf("the next one ran on %s", ran(w.session(next)))
		}
	})
}

// A slow engine whose counters move is never left, whatever the client has to wait.
func TestHealth_ASlowUpstreamIsNotLeft(t *testing.T) {
	relay(t, "", "s t", func(c *router.Config, w *relays) {
		c.UpstreamSilence = router.Silence{Prefill: time.Hour, Decode: time.Hour, Whole: time.Hour}
		c.Upstreams[1].Weight = 1e-3
		began := time.Now()
		w.servers["s"].metrics = func() string { return vllm(1, int(time.Since(began).Seconds())) }
		w.servers["s"].play = func(a *answer) { a.role(); time.Sleep(5 * time.Minute); a.whole(total) }
	}, func(t *testing.T, w *relays) {
		path, body := ask("chat", true, "")
		resp := w.post(path, body)
		if tr := w.stream(resp); tr.err != nil || ran(w.session(resp)) != "s" {
			t.Errorf("%s", tr.raw)
		}
	})
}

// A server that takes no more connections, as one that stops does, gets nothing new; what runs there goes on.
func TestHealth_AStoppingUpstreamFinishes(t *testing.T) {
	relay(t, "", "s t", func(c *router.Config, w *relays) {
		c.Upstreams[1].Weight = 1e-3
		w.servers["s"].play = func(a *answer) {
			a.role()
			for i := range total {
				a.text(word(i))
				time.Sleep(2 * time.Second)
			}
			a.finish("stop")
			a.done()
		}
	}, func(t *testing.T, w *relays) {
		path, body := ask("chat", true, "")
		resp := w.post(path, body)
		w.servers["s"].refuse()
		time.Sleep(5 * time.Second)
		if h := w.node("s").Health; h == nil || h.Verdict != health.Dead {
			t.Fatalf("held of it: %+v", h)
		}
		next := w.post(path, body)
		if w.stream(next); ran(w.session(next)) != "t" {
			t.Errorf("the next one ran on %s", ran(w.session(next)))
		}
		if tr := w.stream(resp); !tr.done || resp.StatusCode != http.StatusOK {
			t.Errorf("%s", tr.raw)
		}
	})
}

// Case E7: an engine that answers 503 to everything, for ever, without ending. Its work goes elsewhere, it is reported, and
// nothing is sent there again and again.
func TestCase_E7_ErrorsForEver(t *testing.T) {
	relay(t, "", "s t", func(c *router.Config, w *relays) {
		c.Upstreams[1].Weight = 1e-3
	}, func(t *testing.T, w *relays) {
		s := w.servers["s"]
		path, body := ask("chat", true, "")
		resp := w.post(path, body)
		if w.stream(resp); ran(w.session(resp)) != "s" {
			t.Fatalf("ran on %s", ran(w.session(resp)))
		}
		s.mu.Lock()
		s.broken = true
		s.mu.Unlock()
		for range 20 {
			resp := w.post(path, body)
			if tr := w.stream(resp); !tr.done {
				t.Errorf("%s", tr.raw)
			}
			time.Sleep(time.Second)
		}
		if h := w.node("s").Health; h == nil || h.Verdict != health.Dead {
			t.Errorf("held of it: %+v", h)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.refused.all < 20 || s.refused.completions > 2 {
			t.Errorf("it refused %d reads and completions, %d completions among them", s.refused.all, s.refused.completions)
		}
	})
}
