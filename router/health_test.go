// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/fleet"
)

// A lost engine is fenced and left when the verdict comes, not when the stream has been silent for long enough. A late
// wake-up publishes nothing.
func TestHealth_ALostEngineIsFencedAtOnce(t *testing.T) {
	for verdict, want := range map[health.Verdict]struct {
		cause router.Cause
		class string
	}{
		health.Dead: {router.CauseDead, "dead"},
		health.Hung: {router.CauseHung, "uncertain"},
	} {
		t.Run(verdict.String(), func(t *testing.T) {
			bubble(t, "a b", nil, func(t *testing.T, w *world) {
				a, b := w.agents["a"], w.agents["b"]
				woken := make(chan error, 1)
				a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
					if err := e.begin("b", 3); err != nil {
						return err
					}
					e.hang() // until its call ends
					woken <- e.text("STALE ", 0)
					return nil
				}
				b.takeover = continues(4)
				resp := w.post("/v1/chat/completions", chat(true, ""))
				answer := w.reading(resp)
				synctest.Wait()
				start := time.Now()
				a.says(verdict, false, "no_progress")
				tr := answer()
				if took := time.Since(start); took > 500*time.Millisecond {
					t.Errorf("continued after %v: that is the stall timeout's work", took)
				}
				if tr.text != words(0, total) || !tr.done {
					t.Errorf("%s", tr.raw)
				}
				w.settle()
				<-woken
				info := w.session(resp)
				if got := attempts(info); len(got) != 2 || got[0].Cause != want.cause || got[1].Node != "b" {
					t.Errorf("attempts %+v", got)
				}
				if c := a.calls(); len(c.cancels) != 1 || c.cancels[0].GetEpoch() != 1 {
					t.Errorf("the old run is cancelled with %v", c.cancels)
				}
				if n := w.counter("segue_router_failures_total", want.class); n != 1 {
					t.Errorf("%v failures of class %s", n, want.class)
				}
				if n := w.counter("segue_router_engine_verdicts_total", "agent", verdict.String()); n != 1 {
					t.Errorf("%v verdicts counted", n)
				}
			})
		})
	}
}

// Nothing new comes to an engine that is lost or to be left, and it comes again when that is over.
func TestHealth_AShunnedEngineGetsNothingNew(t *testing.T) {
	for _, verdict := range []health.Verdict{health.Dead, health.Hung, health.CutOff, health.Evacuate} {
		t.Run(verdict.String(), func(t *testing.T) {
			bubble(t, "a b", nil, func(t *testing.T, w *world) {
				w.agents["a"].says(verdict, false)
				w.settle()
				for range 3 {
					resp := w.post("/v1/chat/completions", chat(true, ""))
					if w.stream(resp); w.session(resp).Primary != "b" {
						t.Errorf("placed on %s", w.session(resp).Primary)
					}
				}
				if n := len(w.agents["b"].calls().generates); n != 3 {
					t.Errorf("%d runs on b", n)
				}
				w.agents["a"].says(health.Idle, false)
				w.settle()
				resp := w.post("/v1/chat/completions", chat(true, ""))
				if w.stream(resp); w.session(resp).Primary != "a" {
					t.Errorf("well again, and placed on %s", w.session(resp).Primary)
				}
			})
		})
	}
}

// Unknown changes nothing: not for what runs, not for placement, and not for what an earlier verdict has led to.
func TestHealth_UnknownChangesNothing(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		answer, resp, _ := w.onA(3)
		w.agents["a"].says(health.Unknown, false, "no_answer")
		time.Sleep(time.Second)
		if info := w.session(resp); info.Epoch != 1 || info.Primary != "a" {
			t.Errorf("%+v", info)
		}
		w.agents["b"].says(health.Evacuate, false)
		w.settle()
		w.agents["b"].says(health.Unknown, false)
		w.settle()
		next := w.post("/v1/chat/completions", chat(true, ""))
		if w.settle(); w.session(next).Primary == "b" {
			t.Error("placed where an earlier verdict forbids it")
		}
		next.Body.Close()
		w.agents["b"].takeover = continues(4)
		w.agents["a"].says(health.Hung, false)
		if tr := answer(); !tr.done {
			t.Errorf("%s", tr.raw)
		}
	})
}

