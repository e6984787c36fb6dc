// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/router"
)

// The scenarios of R10 that need no tools, each in strict mode (X-Segue-Protection: off) and in protected mode (sync),
// against real processes and with real HTTP clients. Each runs once on llama.cpp (on sim where its parts are missing;
// the test says which engine it was) and then with many sessions at once on sim, so that the faults fall at every residue
// of the block size.

func TestR10_1_strict(t *testing.T)    { killInPrefill(t, strict) }
func TestR10_1_protected(t *testing.T) { killInPrefill(t, protected) }
func TestR10_2_strict(t *testing.T)    { killBeforeEvent(t, strict) }
func TestR10_2_protected(t *testing.T) { killBeforeEvent(t, protected) }
func TestR10_3_strict(t *testing.T)    { killAfterFirstDelta(t, strict) }
func TestR10_3_protected(t *testing.T) { killAfterFirstDelta(t, protected) }
func TestR10_4_strict(t *testing.T)    { cutNetwork(t, strict) }
func TestR10_4_protected(t *testing.T) { cutNetwork(t, protected) }

const outputTokens = 48

// 1: kill during prefill, before the first downstream byte: one complete answer after a retry.
func killInPrefill(t *testing.T, mode string) {
	t.Run("one", func(t *testing.T) {
		r := newRig(t, rigConfig{real: true})
		body := r.chat(longText(), 101, outputTokens)
		ref := r.reference(body)
		s := r.stream(body, mode)
		info := r.record(s, "the session is in prefill", func(i router.SessionInfo) bool { return i.Phase == "prefill" })
		victim := info.Primary
		eventually(t, "the node works on the prompt", func() error {
			if l := r.primary1(victim, info.Session); l.State != "prefill" {
				return fmt.Errorf("state %q", l.State)
			}
			return nil
		})
		engine := r.enginePID(victim)
		if l := r.primary1(victim, info.Session); l.Captured != 0 {
			t.Fatalf("prefill is over: %+v", l)
		}
		s.silent(t)
		r.signal(victim, partNode, syscall.SIGKILL)
		info = r.check(s, ref, startedOver(mode))
		if last := info.Attempts[len(info.Attempts)-1]; last.Node == victim {
			t.Errorf("retried on the killed node: %+v", info.Attempts)
		}
		r.gone(engine)
		r.idle(r.other(victim))
	})
	residues(t, storm{mode: mode, router: []string{"--set", "router.stall_timeout=5s"}, strike: strikeInPrefill, rounds: 2, hit: func(victim) expected { return startedOver(mode) }})
}

// startedOver is one complete answer from a second run of the prompt. The holder of a protected session is asked first,
// and has no boundary yet.
func startedOver(mode string) expected {
	if mode == protected {
		return expected{client.Identical, []string{retried, refusedRetried}}
	}
	return expected{client.Identical, []string{retried}}
}

// beforeDelta is one complete answer after a fault that may fall before or after the first boundary: a protected
// session is continued from the boundary that its holder has, if it has one.
func beforeDelta(mode string) expected {
	e := startedOver(mode)
	if mode == protected {
		e.kinds = append(e.kinds, takenOver)
	}
	return e
}

// 2: kill after a token is computed, before its event is sent: a retry is allowed, the client sees no fragment.
func killBeforeEvent(t *testing.T, mode string) {
	want := beforeDelta(mode)
	patient := []string{"--set", "router.stall_timeout=15s", "--set", "router.lease.ttl=20s"} // the kill interrupts, not the silence before it
	t.Run("one", func(t *testing.T) {
		r := newRig(t, rigConfig{real: true, router: patient})
		body := r.chat(longText(), 102, outputTokens)
		ref := r.reference(body)
		s := r.stream(body, mode)
		victim := r.primary(s)
		r.note("hold what %s sends", victim)
		r.wires[victim].hold(t, downstream)
		info := r.record(s, "the session is known", func(i router.SessionInfo) bool { return i.EndedAt == "" && i.Session != "" })
		eventually(t, "a token is computed", func() error {
			if l := r.primary1(victim, info.Session); l.Captured < 1 {
				return fmt.Errorf("%+v", l)
			}
			return nil
		})
		s.silent(t)
		if now := r.record(s, "the session lives", func(i router.SessionInfo) bool { return i.EndedAt == "" }); now.AcceptedTokens != 0 {
			t.Fatalf("the router has %d tokens: the events were not held", now.AcceptedTokens)
		}
		engine := r.enginePID(victim)
		r.signal(victim, partNode, syscall.SIGKILL)
		r.wires[victim].cut()
		r.check(s, ref, want)
		r.gone(engine)
		r.idle(r.other(victim))
	})
	residues(t, storm{mode: mode, router: patient, strike: strikeBeforeEvent, held: true, rounds: 2, hit: func(victim) expected { return want }})
}

