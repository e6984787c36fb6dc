// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/health"
)

// An engine whose work was taken away while it hung is hung until it shows life, or the idle limit is over.
func TestHealth_HungUntilItShowsLife(t *testing.T) {
	for name, alive := range map[string]bool{"it shows life": true, "it doesn't": false} {
		t.Run(name, func(t *testing.T) {
			pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
				kind := "hang"
				if alive {
					kind = "step"
				}
				w, id := a.watch(t), newID(t)
				letGo := a.host.hold(kind)
				follow(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: request(400), Protection: modeOff}))
				w.until(t, health.Hung, 12*time.Second) // its pace isn't known yet
				cancelRun(t, a, id, 1)
				pass(time.Second)
				letGo()
				if alive {
					w.until(t, health.Idle, time.Second)
					return
				}
				pass(10 * time.Second)
				if r := w.latest(t); r.verdict() != health.Hung || r.GetInFlight() != 0 || a.host.facts(t).Running != 0 {
					t.Errorf("without work: %v", r)
				}
				refuses(t, a, "hung")
				w.until(t, health.Idle, health.Defaults().IdleLimit)
				reference(t, a, request(5))
			})
		})
	}
}

// The engine's process is stopped: hung if it has something to do. Without that it is out of reach, and not hung.
func TestHealth_AStoppedProcess(t *testing.T) {
	for name, busy := range map[string]bool{"with work": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
				w, r := a.watch(t), request(400)
				ref := reference(t, b, r)
				var run *follower
				if busy {
					warm(t, a)
					run = follow(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: modeOff}))
					run.got(t, 60)
				}
				pass(300 * time.Millisecond)
				resume := a.host.stop(t)
				stopped := time.Now()
				want := health.CutOff
				if busy {
					want = health.Hung
				}
				got := w.until(t, want, 5*time.Second)
				if took := got.at.Sub(stopped); busy && took > 3*time.Second {
					t.Errorf("hung after %v", took)
				}
				if !slices.Contains(got.GetReasons(), "no_answer") || !strings.Contains(got.GetDetail(), "no heartbeat") {
					t.Errorf("reported %v", got)
				}
				pass(30 * time.Second)
				if v := w.verdicts(stopped.Add(time.Second)); slices.Contains(v, "hung") != busy || slices.Contains(v, "dead") {
					t.Errorf("while it was stopped: %v", v)
				}
				refuses(t, a, want.String())
				resume()
				back := health.Idle
				if busy {
					back = health.Busy
				}
				w.until(t, back, time.Second)
				if busy {
					time.Sleep(5 * time.Second) // virtual: to the end
					x := run.now()
					x.err = nil // the end of a stream that is whole
					x.equal(t, ref)
				}
			})
		})
	}
}

// A heartbeat that is late by less than a second says nothing.
func TestHealth_ALateHeartbeat(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		w, began := a.watch(t), time.Now()
		run := follow(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(400), Protection: modeOff}))
		for i := range 4 {
			run.got(t, 20*(i+1))
			resume := a.host.stop(t)
			pass(900 * time.Millisecond)
			resume()
		}
		for _, v := range w.verdicts(began) {
			if v != "idle" && v != "busy" && v != "unknown" {
				t.Errorf("%v", w.verdicts(began))
			}
		}
		if !a.describe(t).GetReady() {
			t.Error("not ready")
		}
	})
}

