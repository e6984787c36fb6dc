// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/gpu"
)

const card = "GPU-1"

// cards are a node's devices, whose reports a test makes up.
type cards struct {
	list  chan gpu.Report
	taken chan struct{}
	fails chan error
	// remembered is what the agent asked to keep; remember is called before it is.
	remembered []gpu.Memory
	remember   func()
}

// give gives a node devices of which nothing is known yet.
func (c *cards) give(d *agent.Deps) {
	c.list, c.taken, c.fails = make(chan gpu.Report), make(chan struct{}), make(chan error)
	d.Devices, d.GPU.Table = c, gpu.DefaultTable()
	d.Remember = func(m gpu.Memory) {
		if c.remember != nil {
			c.remember()
		}
		c.remembered = append(c.remembered, m)
	}
}

func (c *cards) Run(ctx context.Context, report func(gpu.Report)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-c.fails:
			return err
		case r := <-c.list:
			report(r)
			c.taken <- struct{}{}
		}
	}
}

// tell has a report taken in.
func (c *cards) tell(r gpu.Report) {
	c.list <- r
	<-c.taken
}

// sample is a reading that began some time ago, of one device that is well but for what change says.
func (c *cards) sample(age time.Duration, change func(*gpu.Device)) {
	d := gpu.Device{UUID: card, Uncorrected: new(uint64), Recovery: new(gpu.RecoveryNone), RemapPending: new(bool), Thermal: new(bool)}
	if change != nil {
		change(&d)
	}
	at := time.Now().Add(-age)
	c.tell(gpu.Report{At: time.Now(), Sample: &gpu.Sample{At: at, MonotonicNS: 1, Complete: true, Devices: []gpu.Device{d}}})
}

// event is an XID of now.
func (c *cards) event(xid int) {
	e := gpu.Event{At: time.Now(), MonotonicNS: 1, UUID: card, XID: xid}
	c.tell(gpu.Report{At: e.At, Sample: &gpu.Sample{At: e.At, MonotonicNS: 1, Events: []gpu.Event{e}}})
}

func spoilt(d *gpu.Device) { d.Uncorrected = new(uint64(1)) }

// carded runs f with agent a, which has devices, and agents b and c, which have none.
func carded(t *testing.T, f func(t *testing.T, gpus *cards, a, b, c *testNode)) {
	t.Helper()
	bubble(t, func(t *testing.T, n *memNet) {
		gpus := new(cards)
		a := n.startWith(t, "a", "127.0.0.1:1001", tinySim(), nil, gpus.give)
		b := n.start(t, "b", "127.0.0.1:1002", tinySim(), nil)
		c := n.start(t, "c", "127.0.0.1:1003", tinySim(), nil)
		f(t, gpus, a, b, c)
	})
}

// begin starts a run on a.
func begin(t *testing.T, a *testNode, r *seguev1.Request, mode seguev1.ProtectionMode, holder *testNode) ([]byte, *follower) {
	t.Helper()
	id := newID(t)
	o := &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: mode}
	if mode != modeOff {
		o.Holder = holder.peer
	}
	return id, follow(generate(t, t.Context(), a, o))
}

// whole checks that a run ends as the reference does.
func whole(t *testing.T, run *follower, ref *transcript) {
	t.Helper()
	time.Sleep(10 * time.Second) // virtual: to the end
	x := run.now()
	x.err = nil // the end of a stream that is whole
	x.equal(t, ref)
}

// Nothing known of devices changes nothing but what is said of that.
func TestDevices_NothingKnown(t *testing.T) {
	carded(t, func(t *testing.T, gpus *cards, a, b, _ *testNode) {
		r := request(400)
		ref := reference(t, b, r)
		off, w := b.watch(t), a.watch(t)
		state := func(b *testNode) string {
			_, body := b.get(t, "/v1/node")
			var v struct {
				Health health.Verdict
				GPU    string
				Ready  bool
			}
			if err := json.Unmarshal([]byte(body), &v); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("%s %v %s", v.Health, v.Ready, v.GPU)
		}
		_, run := begin(t, a, r, modeSync, b)
		run.got(t, 20)
		for name, tell := range map[string]func(){
			"no report yet":  func() {},
			"a dead program": func() { gpus.tell(gpu.Report{At: time.Now(), Unavailable: "exit status 127"}) },
			"no library": func() {
				gpus.tell(gpu.Report{At: time.Now(), Hello: &gpu.Hello{Protocol: gpu.Protocol, Unavailable: "libnvidia-ml.so.1: not found"}})
			},
			"no reading yet": func() { gpus.tell(gpu.Report{At: time.Now(), Hello: &gpu.Hello{Protocol: gpu.Protocol, Boot: "x"}}) },
			"a reading that hangs": func() {
				gpus.tell(gpu.Report{At: time.Now(), Sample: &gpu.Sample{At: time.Now(), MonotonicNS: 1, StalledMS: 5000}})
			},
			"a program that is new": func() { gpus.tell(gpu.Report{At: time.Now()}) },
		} {
			tell()
			pass(110 * time.Millisecond)
			if got := state(a); got != "busy true unavailable" {
				t.Errorf("%s: %s", name, got)
			}
		}
		pass(time.Second)
		if x, y := a.watch(t).latest(t).GetGpu(), off.latest(t).GetGpu(); x != "unavailable" || y != "off" || state(b) != "idle true off" {
			t.Errorf("%q, without a reader of devices %q, %s", x, y, state(b))
		}
		whole(t, run, ref)
		wantOnly(t, w, w.began.Add(time.Second), time.Second, health.Busy, health.Idle)
	})
}

