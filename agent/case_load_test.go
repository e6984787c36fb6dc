// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// 64 requests a second over a link that carries a fraction of their snapshots: each one ends within its budget, none
// holds up the others, and when the load is over the next one is protected as if nothing had been.
func TestCase_A11_OverloadedLinkStallsNobody(t *testing.T) {
	const perSecond, seconds = 64, 5
	bubble(t, func(t *testing.T, n *memNet) {
		engine := tinySim()
		engine.Contexts, engine.KVBytesPerToken = 600, 1024
		config := func(c *agent.Config) { c.ReservedForTakeover = 0 }
		a := n.start(t, "a", "127.0.0.1:1001", engine, config)
		b := n.start(t, "b", "127.0.0.1:1002", engine, config)
		r := request(24)
		began := time.Now()
		ref := reference(t, a, r)
		alone := time.Since(began)
		n.throttle("a", 1<<20) // the load is 64 times 46 rows of 1 KiB a second and more
		cfg := agent.DefaultConfig()
		budget := alone + cfg.BaseTimeout + cfg.CommitTimeout + time.Second
		var mu sync.Mutex
		var worst time.Duration
		ends := map[string]int{}
		var work sync.WaitGroup
		for i := range perSecond * seconds {
			time.Sleep(time.Second / perSecond)
			require := i%4 == 3
			work.Go(func() {
				began := time.Now()
				var x transcript
				x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer, RequireProtection: require}), nil)
				took := time.Since(began)
				mu.Lock()
				defer mu.Unlock()
				worst = max(worst, took)
				switch {
				case x.err == nil:
					x.equal(t, ref)
					ends["whole"]++
					if !x.protected() {
						ends["unprotected"]++
					}
				case require:
					wantReason(t, x.err, seguev1.Reason_REASON_UNPROTECTED)
					ends["refused"]++
				default:
					t.Errorf("request %d: %v", i, x.err)
				}
			})
		}
		work.Wait()
		t.Logf("%v; the longest took %v, alone %v", ends, worst, alone)
		if worst > budget {
			t.Errorf("a request took %v, budget %v", worst, budget)
		}
		if ends["unprotected"] == 0 || ends["refused"] == 0 {
			t.Fatalf("%v: the link wasn't overloaded", ends)
		}
		time.Sleep(5 * time.Second) // virtual: what is on its way arrives
		began = time.Now()
		id := newID(t)
		var x transcript
		x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), nil)
		x.equal(t, ref)
		if d := time.Since(began); d > alone+500*time.Millisecond || len(x.protections) != 1 || !x.protected() {
			t.Errorf("after the load: %v, protections %v", d, x.protections)
		}
	})
}

// The primary is only slow when it is replaced: it has one run of the session less, the holder one more, and a second
// later nothing of the old run is booked anywhere.
func TestCase_C6_SlowPrimaryIsFreed(t *testing.T) {
	for _, word := range []bool{true, false} {
		pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
			r, id := request(400), newID(t)
			recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer})
			var x, y transcript
			x.read(recv, tokens(10))
			n.delay("a", 300*time.Millisecond) // slow, not dead
			y = transcript{prompt: x.prompt, tokens: x.tokens[:10:10]}
			y.read(takeover(t, t.Context(), b, y.order(id, 2, r, modeOff)), tokens(12))
			if a.describe(t).GetContextsUsed() != 1 || a.host.facts(t).Running != 1 {
				t.Fatal("the old run was over before anything was done about it")
			}
			if word {
				cancelRun(t, a, id, 1)
			}
			time.Sleep(time.Second) // virtual
			a.empty(t)
			if v := a.view(t, id, "primary"); v != nil && v.GetState() != "failed" {
				t.Errorf("the old owner says %v", v)
			}
			if d := b.describe(t); d.GetContextsUsed() != 1 || b.view(t, id, "primary").GetEpoch() != 2 || b.view(t, id, "holder") != nil {
				t.Errorf("the new owner: %v, %v", d, b.sessions(t))
			}
			x.read(recv, nil)
			want := seguev1.Reason_REASON_FENCED
			if word {
				want = seguev1.Reason_REASON_CANCELLED
			}
			wantReason(t, x.err, want)
			cancelRun(t, b, id, 2)
		})
	}
}

// Clients leave in any phase: the engines' runs are over within a second, and what was theirs is free.
func TestCase_C16_ClientLeavesAndTheEngineStops(t *testing.T) {
	slow := tinySim()
	slow.PrefillToken, slow.Contexts = 20*time.Millisecond, 32 // 320 ms a chunk
	bubble(t, func(t *testing.T, n *memNet) {
		a := n.start(t, "a", "127.0.0.1:1001", slow, nil)
		b := n.start(t, "b", "127.0.0.1:1002", slow, nil)
		leave := func(phase string, until func(*transcript) bool) {
			all := make([][]byte, 20)
			ctx, cancel := context.WithCancel(t.Context())
			streams := make([]stream, len(all))
			for i := range all {
				all[i] = newID(t)
				streams[i] = generate(t, ctx, a, &seguev1.GenerateRequest{Session: all[i], Epoch: 1, Request: longPrompt(400), Protection: modeSync, Holder: b.peer})
			}
			for _, recv := range streams {
				new(transcript).read(recv, until)
			}
			if got := a.host.facts(t).Running; got != len(all) {
				t.Fatalf("in %s: %d of %d run", phase, got, len(all))
			}
			cancel()
			for _, id := range all {
				cancelRun(t, a, id, 1)
				cancelRun(t, b, id, 1)
			}
			time.Sleep(time.Second) // virtual
			a.empty(t)
			b.empty(t)
		}
		leave("prefill", func(x *transcript) bool { return x.progress.GetPrefilledTokens() > 0 })
		leave("decode", tokens(2))
	})
}

// A client that leaves without anyone telling the engine's node: the run is over when the grace of an orphan is, and an
// engine that doesn't stop keeps its context booked, for all to see.
func TestCase_C16_WorkThatDoesNotStopIsVisible(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		engine := tinySim()
		a := n.start(t, "a", "127.0.0.1:1001", engine, nil)
		letGo := a.host.hold("hang")
		id := newID(t)
		ctx, cancel := context.WithCancel(t.Context())
		recv := generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: request(40), Protection: modeOff})
		synctest.Wait()
		cancel()
		_, _ = recv()
		time.Sleep(3 * time.Second) // virtual: more than the grace
		if v := a.view(t, id, "primary"); v.GetState() != "failed" || a.describe(t).GetContextsUsed() != 1 {
			t.Errorf("an engine that goes on for nobody: %v, %d contexts", v, a.describe(t).GetContextsUsed())
		}
		letGo()
		time.Sleep(time.Second) // virtual
		a.empty(t)
	})
}
