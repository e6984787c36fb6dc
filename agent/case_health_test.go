// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/health"
)

// The step loop freezes while the engine's process goes on speaking: hung within three seconds, nothing new comes, what
// ran goes on elsewhere and is identical, what wakes up late changes nothing, and an engine that moves is well.
func TestCase_E1_AFrozenStepLoopIsFound(t *testing.T) {
	for _, step := range []time.Duration{10 * time.Millisecond, 50 * time.Millisecond} {
		t.Run(step.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, n *memNet) {
				engine := tinySim()
				engine.Step = step
				a := n.start(t, "a", "127.0.0.1:1001", engine, nil)
				b := n.start(t, "b", "127.0.0.1:1002", engine, nil)
				w := a.watch(t)
				r, id, staysID, heldID := request(300), newID(t), newID(t), newID(t)
				ref := reference(t, b, r)
				warm(t, a)
				lost := follow(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}))
				stays := follow(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: staysID, Epoch: 1, Request: r, Protection: modeOff}))
				lost.got(t, 60)

				letGo := a.host.hold("step")
				frozen := time.Now()
				pass(step)
				before := a.host.facts(t)
				hung := w.until(t, health.Hung, 3*time.Second)
				if took := hung.at.Sub(frozen); took < 2*time.Second || took > 3*time.Second {
					t.Errorf("hung after %v, want within 2 to 3 s", took)
				}
				if f := a.host.facts(t); f.Running != 2 || f.DecodeSteps != before.DecodeSteps {
					t.Fatalf("the engine isn't frozen: %+v, was %+v", f, before)
				}
				if !slices.Equal(hung.GetReasons(), []string{"no_progress"}) || hung.GetInFlight() != 2 || hung.GetWorking() {
					t.Errorf("reported %v", hung)
				}
				if s, limit := hung.GetSilenceMs(), hung.GetSilenceLimitMs(); s <= limit || limit != 2000 {
					t.Errorf("%d ms of silence, limit %d", s, limit)
				}

				held := follow(generate(t, t.Context(), b, &seguev1.GenerateRequest{Session: heldID, Epoch: 1, Request: r, Protection: modeSync, Holder: a.peer}))
				h := held.got(t, 5)
				refuses(t, a, "hung: [no_progress]", h.order(heldID, 2, r, modeOff))
				if v := a.view(t, heldID, "holder"); v.GetCommitted() < 5 {
					t.Errorf("what it held is lost: %v", v)
				}

				x := lost.now()
				cancelRun(t, a, id, 1)
				x.read(takeover(t, t.Context(), b, x.order(id, 2, r, modeOff)), nil)
				x.equal(t, ref)

				letGo()
				woken := time.Now()
				if got := w.until(t, health.Busy, 300*time.Millisecond); !slices.Contains(got.GetReasons(), "our_tokens") && !slices.Contains(got.GetReasons(), "progress") {
					t.Errorf("well again: %v", got)
				}
				if d := a.describe(t); !d.GetReady() {
					t.Errorf("not ready again: %s", d.GetNotReadyReason())
				}
				time.Sleep(300 * step)
				if y := lost.now(); len(y.tokens) != 60 && len(y.tokens) > len(x.tokens) || y.finish != nil {
					t.Errorf("the fenced run went on to %d tokens, %v", len(y.tokens), y.finish)
				}
				y := stays.now()
				y.err = nil // the end of a stream that is whole
				y.equal(t, ref)
				if got := w.verdicts(woken); slices.Contains(got, "hung") || slices.Contains(got, "dead") {
					t.Errorf("after it woke up: %v", got)
				}
				if v := value(a.gather(t), "segue_agent_engine_verdicts_total", "hung"); v != 1 {
					t.Errorf("%v counted", v)
				}
			})
		})
	}
}

