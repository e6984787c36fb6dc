// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/snapshot"
)

// storm is one fault that hits many sessions on sim engines at once, each at another place of its blocks.
type storm struct {
	mode          string
	tokens        int // per answer; 0 is outputTokens
	agent, router []string
	// rounds is how often it is done. The last one hits an engine host, the others a node.
	rounds int
	// strike waits for the moment, does the fault to a node, and tells the sessions that it hit.
	strike func(t *testing.T, s *sky, node, part string) []victim
	// after, if set, undoes the fault; it is called when the router has given up what was hit.
	after func(t *testing.T, s *sky, node string, hit []victim)
	// crowded: all sessions but one run on the node that is hit, for faults after which none starts over; else half of them.
	crowded bool
	// held: nothing that the node says arrives, from before the first session on.
	held bool
	// cut: the fault is where the stream was cut, not where the state that continued it ends, which goes on growing.
	cut bool
	// hit is what must become of a session that was hit.
	hit func(victim) expected
}

// victim is a session that was hit. at is the number of tokens in its state at the fault, or -1 if that is known only
// from the record or the answer.
type victim struct {
	stream *stream
	info   router.SessionInfo
	at     int
}

// sky is a storm's cluster with its sessions.
type sky struct {
	*rig
	mode    string
	streams []*stream
	// expect are the undisturbed answers to the streams.
	expect []*client.Transcript
	// seen counts the faults so far by residue of the block size.
	seen map[int]int
	// ahead is how many tokens the fault is expected to find more than the clients have.
	ahead int
}

const (
	stormSessions = 32
	stormPrompt   = 64
	lonePrompt    = 32
	loneTries     = 24
)

// residues repeats a storm and then strikes single sessions, until faults fell at every residue of the block size.
func residues(t *testing.T, s storm) {
	t.Run("every residue", func(t *testing.T) {
		slowTest(t)
		seen := map[int]int{}
		for round := range s.rounds {
			t.Run(fmt.Sprintf("round %d", round), func(t *testing.T) { s.run(t, round, seen) })
		}
		if t.Failed() {
			return
		}
		t.Logf("engine: sim; faults by residue of the block size: %v", seen)
		if len(seen) < snapshot.BlockRows {
			t.Errorf("only the residues %v", seen)
		}
	})
}

func (s storm) run(t *testing.T, round int, seen map[int]int) {
	last := round == s.rounds-1
	node, part := []string{"a", "b"}[round%2], partNode
	if last {
		part = partEngine // its agent starts another one, and the cluster is whole again
	}
	flags := append([]string{
		"--contexts", fmt.Sprint(2 * stormSessions), "--reserved", fmt.Sprint(stormSessions / 2),
		"--set", "agent.engine.sim.step=15ms", "--set", "agent.engine.sim.prefill_token=10ms", "--set", "agent.engine.sim.chunk=8",
	}, s.agent...)
	if s.tokens == 0 {
		s.tokens = outputTokens
	}
	c := rigConfig{agent: flags, router: s.router}
	step := 2
	if s.crowded {
		other := map[string]string{"a": "b", "b": "a"}[node]
		c.node, step = map[string][]string{other: {"--reserved", fmt.Sprint(2*stormSessions - 1)}}, 1
	}
	k := &sky{rig: newRig(t, c), mode: s.mode, seen: seen}
	k.gather(s.tokens, step, func() {
		if s.held {
			k.hold(t, node)
		}
	})
	s.hurl(t, k, node, part)
	if last {
		s.hurlAtOthers(t, k)
	}
}

// hurlAtOthers strikes one session at a time at the residues that no fault fell at.
func (s storm) hurlAtOthers(t *testing.T, k *sky) {
	body := k.prompt(stormSessions, lonePrompt, s.tokens)
	lone := &sky{rig: k.rig, mode: k.mode, seen: k.seen, expect: k.references([]client.Body{body})}
	for try := range loneTries {
		lone.ahead = try % 2
		if len(k.seen) == snapshot.BlockRows || t.Failed() {
			return
		}
		k.allReady()
		x := lone.stream(body, lone.mode)
		lone.streams = []*stream{x}
		s.hurl(t, lone, lone.primary(x), partEngine)
	}
}

// hurl does the fault and judges every stream.
func (s storm) hurl(t *testing.T, k *sky, node, part string) {
	hit := s.strike(t, k, node, part)
	if len(hit) == 0 {
		t.Fatal("nothing was hit")
	}
	if s.after != nil {
		for _, v := range hit {
			k.record(v.stream, "the session is given up", func(i router.SessionInfo) bool { return i.EndedAt != "" || len(i.Attempts) > 1 })
		}
		s.after(t, k, node, hit)
	}
	byStream := map[*stream]victim{}
	for _, v := range hit {
		byStream[v.stream] = v
	}
	for i, x := range k.streams {
		v, was := byStream[x]
		if !was {
			k.check(x, k.expect[i], expected{client.Identical, []string{undisturbed}})
			continue
		}
		info := k.check(x, k.expect[i], s.hit(v))
		k.seen[(len(x.body.PromptIDs)+s.place(v, info))%snapshot.BlockRows]++
	}
	if part == partNode && s.after == nil {
		k.idle(k.other(node))
	} else {
		k.idle(k.ids...)
	}
}

// place is the number of output tokens at the fault.
func (s storm) place(v victim, info router.SessionInfo) int {
	switch {
	case v.at >= 0:
		return v.at
	case len(info.Seams) > 0 && s.cut:
		return info.Seams[0].Delivered
	case len(info.Seams) > 0:
		return info.Seams[0].Index
	}
	return len(v.stream.got.Tokens())
}