// Every stage of an engine's end and of its successor's start is known when it comes, not when the next look is due.
func TestHealth_ADeadProcessAndItsSuccessor(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		a := n.start(t, "a", "127.0.0.1:1001", tinySim(), func(c *agent.Config) { c.Health.Interval = 2 * time.Second })
		w := a.watch(t)
		first := a.describe(t).GetEngineBootId()
		run := follow(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(400), Protection: modeOff}))
		run.got(t, 60)
		pass(time.Second)
		if r := w.latest(t); string(r.GetEngineBootId()) != string(first) || string(r.GetBootId()) != string(a.describe(t).GetBootId()) {
			t.Errorf("reported %v", r)
		}
		died := time.Now()
		a.host.spawn(0)
		a.host.die()
		dead := w.until(t, health.Dead, 300*time.Millisecond)
		if took := dead.at.Sub(died); took > 10*time.Millisecond {
			t.Errorf("dead after %v: nobody was told", took)
		}
		if !slices.Equal(dead.GetReasons(), []string{"process_gone"}) || len(dead.GetEngineBootId()) > 0 || dead.GetWorking() {
			t.Errorf("reported %v", dead)
		}
		wantReason(t, run.now().err, seguev1.Reason_REASON_ENGINE_LOST)
		refuses(t, a, "")
		pass(5 * time.Second) // nothing starts
		if r := w.latest(t); r.verdict() != health.Dead {
			t.Errorf("without a process: %v", r)
		}
		a.host.spawn(2)
		w.until(t, health.Starting, 2*time.Second)
		pass(5 * time.Second)
		if r := w.latest(t); r.verdict() != health.Starting {
			t.Errorf("while it loads: %v", r)
		}
		began := time.Now()
		a.host.restart(t, tinySim())
		idle := w.until(t, health.Idle, time.Second)
		if took := idle.at.Sub(began); took > 400*time.Millisecond {
			t.Errorf("idle after %v: nobody was told", took)
		}
		second := a.describe(t).GetEngineBootId()
		if string(second) == string(first) || string(idle.GetEngineBootId()) != string(second) {
			t.Errorf("reported engine %x, it is %x, was %x", idle.GetEngineBootId(), second, first)
		}
		if got := w.verdicts(died); !slices.Equal(got, []string{"dead", "starting", "idle"}) {
			t.Errorf("%v", got)
		}
		reference(t, a, request(5))
	})
}

// With a successor's process there at once the end is reported all the same, and a successor that is there at the next
// look is another engine.
func TestHealth_AReplacedProcess(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		w := a.watch(t)
		pass(time.Second)
		died := time.Now()
		time.Sleep(time.Millisecond)
		a.host.die()
		pass(time.Second)
		a.host.restart(t, tinySim())
		pass(time.Second)
		if got := w.verdicts(died.Add(time.Millisecond)); !slices.Equal(got, []string{"dead", "starting", "idle"}) {
			t.Errorf("%v", got)
		}
		first := w.latest(t).GetEngineBootId()
		replaced := time.Now()
		a.host.replace(t, tinySim())
		pass(time.Second)
		if r := w.latest(t); string(r.GetEngineBootId()) == string(first) || r.verdict() != health.Idle {
			t.Errorf("reported %v after engine %x", r, first)
		}
		if got := len(w.since(replaced)); got < 2 || got > 3 { // the change and the regular ones
			t.Errorf("%d reports", got)
		}
	})
}

// A run that waits for its holder for minutes waits: nothing moves, and nobody is to blame.
func TestHealth_WaitingForTheWindow(t *testing.T) {
	pair(t, func(c *agent.Config) { c.CommitTimeout, c.BaseTimeout = time.Hour, time.Hour }, func(t *testing.T, n *memNet, a, b *testNode) {
		w, r := a.watch(t), request(400)
		ref := reference(t, b, r)
		run := follow(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}))
		run.got(t, 60)
		n.throttle("a", 20) // a boundary in a quarter of a minute
		w.until(t, health.Waiting, 5*time.Second)
		began, before := time.Now(), a.host.facts(t)
		pass(5 * time.Minute)
		after := a.host.facts(t)
		if p := run.now().progress; p.GetWaitsFor() != "window" || after.DecodeSteps > before.DecodeSteps+60 {
			t.Fatalf("it doesn't wait: %v, %d steps", p, after.DecodeSteps-before.DecodeSteps)
		}
		wantOnly(t, w, began, 5*time.Minute, health.Waiting, health.Busy)
		if !a.describe(t).GetReady() {
			t.Errorf("not ready: %s", a.describe(t).GetNotReadyReason())
		}
		// One that waits excuses none that hangs.
		other := follow(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(300), Protection: modeOff}))
		other.got(t, 60)
		letGo := a.host.hold("step")
		w.until(t, health.Hung, 3*time.Second)
		letGo()
		w.until(t, health.Busy, time.Second)
		n.throttle("a", 0)
		time.Sleep(2 * time.Minute) // virtual: to the end
		x := run.now()
		x.err = nil // the end of a stream that is whole
		x.equal(t, ref)
	})
}

