// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seguekv/segue/agent"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/internal/sim"
)

// playCells plays cells of the fault points' table, given as point/fault/protection/target.
func playCells(t *testing.T, names ...string) {
	t.Helper()
	table := readTable(t)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			w := strings.Split(name, "/")
			r := table[cell{w[0], w[1], w[2], w[3]}]
			if observed, err := (&scene{row: r}).run(t); err != nil || !slices.Contains(r.expected, observed) {
				t.Errorf("expected %v, observed %s: %v", r.expected, observed, err)
			}
		})
	}
}

func TestVerdict_HungIsLeft(t *testing.T) {
	playCells(t, "between-chunks/hang/sync/engine", "after-capture/hang/sync/engine", "after-capture/hang/off/engine", "takeover-new/hang/sync/engine", "planned-resumed/hang/sync/engine")
}

func TestVerdict_EvacuatedIsMoved(t *testing.T) {
	playCells(t, "after-capture/evacuate/sync/device", "after-capture/evacuate/async/device", "takeover-new/evacuate/sync/device")
}

// An engine that works is left in good order, whatever its device; also when it got its work just before.
func TestVerdict_CondemnedAndWorking(t *testing.T) {
	playCells(t, "after-capture/condemn/sync/device", "takeover-reemitted/condemn/sync/device", "planned-resumed/condemn/async/device")
}

func TestVerdict_NothingLeavesATaintedDevice(t *testing.T) {
	playCells(t, "between-chunks/taint/sync/device", "after-capture/taint/off/device", "after-capture/taint/sync/device", "after-last-token/taint/sync/device")
}

// Who has yet to answer a takeover keeps what it holds, whatever becomes of its engine.
func TestVerdict_ADeadHolderAnswersForItself(t *testing.T) {
	playCells(t, "takeover-asked/crash/sync/engine", "takeover-asked/crash/async/engine")
}

// taintPlan is one long session under sync on a device that loses data. Its engine's tokens are wrong from before the driver
// tells of it; the holder has some of them, and none has left.
func taintPlan(at time.Duration) sim.Plan {
	p := sim.Plan{Seed: 4711, Nodes: 3, Temper: sim.Quick}
	r := smallRequest()
	r.MaxTokens = 200
	p.Sessions = []sim.SessionPlan{{Request: r}}
	p.Faults = []sim.Fault{{Kind: sim.DeviceTaint, At: at, Role: "primary", For: 500 * time.Millisecond}}
	return p
}

// What was captured after the last clean reading is never continued from.
func TestVerdict_TaintedBoundariesCoverNothing(t *testing.T) {
	for _, at := range []time.Duration{200 * time.Millisecond, 333 * time.Millisecond, 500 * time.Millisecond} {
		o, dead := play(t, taintPlan(at), sim.Options{})
		if len(o.Problems) > 0 || dead {
			t.Errorf("at %v: %q", at, o.Problems)
		}
		if got := o.Tally(); got.Tainted != 1 || got.Whole != 1 || got.Takeovers != 1 || got.Hit[sim.DeviceTaint] != 1 {
			t.Errorf("at %v: it wasn't continued from a sound boundary: %+v", at, got)
		}
		if note := o.Struck[0].Note; !strings.Contains(note, "before it was seen") {
			t.Errorf("at %v: nothing wrong was captured: %q", at, note)
		}
	}
}

// several asks for so many sessions at once, and calls meanwhile once all of them have delivered something.
func several(t *testing.T, w *sim.World, n, tokens int, meanwhile func()) []*sim.Answer {
	t.Helper()
	answers := make([]*sim.Answer, n)
	var all, begun sync.WaitGroup
	for i := range n {
		r := smallRequest()
		r.Label, r.MaxTokens = uint64(100+i), tokens
		ref, err := sim.Refer(sim.DefaultEngine(), r)
		if err != nil {
			t.Fatal(err)
		}
		begun.Add(1)
		first := sync.OnceFunc(begun.Done)
		all.Go(func() {
			defer first()
			c := w.NewClient(fmt.Sprintf("client-%d", i))
			defer c.Close()
			answers[i] = c.Ask(t.Context(), r, sim.Manner{Seen: func(ids int) {
				if ids > 5 {
					first()
				}
			}})
			if why := sim.Judge(answers[i], ref, r); len(why) > 0 || !answers[i].Whole() {
				t.Errorf("session %d: %v, error %+v", i, why, answers[i].Err)
			}
		})
	}
	begun.Wait()
	meanwhile()
	all.Wait()
	return answers
}