// prompt is a request of so many prompt tokens, none of which another number's has.
func (k *sky) prompt(number, length, tokens int) client.Body {
	ids := make([]int32, length)
	for j := range ids {
		ids[j] = int32(1000*number + j)
	}
	return client.Body{
		Model: k.model, PromptIDs: ids, MaxTokens: tokens, MinTokens: tokens, IgnoreEOS: true,
		Seed: uint64(1 + number), Temperature: 0.8, TopP: 0.95,
	}
}

// gather takes the references of all sessions and then starts them one by one, the longest prompts first, step of each
// length. It calls before in between, and returns when all are placed.
func (k *sky) gather(tokens, step int, before func()) {
	var bodies []client.Body
	for i := range stormSessions {
		bodies = append(bodies, k.prompt(i, stormPrompt+(stormSessions-1-i)/step, tokens))
	}
	k.expect = k.references(bodies)
	k.idle(k.ids...)
	before()
	for _, body := range bodies {
		s := k.stream(body, k.mode)
		k.streams = append(k.streams, s)
		k.record(s, "the session is placed", func(i router.SessionInfo) bool { return i.EndedAt == "" && i.Primary != "" })
	}
}

// on are the sessions that run on a node.
func (k *sky) on(t *testing.T, node string) []victim {
	t.Helper()
	all, err := k.records()
	if err != nil {
		t.Fatal(err)
	}
	var out []victim
	for _, s := range k.streams {
		if i := all[s.body.Seed]; i.Primary == node && i.EndedAt == "" {
			out = append(out, victim{stream: s, info: i, at: -1})
		}
	}
	return out
}

// aims reports whether the next fault should be at a place where none fell: most places are done.
func (k *sky) aims() bool {
	return len(k.seen) > snapshot.BlockRows/2 && len(k.seen) < snapshot.BlockRows
}

// decoding returns the sessions on a node once each client has a token and, where most residues were hit before, one of
// the sessions is about to reach one of the others.
func (k *sky) decoding(t *testing.T, node string) []victim {
	t.Helper()
	hit := k.on(t, node)
	for _, v := range hit {
		v.stream.await(t, 1)
	}
	for k.aims() && !slices.ContainsFunc(hit, func(v victim) bool {
		at := len(v.stream.body.PromptIDs) + int(v.stream.tokens.Load()) + k.ahead
		return k.seen[at%snapshot.BlockRows] == 0
	}) {
		if slices.ContainsFunc(hit, func(v victim) bool { return v.stream.ended() }) {
			break
		}
		time.Sleep(time.Millisecond) // a poll of other goroutines' counters
	}
	return hit
}

func strikeInPrefill(t *testing.T, k *sky, node, part string) []victim {
	var hit []victim
	eventually(t, "all prompts are worked on", func() error {
		hit = k.on(t, node)
		listing, err := k.primaries(node)
		if err != nil {
			return err
		}
		for i, v := range hit {
			l := listing[v.info.Session]
			if l.Captured > 0 {
				t.Fatalf("prefill of seed %d is over", v.stream.body.Seed)
			}
			if l.State != "prefill" {
				return fmt.Errorf("seed %d is in state %q", v.stream.body.Seed, l.State)
			}
			hit[i].at = 0
		}
		return nil
	})
	k.signal(node, part, syscall.SIGKILL)
	for _, v := range hit {
		v.stream.silent(t)
	}
	return hit
}

// hold keeps what a node says from the router.
func (k *sky) hold(t *testing.T, node string) {
	t.Helper()
	k.note("hold what %s sends", node)
	k.wires[node].hold(t, downstream)
}

func strikeBeforeEvent(t *testing.T, k *sky, node, part string) []victim {
	if len(k.wires[node].held) == 0 {
		k.hold(t, node)
	}
	hit := k.on(t, node)
	eventually(t, "each has computed a token", func() error {
		listing, err := k.primaries(node)
		if err != nil {
			return err
		}
		aimed := !k.aims()
		for i, v := range hit {
			l := listing[v.info.Session]
			if l.Captured < 1 {
				return fmt.Errorf("seed %d: %+v", v.stream.body.Seed, l)
			}
			hit[i].at = l.Captured
			aimed = aimed || k.seen[(len(v.stream.body.PromptIDs)+l.Captured)%snapshot.BlockRows] == 0
		}
		if !aimed {
			return errors.New("none is at a place where no fault fell")
		}
		return nil
	})
	for _, v := range hit {
		v.stream.silent(t)
	}
	k.signal(node, part, syscall.SIGKILL)
	if part == partNode {
		k.wires[node].cut()
	} else {
		k.wires[node].release(t)
	}
	return hit
}

func strikeAfterFirstDelta(t *testing.T, k *sky, node, part string) []victim {
	hit := k.decoding(t, node)
	k.signal(node, part, syscall.SIGKILL)
	return hit
}

func strikeByCut(t *testing.T, k *sky, node, _ string) []victim {
	hit := k.decoding(t, node)
	k.note("cut the network of %s", node)
	k.wires[node].hold(t, upstream, downstream)
	return hit
}

// afterCut mends the wire. In strict mode nobody could tell the old runs: they are still going when it is mended.
func afterCut(t *testing.T, k *sky, node string, hit []victim) {
	listing, err := k.primaries(node)
	if err != nil {
		t.Fatal(err)
	}
	running := 0
	for _, v := range hit {
		if l := listing[v.info.Session]; l.State == "decode" {
			running++
		}
	}
	k.note("mend the network of %s, %d old runs go on", node, running)
	if k.mode == strict && running == 0 {
		t.Error("no old run goes on behind the cut: nothing was left to fence")
	}
	k.wires[node].release(t)
}