// A device that should be left is left as planned: every session moves while the engine still works.
func TestHealth_EvacuationMovesEverySession(t *testing.T) {
	for name, says := range map[string]func(a *agent){
		"evacuate":                 func(a *agent) { a.says(health.Evacuate, false, "gpu_remap_pending") },
		"a dead device that works": func(a *agent) { a.says(health.Dead, true, "gpu_lost") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "a b", nil, func(t *testing.T, w *world) {
				a, b := w.agents["a"], w.agents["b"]
				b.takeover = continues(4)
				answer, resp, _ := w.onA(3)
				says(a)
				if tr := answer(); tr.text != words(0, total) || !tr.done {
					t.Errorf("%s", tr.raw)
				}
				if got := attempts(w.session(resp)); len(got) != 2 || got[0].Cause != router.CauseEvacuate || got[1].Node != "b" {
					t.Errorf("attempts %+v", got)
				}
				w.settle()
				if len(a.parks) != 1 {
					t.Errorf("%d runs were parked: that wasn't a planned move", len(a.parks))
				}
				if n := w.counter("segue_router_moves_total", "moved"); n != 1 {
					t.Errorf("%v moves", n)
				}
			})
		})
	}
}

// A session that can't move yet does so when it can.
func TestHealth_EvacuationGoesOn(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		b.takeover = continues(4)
		refusals := 0
		b.prepare = func(*seguev1.PrepareRequest) (int, error) {
			if refusals++; refusals < 3 {
				return 0, refusal(seguev1.Reason_REASON_NO_CAPACITY, "all contexts are in use")
			}
			return 3, nil
		}
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			if err := e.begin("b", 3); err != nil {
				return err
			}
			for {
				time.Sleep(500 * time.Millisecond)
				if err := e.progress(3, 3, 3); err != nil {
					return err
				}
			}
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		answer := w.reading(resp)
		synctest.Wait()
		a.says(health.Evacuate, false)
		if tr := answer(); tr.text != words(0, total) || !tr.done {
			t.Errorf("%s", tr.raw)
		}
		if refusals != 3 {
			t.Errorf("prepared %d times", refusals)
		}
	})
}

// A degraded engine gets a smaller share, and nothing moves away from it.
func TestHealth_DegradedWeighsLess(t *testing.T) {
	bubble(t, "a b", func(_ *router.Config, agents map[string]*agent) {
		for _, a := range agents {
			a.describe.Contexts, a.describe.ContextsReserved = 64, 2
		}
	}, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		for _, x := range []*agent{a, b} {
			x.generate = runs(nil)
		}
		a.says(health.Degraded, false, "gpu_thermal_slowdown")
		w.settle()
		var open []*http.Response
		for range 10 {
			open = append(open, w.post("/v1/chat/completions", chat(true, "")))
		}
		na, nb := len(a.calls().generates), len(b.calls().generates)
		if na != 2 || nb != 8 {
			t.Errorf("%d on the degraded one and %d on the other, want a quarter of the share", na, nb)
		}
		if n := len(a.parks) + len(b.calls().takeovers); n != 0 {
			t.Error("something was moved")
		}
		for _, r := range open {
			r.Body.Close()
		}
	})
}

// What may be spoilt covers nothing: the holder is told how far the state counts, and nothing above it is accepted.
func TestHealth_TaintedBoundariesCoverNothing(t *testing.T) {
	tainted := func(clean uint32) error {
		return refusing(&seguev1.Refusal{Reason: seguev1.Reason_REASON_TAINTED, Detail: "gpu_ecc_uncorrected", CleanBoundary: &clean})
	}
	for name, tt := range map[string]struct {
		clean    uint32
		takeover func(r *seguev1.TakeoverRequest, e *events) error
		done     bool
	}{
		"clean above d": {4, continues(4), true},
		"clean at d":    {3, continues(3), true},
		"clean below d": {2, func(*seguev1.TakeoverRequest, *events) error {
			return refusal(seguev1.Reason_REASON_NOT_COVERED, "boundary 2, need 3")
		}, false},
		"a holder that doesn't know": {3, continues(5), false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "a b", nil, func(t *testing.T, w *world) {
				a, b := w.agents["a"], w.agents["b"]
				a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
					if err := e.begin("b", 3); err != nil {
						return err
					}
					return tainted(tt.clean)
				}
				b.takeover = tt.takeover
				resp := w.post("/v1/chat/completions", chat(true, ""))
				tr := w.stream(resp)
				if tr.done != tt.done {
					t.Errorf("%s", tr.raw)
				}
				if !tt.done && (tr.err == nil || tr.err.Delivered != 3) {
					t.Errorf("not an honest end: %s", tr.raw)
				}
				if c := b.calls(); len(c.takeovers) == 0 || c.takeovers[0].CleanBoundary == nil || c.takeovers[0].GetCleanBoundary() != tt.clean {
					t.Errorf("asked with %v", c.takeovers)
				}
				if got := w.session(resp).Attempts[0].Cause; got != router.CauseTainted {
					t.Errorf("cause %s", got)
				}
			})
		})
	}
}

