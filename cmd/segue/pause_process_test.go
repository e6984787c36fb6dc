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

// point is a place of the token loop at which a process is stopped.
type point struct {
	name string
	// tokens is what the client has by then; 0 is during prefill.
	tokens int
}

const pausedTokens = 60

// impatientRouter gives a silent node up soon.
func impatientRouter() []string { return []string{"--set", "router.stall_timeout=1s"} }

// Case F2: a node, an agent and an engine host are stopped at several points, their sessions go on elsewhere, and what
// they say when they wake reaches nobody.
func TestCase_F2_PausedAndWoken(t *testing.T) {
	r := newRig(t, rigConfig{agent: []string{"--set", "agent.engine.sim.step=10ms", "--set", "agent.engine.sim.prefill_token=1ms"}, router: impatientRouter()})
	body := r.chat(longText(), 201, pausedTokens)
	ref := r.reference(body)
	for _, part := range []string{partNode, partAgent, partEngine} {
		for _, p := range []point{{"prefill", 0}, {"first delta", 1}, {"middle", pausedTokens / 2}, {"last tokens", pausedTokens - 5}} {
			t.Run(part+" in "+p.name, func(t *testing.T) {
				want := expected{client.Identical, []string{takenOver}}
				if p.tokens == 0 {
					want = beforeDelta(protected)
				}
				r.pauseOne(t, part, p, body, ref, protected, want)
			})
		}
	}
	for _, p := range []point{{"prefill", 0}, {"middle", pausedTokens / 2}} {
		t.Run("strict node in "+p.name, func(t *testing.T) {
			want := expected{client.Refused, []string{undisturbed}}
			if p.tokens == 0 {
				want = startedOver(strict)
			}
			r.pauseOne(t, partNode, p, body, ref, strict, want)
		})
	}
}

// pauseOne stops a part of a session's primary at a point, waits until the session goes on elsewhere, or is over, and
// wakes it.
func (r *rig) pauseOne(t *testing.T, part string, p point, body client.Body, ref *client.Transcript, mode string, want expected) {
	r = r.within(t)
	s := r.stream(body, mode)
	victim := r.primary(s)
	engine := r.enginePID(victim)
	if p.tokens > 0 {
		s.await(t, p.tokens)
	} else {
		r.record(s, "the session is in prefill", func(i router.SessionInfo) bool { return i.Phase == "prefill" })
		s.silent(t)
	}
	pid := engine
	if part != partEngine {
		pid = r.nodes[victim].cmd.Process.Pid
	}
	target := pid
	if part == partNode {
		target = -pid // the group: agent and engine host
	}
	r.signalPID(victim, part, target, syscall.SIGSTOP)
	awake := false
	defer func() {
		if !awake { // never leave it stopped for the next one
			_ = syscall.Kill(target, syscall.SIGCONT)
		}
	}()
	info := r.record(s, "the router gives the stopped node up", func(i router.SessionInfo) bool {
		return i.EndedAt != "" || len(i.Attempts) > 1
	})
	// Of an engine the agent says that it hangs, about when the router would have noticed by itself.
	if a := info.Attempts[0]; a.Node != victim || a.Cause != router.CauseStall && (part != partEngine || a.Cause != router.CauseHung) {
		t.Errorf("the first attempt: %+v, want a stall of %s", a, victim)
	}
	if mode == protected && p.tokens < pausedTokens/2+1 {
		s.await(t, p.tokens+8) // its successor is at work
	} else {
		s.wait(t)
	}
	r.signalPID(victim, part, target, syscall.SIGCONT)
	awake = true
	eventually(t, "the old run ends", func() error {
		all, err := r.primaries(victim)
		if err != nil {
			return err
		}
		switch l := all[info.Session]; {
		case l.Epoch > 1, l.State == "", l.State == "failed":
			return nil // gone, or a later attempt at the same place
		default:
			return fmt.Errorf("%+v", l)
		}
	})
	r.check(s, ref, want)
	r.idle(r.ids...)
	r.allReady()
}

// Case F2 for the other side: the holder is stopped, the session goes on without protection and says so.
func TestCase_F2_PausedHolder(t *testing.T) {
	r := newRig(t, rigConfig{agent: []string{"--set", "agent.engine.sim.step=15ms"}})
	body := r.chat(longText(), 202, 2*pausedTokens)
	ref := r.reference(body)
	for _, part := range []string{partNode, partAgent} {
		t.Run(part, func(t *testing.T) {
			r := r.within(t)
			s := r.stream(body, protected)
			holder := r.other(r.primary(s))
			s.await(t, 10)
			target := r.nodes[holder].cmd.Process.Pid
			if part == partNode {
				target = -target
			}
			r.signalPID(holder, part, target, syscall.SIGSTOP)
			info := r.record(s, "the session says that it is unprotected", func(i router.SessionInfo) bool {
				n := len(i.ProtectionLog)
				return n > 1 && !i.ProtectionLog[n-1].Protected || i.EndedAt != ""
			})
			s.await(t, info.AcceptedTokens+8)
			r.signalPID(holder, part, target, syscall.SIGCONT)
			info = r.check(s, ref, expected{client.Identical, []string{undisturbed}})
			if l := info.ProtectionLog; len(l) < 2 || !l[0].Protected || l[1].Protected || l[1].Cause == "" || l[1].FromIndex < 1 {
				t.Errorf("protection log %+v, want protected, then not, with a cause and from an index", l)
			}
			r.idle(r.ids...)
			r.allReady()
		})
	}
}

// A router that sleeps past the leases it gave: its runs end by themselves, and when it wakes it continues them.
func TestProcess_PausedRouterLosesItsLeases(t *testing.T) {
	r := newRig(t, rigConfig{
		agent:  []string{"--set", "agent.engine.sim.step=20ms"},
		router: shortLeases(),
	})
	body := r.chat("Tell me about the clocks.", 203, leaseTokens)
	ref := r.reference(body)
	for mode, want := range map[string]expected{
		strict:    {client.Refused, []string{undisturbed}},
		protected: {client.Identical, []string{takenOver}},
	} {
		t.Run(mode, func(t *testing.T) {
			r := r.within(t)
			s := r.stream(body, mode)
			victim := r.primary(s)
			s.await(t, 5)
			info := r.record(s, "the session lives", func(i router.SessionInfo) bool { return i.EndedAt == "" })
			pid := r.router.cmd.Process.Pid
			r.signalPID("router", "router", pid, syscall.SIGSTOP)
			defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
			r.ended(t, "the run ends with its lease", victim, info.Session)
			r.signalPID("router", "router", pid, syscall.SIGCONT)
			silentEnd(t, r.check(s, ref, want))
			r.idle(r.ids...)
			r.allReady()
		})
	}
}