// A caller that reads nothing for minutes doesn't make the engine sick.
func TestHealth_ACallerThatDoesNotRead(t *testing.T) {
	for name, mode := range map[string]seguev1.ProtectionMode{"off": modeOff, "sync": modeSync} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *memNet) {
				long := tinySim()
				long.Step = time.Second / 2
				a := n.start(t, "a", "127.0.0.1:1001", long, nil)
				b := n.start(t, "b", "127.0.0.1:1002", long, nil)
				w, began := a.watch(t), time.Now()
				recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(400), Protection: mode, Holder: b.peer})
				pass(5 * time.Minute)
				if s := a.host.facts(t).DecodeSteps; s < 399 {
					t.Fatalf("%d steps", s)
				}
				wantOnly(t, w, began.Add(time.Second), 4*time.Minute, health.Busy, health.Idle)
				var x transcript
				if x.read(recv, nil); x.finish == nil || len(x.tokens) != 400 {
					t.Errorf("%d tokens, %v", len(x.tokens), x.err)
				}
			})
		})
	}
}

// The first report comes at once, one with every change, and one a second: to everybody alike, whoever doesn't read.
func TestWatchHealth_Reports(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		a := n.start(t, "a", "127.0.0.1:1001", tinySim(), nil)
		pass(700 * time.Millisecond)
		// Callers that never read.
		for range 3 {
			if _, err := a.client.WatchHealth(t.Context(), &seguev1.WatchHealthRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		var all []*reports
		for range 30 {
			all = append(all, a.watch(t))
		}
		for _, w := range all {
			if r := w.since(w.began); len(r) != 1 || r[0].at.Sub(w.began) > 10*time.Millisecond || r[0].verdict() != health.Idle || r[0].GetGpu() != "off" {
				t.Fatalf("at first: %v", r)
			}
		}
		quiet := time.Now()
		pass(time.Minute + 500*time.Millisecond)
		for _, w := range all {
			if got := len(w.since(quiet.Add(time.Millisecond))); got != 60 {
				t.Errorf("%d reports in a minute without a change", got)
			}
		}
		changing := time.Now()
		reference(t, a, request(200)) // a second
		pass(300 * time.Millisecond)
		a.host.die()
		pass(time.Second)
		a.host.restart(t, tinySim())
		pass(time.Second)
		want := []string{"busy", "idle", "dead", "starting", "idle"}
		for _, w := range all {
			got := slices.DeleteFunc(w.verdicts(changing.Add(time.Millisecond)), func(v string) bool { return v == "unknown" })
			if got[0] == "idle" {
				got = got[1:]
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("changes (-want +got):\n%s", diff)
			}
			if reports := len(w.since(changing)); reports < 5 || reports > 12 {
				t.Errorf("%d reports of 6 changes in 4 s", reports)
			}
		}
		time.Sleep(30 * time.Minute) // virtual: the buffers of those that don't read are full
		changing = time.Now()
		a.host.die()
		pass(100 * time.Millisecond)
		if got := all[0].latest(t); got.verdict() != health.Dead && got.verdict() != health.Starting {
			t.Errorf("held up by others: %v", got)
		}
		all[0].cancel()
		stops(t, a, all[1])
		for _, w := range all[1:] {
			w.mu.Lock()
			if w.err == nil {
				t.Error("reports go on after the agent's end")
			}
			w.mu.Unlock()
		}
	})
}

// What an agent says of its engine is what the numbers of the two lists say.
func TestWatchHealth_VerdictsAreThoseOfHealth(t *testing.T) {
	if len(seguev1.Verdict_name) != len(health.Verdicts()) {
		t.Errorf("%d verdicts travel, there are %d", len(seguev1.Verdict_name), len(health.Verdicts()))
	}
	for _, v := range health.Verdicts() {
		want := "VERDICT_" + strings.ToUpper(v.String())
		if v == health.Unknown {
			want = "VERDICT_UNSPECIFIED"
		}
		if got := seguev1.Verdict(v).String(); got != want {
			t.Errorf("%s travels as %s", v, got)
		}
	}
}