// A prefill of ten minutes whose counters move is busy all the time, and nothing else is sent to the engine.
func TestCase_E2_ALongPrefillIsBusy(t *testing.T) {
	const minutes = 10
	bubble(t, func(t *testing.T, n *memNet) {
		slow := tinySim()
		slow.ContextLength, slow.Chunk, slow.PrefillToken = 2048, 2, time.Second/2
		a := n.start(t, "a", "127.0.0.1:1001", slow, nil)
		w, began := a.watch(t), time.Now()
		r := request(5)
		prompt := make([]int32, minutes*120)
		for i := range prompt {
			prompt[i] = int32(i % 7)
		}
		r.Prompt = ids(prompt...)
		x := follow(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: modeOff}))
		pass(minutes*time.Minute - 2*time.Second)
		if f := a.host.facts(t); f.Running != 1 || f.DecodeSteps != 0 || f.PrefillTokens < uint64(len(prompt)-10) {
			t.Fatalf("no long prefill: %+v", f)
		}
		wantOnly(t, w, began.Add(3*time.Second), (minutes-1)*time.Minute, health.Busy)
		pass(10 * time.Second)
		if y := x.now(); y.finish == nil {
			t.Errorf("the run isn't over: %v", y.err)
		}
		if v := w.verdicts(began.Add(3 * time.Second)); !slices.Equal(v, []string{"busy", "idle"}) {
			t.Errorf("%v", v)
		}
		if got := a.host.runs.Load(); got != 1 {
			t.Errorf("%d runs, want the caller's", got)
		}
	})
}

// A look at the engine that doesn't end: the agent says that it isn't ready, makes no second one beside it, and stops.
func TestCase_E12_ALookThatNeverEnds(t *testing.T) {
	for name, how := range map[string]struct {
		// call is "observe", which ends with its context, or "stuck", which doesn't.
		call        string
		early, busy bool
	}{
		"stuck from the start":  {call: "stuck", early: true},
		"stuck":                 {call: "stuck"},
		"given up at the start": {call: "observe", early: true},
		"given up":              {call: "observe"},
		"given up, busy":        {call: "observe", busy: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *memNet) {
				letGo := func() {}
				a := n.startWith(t, "a", "127.0.0.1:1001", tinySim(), nil, func(d *agent.Deps) {
					if how.early {
						letGo = d.Host.(*simHost).hold(how.call)
					}
				})
				w := a.watch(t)
				if how.busy {
					warm(t, a)
					follow(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(400), Protection: modeOff})).got(t, 20)
				}
				if !how.early {
					letGo = a.host.hold(how.call)
				}
				stuck := time.Now()
				for time.Since(stuck) < 10*time.Second && a.describe(t).GetReady() {
					pass(100 * time.Millisecond)
				}
				refuses(t, a, "no_")
				pass(30 * time.Second)
				for _, r := range w.since(stuck.Add(10 * time.Second)) {
					if v := r.verdict(); v != health.CutOff && v != health.Hung {
						t.Fatalf("reported %v", r)
					}
				}
				if how.early || how.busy {
					stops(t, a, w)
					letGo()
					return
				}
				letGo()
				w.until(t, health.Idle, 2*time.Second)
				if !a.describe(t).GetReady() {
					t.Errorf("not ready again: %s", a.describe(t).GetNotReadyReason())
				}
			})
		})
	}
}

// stuckLog never returns from one message until it is let go.
type stuckLog struct {
	slog.Handler
	message string
	gate    <-chan struct{}
}

func (l stuckLog) Enabled(context.Context, slog.Level) bool { return true }
func (l stuckLog) WithAttrs([]slog.Attr) slog.Handler       { return l }

func (l stuckLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == l.message {
		<-l.gate
	}
	return nil
}

// The goroutine that looks after the engine gets stuck: within ten seconds the agent says that it isn't ready.
func TestCase_E12_NobodyLooksAtTheEngine(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		gate := make(chan struct{})
		a := n.startWith(t, "a", "127.0.0.1:1001", tinySim(), nil, func(d *agent.Deps) {
			d.Log = slog.New(stuckLog{message: "engine health changed", gate: gate})
		})
		w := a.watch(t)
		if !a.describe(t).GetReady() {
			t.Error("not ready although the engine has just been looked at")
		}
		pass(10 * time.Second)
		if got := a.describe(t).GetNotReadyReason(); !strings.Contains(got, "nobody has looked at the engine for 10s") {
			t.Errorf("reason %q", got)
		}
		refuses(t, a, "nobody has looked")
		close(gate)
		pass(time.Second) // virtual: it looks again
		w.until(t, health.Idle, time.Second)
		if d := a.describe(t); !d.GetReady() {
			t.Errorf("not ready again: %s", d.GetNotReadyReason())
		}
		stops(t, a, w)
	})
}