// Every session leaves a node that should be left, while its engine works; each is fenced before another node continues it.
func TestVerdict_EvacuationLeavesNobody(t *testing.T) {
	c := smallWorld()
	bubble(t, c, func(t *testing.T, w *sim.World) {
		var n *sim.Node
		answers := several(t, w, 6, 500, func() {
			n = w.Node(w.Router.Sessions()[0].Primary)
			n.Device.Pend(true)
			time.Sleep(time.Second) // virtual
			for _, s := range w.Router.Sessions() {
				if s.Primary == n.ID || s.EndedAt != "" {
					t.Errorf("session %.8s on %s, ended %q", s.Session, s.Primary, s.EndedAt)
				}
			}
		})
		moved := 0
		for _, a := range answers {
			for _, seam := range w.Router.Session(a.Session).Seams {
				if seam.From == n.ID && seam.Cause == "evacuate" {
					moved++
				}
			}
			if err := sim.CheckGate(w.Gates.History(a.Session)); err != nil {
				t.Error(err)
			}
		}
		if moved == 0 {
			t.Error("nothing ran on the node")
		}
	})
}

// An agent that can say nothing but UNKNOWN is used as one that says all is well.
func TestVerdict_UnknownChangesNothing(t *testing.T) {
	story := func(deaf bool) (out []string) {
		c := smallWorld()
		c.Agent = func(_ string, c *agent.Config) {
			h := &c.Health
			h.Floor, h.Ceiling, h.Cold, h.BlindFloor, h.BlindPrefill = time.Hour, time.Hour, time.Hour, time.Hour, time.Hour
		}
		c.Deaf = deaf
		bubble(t, c, func(t *testing.T, w *sim.World) {
			if deaf {
				for _, n := range w.Nodes {
					n.Device.Silence(true)
				}
			}
			time.Sleep(5 * time.Second) // virtual: many reports
			for _, n := range w.Nodes {
				if v, _ := w.Router.Verdict(n.ID); (v == "") != deaf {
					t.Fatalf("the verdict on %s is %q", n.ID, v)
				}
			}
			for i := range 6 {
				for _, a := range several(t, w, 1+i%2, 60, func() {}) {
					s := w.Router.Session(a.Session)
					var line strings.Builder
					line.WriteString(fmt.Sprint(s.Protection, s.Phase, s.Finish, s.AcceptedTokens))
					for _, x := range s.Attempts {
						line.WriteString(fmt.Sprint(" ", x.Node, x.Epoch, x.Kind, x.Cause))
					}
					for _, p := range s.ProtectionLog {
						line.WriteString(fmt.Sprint(" ", p.Holder, p.Protected, p.Cause))
					}
					out = append(out, line.String())
				}
			}
		})
		return out
	}
	if silent, well := story(true), story(false); !slices.Equal(silent, well) {
		t.Errorf("with UNKNOWN:\n%s\nwith verdicts:\n%s", strings.Join(silent, "\n"), strings.Join(well, "\n"))
	}
}

