// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// patient has timeouts that a test doesn't run into.
func patient(c *agent.Config) { c.CommitTimeout, c.BaseTimeout = time.Minute, time.Minute }

// INVARIANT: under sync no token leaves before its boundary is committed, and the state it leaves under is
// announced before it.
func TestSync_NoTokenBeforeItsBoundary(t *testing.T) {
	for _, lag := range []time.Duration{0, time.Millisecond, 23 * time.Millisecond} {
		pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
			n.delay("a", lag)
			id, r := newID(t), request(60)
			ref := reference(t, b, r)
			var x transcript
			x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), func(x *transcript) bool {
				if len(x.tokens) > 0 && !x.protected() {
					t.Fatalf("lag %v: %d tokens, announced %v", lag, len(x.tokens), x.protections)
				}
				if got := b.view(t, id, "holder").GetCommitted(); len(x.tokens) > int(got) {
					t.Fatalf("lag %v: %d tokens left, the holder has committed %d", lag, len(x.tokens), got)
				}
				return false
			})
			x.equal(t, ref)
			if len(x.protections) != 1 {
				t.Errorf("lag %v: protections %v", lag, x.protections)
			}
		})
	}
}

// A token leaves as soon as it may: with its step, or with the commit of its boundary.
func TestGenerate_TokensLeaveAtOnce(t *testing.T) {
	for _, mode := range []seguev1.ProtectionMode{modeOff, modeAsync, modeSync} {
		pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
			n.delay("a", 23*time.Millisecond)
			recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(100), Protection: mode, Holder: b.peer})
			var x transcript
			x.read(recv, tokens(20))
			step := tinySim().Step
			for began, i := time.Now(), 1; x.finish == nil; i++ {
				x.read(recv, tokens(len(x.tokens)+1))
				if late := time.Since(began) - time.Duration(i)*step; x.finish == nil && (late > time.Millisecond || late < -time.Millisecond) || late > step {
					t.Fatalf("mode %v: token %d is %v late", mode, len(x.tokens)-1, late)
				}
			}
		})
	}
}

// The holder's commits come later than the engine's next tokens: the session is protected again all the same.
func TestSync_ProtectsAgainOverASlowLink(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		a := n.start(t, "a", "127.0.0.1:1001", tinySim(), nil)
		b := n.start(t, "b", "127.0.0.1:1002", tinySim(), nil)
		c := n.start(t, "c", "127.0.0.1:1003", tinySim(), nil)
		n.delay("b", 30*time.Millisecond) // six steps
		r, id := request(400), newID(t)
		ref := reference(t, c, r)
		ctx, cancel := context.WithCancel(t.Context())
		var x transcript
		x.read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), tokens(20))
		cancel()
		cancelRun(t, a, id, 1)
		o := x.order(id, 2, r, modeSync)
		o.Holder = c.peer
		x.protections = nil
		began := time.Now()
		recv := takeover(t, t.Context(), b, o)
		x.read(recv, (*transcript).protected)
		if d := time.Since(began); d > 500*time.Millisecond || x.err != nil {
			t.Errorf("protected after %v, error %v", d, x.err)
		}
		if p := x.protections; len(p) != 2 || p[0].GetCause() != "" || p[0].GetHolder() != "c" || p[0].GetFromIndex() != 20 || int(p[1].GetFromIndex()) != len(x.tokens) {
			t.Errorf("protections %v with %d tokens", p, len(x.tokens))
		}
		x.read(recv, nil)
		x.equal(t, ref)
		if len(x.protections) != 2 {
			t.Errorf("protections %v", x.protections)
		}
		cancelRun(t, b, id, 2)
	})
}