// node is what the router says of an agent or a server.
func (w *world) node(id string) fleet.Status {
	w.t.Helper()
	var list []fleet.Status
	w.get("/v1/agents", &list)
	for _, s := range list {
		if s.ID == id {
			return s
		}
	}
	w.t.Fatalf("no %s among %v", id, list)
	return fleet.Status{}
}

// A verdict that comes with the taint, before or after the run's own end, or in place of one that is lost, continues
// nothing on other terms than the run's own end.
func TestHealth_ATaintIsNeverOvertakenByItsVerdict(t *testing.T) {
	clean := uint32(2) // below what was delivered
	tainted := refusing(&seguev1.Refusal{Reason: seguev1.Reason_REASON_TAINTED, Detail: "gpu_ecc_uncorrected", CleanBoundary: &clean})
	for name, tt := range map[string]struct {
		working bool
		end     func(a *agent, e *events) error
		want    router.Cause
	}{
		"with its end":          {false, func(*agent, *events) error { return tainted }, router.CauseTainted},
		"with its end, working": {true, func(*agent, *events) error { return tainted }, router.CauseTainted},
		"its end is lost":       {false, func(a *agent, e *events) error { time.Sleep(time.Second); a.cut(); return e.hang() }, router.CauseReset},
		"its end never comes":   {false, func(_ *agent, e *events) error { return e.hang() }, router.CauseStall},
		"its end is another one": {true, func(*agent, *events) error {
			time.Sleep(100 * time.Millisecond)
			return refusal(seguev1.Reason_REASON_NOT_READY, "")
		}, router.CauseNotReady},
		"its end comes a bit later": {false, func(*agent, *events) error { time.Sleep(100 * time.Millisecond); return tainted }, router.CauseTainted},
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				bubble(t, "a b", nil, func(t *testing.T, w *world) {
					a, b := w.agents["a"], w.agents["b"]
					a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
						if err := e.begin("b", 3); err != nil {
							return err
						}
						a.verdicts <- &seguev1.WatchHealthResponse{Verdict: seguev1.Verdict_VERDICT_DEAD, Working: tt.working, Tainted: true}
						return tt.end(a, e)
					}
					b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
						if r.CleanBoundary == nil {
							t.Error("asked to continue without a bound")
						}
						return refusal(seguev1.Reason_REASON_NOT_COVERED, "")
					}
					resp := w.post("/v1/chat/completions", chat(true, ""))
					if tr := w.stream(resp); tr.err == nil || tr.err.Delivered != 3 {
						t.Errorf("%s", tr.raw)
					}
					if got := w.session(resp).Attempts[0].Cause; got != tt.want {
						t.Errorf("cause %s", got)
					}
					if len(a.parks) != 0 {
						t.Error("moved as planned")
					}
				})
				if t.Failed() {
					return
				}
			}
		})
	}
}

// An engine that dies before it has taken what its agent holds: the agent says so itself, and is asked again when it has
// another engine.
func TestHealth_AHolderWithoutAnEngineIsAskedAgain(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			if err := e.begin("b", 3); err != nil {
				return err
			}
			return refusal(seguev1.Reason_REASON_ENGINE_LOST, "")
		}
		asked := 0
		b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
			if asked++; asked == 1 {
				b.says(health.Dead, false, "process_gone")
				time.Sleep(50 * time.Millisecond) // the verdict is there first
				return refusal(seguev1.Reason_REASON_NOT_READY, "the engine has crashed")
			}
			return continues(3)(r, e)
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if tr := w.stream(resp); !tr.done || tr.text != words(0, total) {
			t.Errorf("%s", tr.raw)
		}
		if asked != 2 {
			t.Errorf("asked %d times", asked)
		}
	})
}