// A holder's engine crashes and is back. The router's word of the loss reaches the session when its second takeover has begun
// there, and isn't about that one.
func TestVerdict_ALaterRunIsNotInterrupted(t *testing.T) {
	c := smallWorld()
	var w *sim.World
	var holder *sim.Node
	var raised atomic.Int32
	heard := ""
	must := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	c.Hook = func(m sim.Moment) {
		switch {
		case m.Point == sim.PointCaptured && m.Index == 6 && holder == nil:
			s := w.Router.Sessions()[0]
			holder = w.Node(s.Holder)
			// The look at it that follows puts off the next one.
			holder.Engine.Crash()
			must(holder.Engine.Start())
		case m.Point == sim.PointCaptured && m.Index == 8 && raised.Load() == 0:
			w.Node(m.Node).Crash()
		case m.Point == sim.PointRaise && raised.Add(1) == 1:
			holder.Engine.Crash()
		case m.Point == sim.PointRaise && raised.Load() == 2: // it has refused
			time.Sleep(40 * time.Millisecond) // virtual
			heard, _ = w.Router.Verdict(holder.ID)
			must(holder.Engine.Start())
			time.Sleep(40 * time.Millisecond) // virtual
		}
	}
	bubble(t, c, func(t *testing.T, world *sim.World) {
		w = world
		r := smallRequest()
		ref, err := sim.Refer(sim.DefaultEngine(), r)
		if err != nil {
			t.Fatal(err)
		}
		client := w.NewClient("client")
		defer client.Close()
		a := client.Ask(t.Context(), r, sim.Manner{})
		if why := sim.Judge(a, ref, r); len(why) > 0 || !a.Whole() {
			t.Errorf("%+v: %v", a.Err, why)
		}
		if s := w.Router.Session(a.Session); heard != "dead" || len(s.Attempts) != 3 || s.Attempts[1].Cause != "not_ready" {
			t.Errorf("the verdict was %q, attempts %+v", heard, s.Attempts)
		}
	})
}

// A run that no client has asked for is a probe, and is seen.
func TestOracle_SeesAProbeOfABusyEngine(t *testing.T) {
	bubble(t, smallWorld(), func(t *testing.T, w *sim.World) {
		probe := func() {
			r := smallRequest()
			r.Label, r.MaxTokens = 99, 1
			job, err := r.Engine()
			if err != nil {
				t.Fatal(err)
			}
			e, err := w.Node("a").Engine.Current()
			if err != nil {
				t.Fatal(err)
			}
			if err := e.Run(context.Background(), engines.Job{Request: job}, discard{}); err != nil {
				t.Error(err)
			}
		}
		probe()
		if all, busy := w.Probes(); all != 1 || busy != 0 {
			t.Errorf("%d probes, %d of a busy engine", all, busy)
		}
		several(t, w, 6, 200, probe)
		if all, busy := w.Probes(); all != 2 || busy != 1 {
			t.Errorf("%d probes, %d of a busy engine", all, busy)
		}
	})
}

// discard takes what an engine puts out.
type discard struct{}

func (discard) Prompt([]int32) error             { return nil }
func (discard) Prefilled(int, int, []byte) error { return nil }
func (discard) Token(engines.Token) error        { return nil }

func TestOracle_SeesASessionLeftBehind(t *testing.T) {
	s := &sim.Struck{Fault: sim.Fault{Kind: sim.DeviceEvacuate}, From: time.Second, To: 3 * time.Second, Hosts: []string{"a"}}
	s.Moves = []sim.Moved{{Session: "s", Movable: true, Asked: time.Second, Answered: 2 * time.Second}}
	s.Moves[0].Move.Result = "left behind"
	whole := &sim.Answer{Session: "s", Status: 200, IDs: []int32{0}, Text: "x", Finish: "length", Finishes: 1, Dones: 1, Usage: &sim.AnswerUsage{Completion: 1, Total: 1}}
	ref := &sim.Reference{IDs: []int32{0}, Text: "x", Whole: []int{1}, TextEnd: []int{1}, Finish: "length"}
	o := &sim.Outcome{Plan: sim.Plan{Nodes: 3}, Struck: []*sim.Struck{s}, Exchanges: []*sim.Exchange{{Plan: sim.SessionPlan{Request: sim.Request{Label: 1}}, Answer: whole}}}
	o.Examine(map[uint64]*sim.Reference{1: ref})
	mustFind(t, o, "left behind")
}
