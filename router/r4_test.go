// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"context"
	"testing"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/router"
)

// failures are those counted by class, without classes that have none.
func (w *world) failures() map[string]float64 {
	counted := map[string]float64{}
	for _, class := range []string{"dead", "uncertain", "overloaded", "refused", "client_gone", "stopping"} {
		if n := w.counter("segue_router_failures_total", class); n > 0 {
			counted[class] = n
		}
	}
	return counted
}

func (w *world) counts(class string) {
	w.t.Helper()
	if got := w.failures(); len(got) != 1 || got[class] != 1 {
		w.t.Errorf("failures by class: %v, want one %s", got, class)
	}
}

// R4: what the replica itself says is over is continued at once, and nothing of it has to be cancelled twice.
func TestR4_Dead(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error {
			if err := e.begin("b", 3); err != nil {
				return err
			}
			return refusal(seguev1.Reason_REASON_ENGINE_LOST, "signal: killed")
		}
		w.agents["b"].takeover = continues(3)
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if tr := w.stream(resp); !tr.done || tr.text != words(0, total) {
			t.Errorf("%s", tr.raw)
		}
		w.settle()
		w.counts("dead")
	})
}

// R4: a replica that was cut off may still work: it is fenced first, and cancelled when it can be reached.
func TestR4_CutOff(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a := w.agents["a"]
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			if err := e.begin("b", 3); err != nil {
				return err
			}
			a.cut()
			return e.hang()
		}
		w.agents["b"].takeover = continues(3)
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if tr := w.stream(resp); !tr.done || tr.text != words(0, total) {
			t.Errorf("%s", tr.raw)
		}
		w.settle()
		w.counts("uncertain")
		if c := a.calls(); len(c.cancels) != 1 || c.cancels[0].GetEpoch() != 1 {
			t.Errorf("cancels %v", c.cancels)
		}
	})
}

// R4: a replica without room is asked no further by this session, which costs no attempt.
func TestR4_Overloaded(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		w.agents["a"].generate = func(*seguev1.GenerateRequest, *events) error {
			return refusal(seguev1.Reason_REASON_NO_CAPACITY, "all contexts are in use")
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if tr := w.stream(resp); !tr.done || w.session(resp).Primary != "b" {
			t.Errorf("%s", tr.raw)
		}
		w.counts("overloaded")
	})
}

// R4: slow is no failure: as long as there is progress, nothing moves, whatever the latency.
func TestR4_SlowIsNoFailure(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a := w.agents["a"]
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			for range 600 {
				time.Sleep(time.Second)
				if err := e.progress(0, 0, 0); err != nil {
					return err
				}
			}
			return e.whole(5)
		}
		a.says(health.Busy, false, "progress")
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if tr := w.stream(resp); !tr.done || len(w.session(resp).Attempts) != 1 {
			t.Errorf("%s", tr.raw)
		}
		if got := w.failures(); len(got) != 0 {
			t.Errorf("failures by class: %v", got)
		}
	})
}

// R4: when the client goes, its run is cancelled within a second, and nothing is started.
func TestR4_ClientGone(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a := w.agents["a"]
		a.generate = runs(nil)
		ctx, leave := context.WithCancel(t.Context())
		resp, err := w.tryPost(ctx, "/v1/chat/completions", chat(true, ""))
		if err != nil {
			t.Fatal(err)
		}
		leave()
		resp.Body.Close()
		time.Sleep(time.Second)
		if c := a.calls(); len(c.cancels) != 1 || c.ended != 1 || len(c.generates) != 1 {
			t.Errorf("%+v", c)
		}
		if c := w.agents["b"].calls(); len(c.generates)+len(c.takeovers) != 0 {
			t.Errorf("something was started: %+v", c)
		}
		w.counts("client_gone")
		if w.session(resp).Attempts[0].Cause != router.CauseClientGone {
			t.Errorf("%+v", w.session(resp).Attempts)
		}
	})
}