// A reader that ends, with an error or without one, takes nothing with it.
func TestDevices_AReaderThatEnds(t *testing.T) {
	for name, err := range map[string]error{"with an error": errors.New("no such file"), "without": nil} {
		t.Run(name, func(t *testing.T) {
			carded(t, func(t *testing.T, gpus *cards, a, b, _ *testNode) {
				w := a.watch(t)
				gpus.sample(0, nil)
				if pass(time.Second); w.latest(t).GetGpu() != "read" {
					t.Fatalf("%v", w.latest(t))
				}
				gpus.fails <- err
				pass(time.Minute)
				if r := w.latest(t); r.GetGpu() != "unavailable" || r.verdict() != health.Idle {
					t.Errorf("reported %v", r)
				}
				reference(t, a, request(5))
				stops(t, a, w)
			})
		})
	}
}

// What is held of the devices is reported while the engine works, and goes when it is over unless it is lasting.
func TestDevices_VerdictsOnAWorkingEngine(t *testing.T) {
	for name, x := range map[string]struct {
		samples int
		change  func(*gpu.Device)
		want    health.Verdict
		reason  string
		after   health.Verdict // once the device is well
	}{
		"well":                 {1, nil, health.Busy, "", health.Busy},
		"a row to be remapped": {1, func(d *gpu.Device) { d.RemapPending = new(true) }, health.Evacuate, "gpu_remap_pending", health.Busy},
		"slow for heat":        {6, func(d *gpu.Device) { d.Thermal = new(true) }, health.Degraded, "gpu_thermal_slowdown", health.Busy},
		"a bit slow for heat":  {5, func(d *gpu.Device) { d.Thermal = new(true) }, health.Busy, "", health.Busy},
		"a remap that failed":  {1, func(d *gpu.Device) { d.RemapFailed = new(true) }, health.Dead, "gpu_remap_failed", health.Dead},
	} {
		t.Run(name, func(t *testing.T) {
			carded(t, func(t *testing.T, gpus *cards, a, b, _ *testNode) {
				r := request(400)
				ref, w := reference(t, b, r), a.watch(t)
				heldID, held := begin(t, b, r, modeSync, a)
				h := held.got(t, 3)
				_, run := begin(t, a, r, modeSync, b)
				run.got(t, 100)
				for range x.samples {
					pass(10 * time.Millisecond)
					gpus.sample(0, x.change)
				}
				if pass(10 * time.Millisecond); x.reason == "" {
					pass(time.Second) // until the next regular one
				}
				got := w.latest(t)
				if got.verdict() != x.want || got.GetGpu() != "read" || x.reason != "" && !slices.Equal(got.GetReasons(), []string{x.reason}) {
					t.Errorf("reported %v", got)
				}
				if bad := x.want >= health.Degraded; got.GetWorking() != bad {
					t.Errorf("working %v", got.GetWorking())
				}
				if x.want >= health.Evacuate {
					refuses(t, a, x.want.String()+": ["+x.reason+"]", h.order(heldID, 2, r, modeOff))
				} else if !a.describe(t).GetReady() {
					t.Error("not ready")
				}
				for range 10 {
					pass(10 * time.Millisecond)
					gpus.sample(0, nil)
				}
				pass(10 * time.Millisecond)
				if got := w.latest(t); got.verdict() != x.after {
					t.Errorf("afterwards: %v", got)
				}
				if got := len(gpus.remembered); (got > 0) != (x.after == health.Dead) {
					t.Errorf("%d things to remember", got)
				}
				whole(t, run, ref)
				if got := w.latest(t); x.after == health.Dead && (got.verdict() != health.Dead || got.GetWorking()) {
					t.Errorf("nothing runs any more: %v", got)
				}
			})
		})
	}
}