// 3: kill right after the first delta. Strict: the stream ends in the error and there is no second generation.
// Protected: it continues token for token.
func killAfterFirstDelta(t *testing.T, mode string) {
	want := expected{client.Refused, []string{undisturbed}}
	if mode == protected {
		want = expected{client.Identical, []string{takenOver}}
	}
	t.Run("one", func(t *testing.T) {
		r := newRig(t, rigConfig{real: true})
		body := r.chat("Tell me about the clocks.", 103, outputTokens)
		ref := r.reference(body)
		s := r.stream(body, mode)
		victim := r.primary(s)
		other := r.other(victim)
		engine := r.enginePID(victim)
		before := r.prefilled(other)
		s.await(t, 1)
		r.signal(victim, partNode, syscall.SIGKILL)
		r.check(s, ref, want)
		if n := len(s.got.Tokens()); mode == strict && n >= outputTokens {
			t.Errorf("%d tokens: the kill came after the answer", n)
		}
		r.gone(engine)
		r.idle(other)
		if after := r.prefilled(other); after != before {
			t.Errorf("%s computed %v prompt tokens: the answer was generated a second time", other, after-before)
		}
	})
	residues(t, storm{mode: mode, strike: strikeAfterFirstDelta, rounds: 2, crowded: true, hit: func(victim) expected { return want }})
}

// 4: cut the network, process alive: the old run is fenced and, once it is reachable again, cancelled.
func cutNetwork(t *testing.T, mode string) {
	want := expected{client.Refused, []string{undisturbed}}
	if mode == protected {
		want = expected{client.Identical, []string{takenOver}}
	}
	slow, impatient := []string{"--set", "agent.engine.sim.step=20ms"}, []string{"--set", "router.stall_timeout=1500ms"}
	t.Run("after the first delta", func(t *testing.T) {
		r := newRig(t, rigConfig{real: true, agent: slow, router: impatient})
		cutOne(t, r, mode, want, true)
	})
	t.Run("before the first delta", func(t *testing.T) {
		r := newRig(t, rigConfig{agent: slow, router: impatient})
		cutOne(t, r, mode, beforeDelta(mode), false)
	})
	residues(t, storm{
		mode: mode, rounds: 1, crowded: true, tokens: cutTokens, agent: slow, router: impatient, strike: strikeByCut, cut: true, after: afterCut,
		hit: func(victim) expected { return want },
	})
}

// cutTokens make an answer that is far from its end when the router gives the cut node up.
const cutTokens = 160

// cutOne cuts the wire of the primary of one session, waits for the end of the answer, and mends the wire.
func cutOne(t *testing.T, r *rig, mode string, want expected, afterDelta bool) {
	body := r.chat(longText(), 104, cutTokens)
	ref := r.reference(body)
	s := r.stream(body, mode)
	victim := r.primary(s)
	if afterDelta {
		s.await(t, 1)
	} else {
		eventually(t, "the run begins", func() error {
			all, err := r.primaries(victim)
			for _, l := range all {
				if l.State == "queued" || l.State == "prefill" {
					return nil
				}
			}
			return fmt.Errorf("%s works on %v (%v)", victim, all, err)
		})
	}
	r.note("cut the network of %s", victim)
	r.wires[victim].hold(t, upstream, downstream)
	if !afterDelta {
		s.silent(t)
	}
	info := r.record(s, "the router gives the cut node up", func(i router.SessionInfo) bool {
		return i.EndedAt != "" || len(i.Attempts) > 1
	})
	old := r.primary1(victim, info.Session)
	r.note("given up: %s has captured %d, state %s", victim, old.Captured, old.State)
	if err := syscall.Kill(r.nodes[victim].cmd.Process.Pid, 0); err != nil {
		t.Fatalf("the cut node is dead: %v", err)
	}
	if mode == strict && old.State != "decode" && old.State != "prefill" {
		t.Errorf("the cut node's run is %q: nothing was left to fence", old.State)
	}
	if mode == strict && afterDelta && old.Captured <= len(s.wait(t).Tokens()) {
		t.Errorf("the cut node has captured %d, the client has %d: nothing was computed behind the cut", old.Captured, len(s.got.Tokens()))
	}
	if !afterDelta {
		// The node wakes while its successor works.
		s.await(t, 1)
	}
	if mode == strict {
		if now := r.primary1(victim, info.Session); now.State != "decode" {
			t.Errorf("before the wire is mended the old run is %q: it ended by itself", now.State)
		}
	}
	r.note("mend the network of %s", victim)
	r.wires[victim].release(t)
	r.ended(t, "the old run is cancelled", victim, info.Session)
	info = r.check(s, ref, want)
	if info.Attempts[0].Cause != router.CauseStall {
		t.Errorf("the first attempt ended by %q, want a stall", info.Attempts[0].Cause)
	}
	r.idle(r.ids...)
}

// primary1 is one session in the listing of the node that works on it; empty if it isn't there.
func (r *rig) primary1(node, session string) listed {
	r.t.Helper()
	all, err := r.primaries(node)
	if err != nil {
		r.t.Fatal(err)
	}
	return all[session]
}