// The engine runs ahead of a silent holder by a window, stops, and goes on when the holder does.
func TestWindow_StopsTheEngineUntilTheHolderCommits(t *testing.T) {
	for _, mode := range []seguev1.ProtectionMode{modeSync, modeAsync} {
		for _, window := range []uint32{1, 8} {
			pair(t, patient, func(t *testing.T, n *memNet, a, b *testNode) {
				id, r := newID(t), request(100)
				ref := reference(t, b, r)
				recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: mode, Holder: b.peer, Window: window})
				var x transcript
				x.read(recv, tokens(20))
				n.freeze("a")
				time.Sleep(time.Second) // virtual
				steps, v := a.host.facts(t).DecodeSteps, a.view(t, id, "primary")
				if ahead := v.GetCaptured() - v.GetCommitted(); ahead != window {
					t.Errorf("window %d: %d ahead", window, ahead)
				}
				x.read(recv, func(x *transcript) bool { return x.progress.GetWaitsFor() == "window" })
				time.Sleep(3 * time.Second) // virtual
				if got := a.host.facts(t).DecodeSteps; got != steps {
					t.Errorf("window %d: the engine made %d steps while it waited", window, got-steps)
				}
				want := int(v.GetCommitted())
				if mode == modeAsync {
					want = int(v.GetCaptured())
				}
				if len(x.tokens) != want {
					t.Errorf("mode %v, window %d: %d tokens left, want %d", mode, window, len(x.tokens), want)
				}
				n.thaw()
				x.read(recv, nil)
				x.equal(t, ref)
			})
		}
	}
}

// A session that must be protected waits for its base and ends when it can't be protected; nothing that isn't
// committed leaves.
func TestRequireProtection_EndsWithTheHolder(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		id, r := newID(t), request(400)
		recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer, RequireProtection: true})
		var x transcript
		x.read(recv, tokens(20))
		n.freeze("a")
		x.read(recv, nil)
		wantReason(t, x.err, seguev1.Reason_REASON_UNPROTECTED)
		if x.protected() {
			t.Error("the loss wasn't announced")
		}
		if got := b.view(t, id, "holder").GetCommitted(); len(x.tokens) > int(got) {
			t.Errorf("%d tokens left, the holder has %d", len(x.tokens), got)
		}
		_, err := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: modeSync, RequireProtection: true})()
		wantReason(t, err, seguev1.Reason_REASON_UNPROTECTED)
	})
}

// A takeover of a session that must be protected waits for the new holder.
func TestRequireProtection_SurvivesATakeover(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		a := n.start(t, "a", "127.0.0.1:1001", tinySim(), nil)
		b := n.start(t, "b", "127.0.0.1:1002", tinySim(), nil)
		c := n.start(t, "c", "127.0.0.1:1003", tinySim(), nil)
		id, r := newID(t), request(60)
		ref := reference(t, c, r)
		ctx, cancel := context.WithCancel(t.Context())
		var x transcript
		x.read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer, RequireProtection: true}), tokens(20))
		cancel()
		a.stop()
		o := x.order(id, 2, r, modeSync)
		o.Holder, o.RequireProtection = c.peer, true
		x.protections = nil
		x.read(takeover(t, t.Context(), b, o), func(x *transcript) bool {
			if len(x.tokens) > 20 && !x.protected() {
				t.Fatalf("token %d left without protection: %v", len(x.tokens)-1, x.protections)
			}
			return false
		})
		x.equal(t, ref)
		if len(x.protections) != 1 {
			t.Errorf("protections %v", x.protections)
		}
	})
}

// What a fenced primary hands out at the end was committed by its holder before the fence.
func TestFence_NothingNewLeaves(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		n.delay("a", 20*time.Millisecond)
		id, r := newID(t), request(400)
		recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer})
		var x, y transcript
		x.read(recv, tokens(30))
		y.read(takeover(t, t.Context(), b, x.order(id, 2, r, modeOff)), tokens(1))
		x.read(recv, nil)
		wantReason(t, x.err, seguev1.Reason_REASON_FENCED)
		if c := int(y.seam.GetBoundary()); len(x.tokens) > c {
			t.Errorf("the fenced primary handed out %d tokens, its holder continued at %d", len(x.tokens), c)
		}
		if len(x.protections) != 1 {
			t.Errorf("protections %v", x.protections)
		}
		synctest.Wait()
		if s := a.view(t, id, "primary"); s.GetState() != "" && s.GetState() != "failed" {
			t.Errorf("fenced session is %v", s)
		}
	})
}