// What must outlive the agent is given out when it changes, and counts for the next agent from the start.
func TestDevices_Memory(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		gpus := new(cards)
		a := n.startWith(t, "a", "127.0.0.1:1001", tinySim(), nil, gpus.give)
		gpus.tell(gpu.Report{At: time.Now(), Hello: &gpu.Hello{Protocol: gpu.Protocol, Boot: "one"}})
		for range 3 {
			pass(time.Second)
			gpus.sample(0, func(d *gpu.Device) { d.Lost = true })
		}
		if len(gpus.remembered) != 2 {
			t.Fatalf("remembered %v, want the machine's boot and the loss", gpus.remembered)
		}
		m := gpus.remembered[1]
		if m.Boot != "one" || len(m.Lasting) != 1 || m.Lasting[0].UUID != card || m.Lasting[0].Verdict != health.Dead || m.Lasting[0].Reason != gpu.ReasonLost {
			t.Errorf("remembered %+v", m)
		}
		stops(t, a, a.watch(t))
		again := new(cards)
		b := n.startWith(t, "b", "127.0.0.1:1002", tinySim(), nil, func(d *agent.Deps) {
			again.give(d)
			d.GPU.Memory = m
		})
		w := b.watch(t)
		again.tell(gpu.Report{At: time.Now(), Hello: &gpu.Hello{Protocol: gpu.Protocol, Boot: "one"}})
		pass(10 * time.Millisecond)
		if got := w.latest(t); got.verdict() != health.Dead || !slices.Contains(got.GetReasons(), "gpu_lost") || got.GetGpu() != "unavailable" {
			t.Errorf("reported %v", got)
		}
		refuses(t, b, "dead: [gpu_lost")
		again.tell(gpu.Report{At: time.Now(), Hello: &gpu.Hello{Protocol: gpu.Protocol, Boot: "two"}})
		pass(10 * time.Millisecond)
		if got := w.latest(t); got.verdict() != health.Idle || len(again.remembered) != 1 || len(again.remembered[0].Lasting) != 0 {
			t.Errorf("in another life of the machine: %v, remembered %v", got, again.remembered)
		}
	})
}

// After an error of the process's own the engine has to show progress soon. One that does is well.
func TestDevices_AnApplicationErrorDemandsProgress(t *testing.T) {
	for name, x := range map[string]struct{ freeze, replace bool }{
		"it moves": {}, "it doesn't": {freeze: true}, "it was another process": {freeze: true, replace: true},
	} {
		t.Run(name, func(t *testing.T) {
			carded(t, func(t *testing.T, gpus *cards, a, b, _ *testNode) {
				w := a.watch(t)
				gpus.sample(0, nil)
				at := time.Now()
				if x.replace {
					pass(time.Second)
					at = time.Now()
					pass(10 * time.Millisecond)
					a.host.die()
					pass(time.Second)
					a.host.restart(t, tinySim())
					pass(time.Second)
				}
				warm(t, a)
				_, run := begin(t, a, request(400), modeOff, nil)
				run.got(t, 100)
				letGo := func() {}
				if x.freeze {
					letGo = a.host.hold("step")
				}
				frozen := time.Now()
				pass(20 * time.Millisecond)
				if x.replace {
					e := gpu.Event{At: at, MonotonicNS: 1, UUID: card, XID: 31}
					gpus.tell(gpu.Report{At: time.Now(), Sample: &gpu.Sample{At: time.Now(), MonotonicNS: 1, Events: []gpu.Event{e}}})
				} else {
					gpus.event(31)
				}
				pass(10 * time.Millisecond)
				if got := w.latest(t); got.verdict() != health.Watch || !slices.Equal(got.GetReasons(), []string{"gpu_xid_app"}) || !got.GetWorking() {
					t.Errorf("reported %v", got)
				}
				if !a.describe(t).GetReady() {
					t.Error("not ready for an error that proves nothing")
				}
				if x.freeze {
					hung := w.until(t, health.Hung, 3*time.Second)
					took, least, most := hung.at.Sub(frozen), time.Second, 1600*time.Millisecond
					if x.replace {
						least, most = 2*time.Second, 3*time.Second
					}
					if took < least || took > most {
						t.Errorf("hung after %v, want %v to %v", took, least, most)
					}
				} else {
					gpus.sample(0, nil)
					pass(3 * time.Second)
					for _, r := range w.since(frozen.Add(time.Second)) {
						if v := r.verdict(); v != health.Busy && v != health.Idle {
							t.Errorf("reported %v", r)
						}
					}
				}
				if v := value(a.gather(t), "segue_agent_gpu_errors_total", "app"); v != 1 {
					t.Errorf("%v counted", v)
				}
				letGo()
			})
		})
	}
}

// A device is given up just after a run began, before its engine was looked at again: there is something to move, whatever
// the last look said.
func TestDevices_WorkThatHasJustCome(t *testing.T) {
	carded(t, func(t *testing.T, gpus *cards, a, b, _ *testNode) {
		w := a.watch(t)
		gpus.sample(0, nil)
		w.until(t, health.Idle, time.Second)
		pass(time.Second)
		_, run := begin(t, a, request(400), modeSync, b)
		run.got(t, 1)
		if v := w.latest(t).verdict(); v != health.Idle {
			t.Fatalf("the engine was looked at meanwhile: %v", v)
		}
		gpus.sample(0, func(d *gpu.Device) { d.RemapFailed = new(true) })
		pass(time.Millisecond)
		if got := w.latest(t); got.verdict() != health.Dead || !got.GetWorking() {
			t.Errorf("reported %v", got)
		}
	})
}
