// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/transfer"
)

func TestTakeover_ContinuesTokenForToken(t *testing.T) {
	for _, mode := range []seguev1.ProtectionMode{modeSync, modeAsync} {
		for _, cut := range []int{1, 2, 15, 16, 17, 39} {
			pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
				r := request(40)
				ref := reference(t, b, r)
				id := newID(t)
				ctx, cancel := context.WithCancel(t.Context())
				var x transcript
				x.read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: mode, Holder: b.peer}), tokens(cut))
				if x.err != nil {
					t.Fatalf("mode %v, cut %d: %v", mode, cut, x.err)
				}
				// Under async the holder may be behind: it has caught up once nothing moves any more.
				synctest.Wait()
				a.host.kill(nil)
				cancel()
				rest := takeover(t, t.Context(), b, x.order(id, 2, r, mode))
				x.read(rest, nil)
				if x.err != nil {
					t.Fatalf("mode %v, cut %d: %v", mode, cut, x.err)
				}
				if diff := cmp.Diff(ref.ids(), x.ids()); diff != "" {
					t.Errorf("mode %v, cut %d: ids differ (-reference +continued):\n%s", mode, cut, diff)
				}
				if ref.text() != x.text() {
					t.Errorf("mode %v, cut %d: text %q, want %q", mode, cut, x.text(), ref.text())
				}
				if x.seam.GetBoundary() < uint32(cut) || x.finish.GetReason() != ref.finish.GetReason() || x.finish.GetTokens() != ref.finish.GetTokens() {
					t.Errorf("mode %v, cut %d: seam %v, finish %v, want finish %v", mode, cut, x.seam, x.finish, ref.finish)
				}
			})
		}
	}
}

func TestTakeover_Refusals(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		r := request(60)
		start := func(mode seguev1.ProtectionMode) ([]byte, *transcript) {
			id := newID(t)
			ctx, cancel := context.WithCancel(t.Context())
			var x transcript
			x.read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: mode, Holder: b.peer}), tokens(5))
			cancel()
			synctest.Wait()
			return id, &x
		}
		refuse := func(name string, want seguev1.Reason, o *seguev1.TakeoverRequest) {
			t.Helper()
			_, err := takeover(t, t.Context(), b, o)()
			r, _ := transfer.RefusalOf(err)
			if r.GetReason() != want {
				t.Errorf("%s: got %v, want %v", name, err, want)
			}
		}
		id, x := start(modeSync)
		o := x.order(newID(t), 2, r, modeSync)
		refuse("never held", seguev1.Reason_REASON_UNKNOWN_SESSION, o)

		o = x.order(id, 2, r, modeSync)
		o.Delivered = 1000
		refuse("not covered", seguev1.Reason_REASON_NOT_COVERED, o)

		o = x.order(id, 3, r, modeSync)
		o.PromptDigest = make([]byte, 16)
		refuse("other prompt", seguev1.Reason_REASON_PROMPT_MISMATCH, o)

		o = x.order(id, 4, r, modeSync)
		o.OutputDigest = make([]byte, 16)
		refuse("other output", seguev1.Reason_REASON_DIGEST_MISMATCH, o)

		o = x.order(id, 5, request(61), modeSync)
		refuse("other request", seguev1.Reason_REASON_PROMPT_MISMATCH, o)

		o = x.order(id, 5, r, modeSync)
		refuse("epoch not above", seguev1.Reason_REASON_FENCED, o)

		o = x.order(id, 6, r, modeSync)
		o.TextEnd++
		st := takeover(t, t.Context(), b, o)
		var y transcript
		y.read(st, nil)
		wantReason(t, y.err, seguev1.Reason_REASON_DIGEST_MISMATCH)
		if len(y.tokens) > 0 {
			t.Errorf("tokens were emitted though the text end differs: %v", y.tokens)
		}
	})
}

func TestTakeover_OtherFingerprintIsRefusedWithTheField(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		other := tinySim()
		other.Threads = 2
		a := n.start(t, "a", "127.0.0.1:1001", tinySim(), nil)
		b := n.start(t, "b", "127.0.0.1:1002", other, nil)
		r, id := request(30), newID(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var x transcript
		x.read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), tokens(5))
		if len(x.protections) == 0 || x.protections[0].GetProtected() || x.protections[0].GetCause() != "fingerprint_mismatch" {
			t.Errorf("protections %v, want unprotected by fingerprint_mismatch", x.protections)
		}
		_, err := takeover(t, t.Context(), b, x.order(id, 2, r, modeSync))()
		wantReason(t, err, seguev1.Reason_REASON_FINGERPRINT_MISMATCH)
		ref, _ := transfer.RefusalOf(err)
		if want := "threads"; !strings.Contains(ref.GetDetail(), want) {
			t.Errorf("detail %q doesn't name %q", ref.GetDetail(), want)
		}
	})
}

// A→B→A: each takeover continues the one before it, with the next holder in place.
func TestTakeover_OfATakeover(t *testing.T) {
	for _, mode := range []seguev1.ProtectionMode{modeSync, modeAsync} {
		for _, cuts := range [][2]int{{1, 2}, {5, 5}, {16, 17}, {31, 60}} {
			pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
				r, id := request(100), newID(t)
				ref := reference(t, b, r)
				ctx, cancel := context.WithCancel(t.Context())
				var x transcript
				x.read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: mode, Holder: b.peer}), tokens(cuts[0]))
				synctest.Wait()
				cancel() // the run on a is an orphan when the takeover asks a to hold

				o := x.order(id, 2, r, mode)
				o.Holder = a.peer
				x.protections = nil
				ctx, cancel = context.WithCancel(t.Context())
				recv := takeover(t, ctx, b, o)
				x.read(recv, tokens(cuts[1]))
				x.read(recv, (*transcript).protected)
				synctest.Wait()
				cancel()

				before := a.host.facts(t)
				x.protections = nil
				x.read(takeover(t, t.Context(), a, x.order(id, 3, r, mode)), nil)
				x.equal(t, ref)
				f := a.host.facts(t)
				if f.PrefillTokens != before.PrefillTokens || f.ReplayedDecodeSteps != 0 || f.RestoredRows == before.RestoredRows {
					t.Errorf("mode %v, cuts %v: engine facts %+v, before the takeover %+v", mode, cuts, f, before)
				}
				cancelRun(t, b, id, 3)
			})
		}
	}
}

// The finish is in the record: the holder hands it out without computing or loading anything.
func TestTakeover_OfAFinishedRun(t *testing.T) {
	for _, d := range []int{0, 1, 15, 19, 20} {
		pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
			r, id := request(20), newID(t)
			var ref transcript
			ref.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), nil)
			x := transcript{prompt: ref.prompt, tokens: ref.tokens[:d:d]}
			o := x.order(id, 2, r, modeSync)
			o.Holder = a.peer
			before := b.host.facts(t)
			x.read(takeover(t, t.Context(), b, o), nil)
			x.equal(t, &ref)
			if diff := cmp.Diff(before, b.host.facts(t)); diff != "" {
				t.Errorf("d = %d: the engine worked (-before +after):\n%s", d, diff)
			}
			if x.seam.GetBoundary() != 20 {
				t.Errorf("d = %d: seam %v", d, x.seam)
			}
		})
	}
}

// The session's own earlier run has the last context: the takeover gets it as soon as the engine has stopped.
func TestTakeover_WaitsForItsOwnEarlierRun(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		one := tinySim()
		one.Contexts = 1
		a := n.start(t, "a", "127.0.0.1:1001", one, func(c *agent.Config) { c.ReservedForTakeover = 0 })
		b := n.start(t, "b", "127.0.0.1:1002", tinySim(), nil)
		r, id := request(200), newID(t)
		ref := reference(t, b, r)
		// Epoch 1 runs on a and nobody has told it that it is over, epoch 2 on b with a as its holder.
		var old, x transcript
		oldRecv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeOff})
		old.read(oldRecv, tokens(3))
		ctx, cancel := context.WithCancel(t.Context())
		x.read(generate(t, ctx, b, &seguev1.GenerateRequest{Session: id, Epoch: 2, Request: r, Protection: modeSync, Holder: a.peer}), tokens(10))
		cancel()
		if got := a.describe(t).GetContextsUsed(); got != 1 {
			t.Fatalf("%d contexts in use on a", got)
		}
		x.read(takeover(t, t.Context(), a, x.order(id, 3, r, modeOff)), nil)
		x.equal(t, ref)
		old.read(oldRecv, nil)
		wantReason(t, old.err, seguev1.Reason_REASON_FENCED)
		cancelRun(t, b, id, 3)
	})
}

// The primary comes back under the same address as another process: it may hold, and take over again.
func TestTakeover_PrimaryRestarts(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		r, id := request(120), newID(t)
		ref := reference(t, b, r)
		var x transcript
		x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), tokens(20))
		boot := a.describe(t).GetBootId()
		a.stop()
		again := n.start(t, "a", a.peer.GetAddr(), tinySim(), nil)
		if string(again.describe(t).GetBootId()) == string(boot) {
			t.Fatal("two process lives have one boot id")
		}
		_, err := takeover(t, t.Context(), again, x.order(id, 2, r, modeSync))()
		wantReason(t, err, seguev1.Reason_REASON_UNKNOWN_SESSION)
		o := x.order(id, 3, r, modeSync)
		o.Holder = again.peer
		x.protections = nil
		ctx, cancel := context.WithCancel(t.Context())
		recv := takeover(t, ctx, b, o)
		x.read(recv, (*transcript).protected)
		x.read(recv, tokens(len(x.tokens)+10))
		cancel()
		b.stop()
		x.read(takeover(t, t.Context(), again, x.order(id, 4, r, modeOff)), nil)
		x.equal(t, ref)
	})
}

// The holder's engine came back as another one: what is held can't be loaded into it, and stays until somebody
// gives it up or the engine is again what it was.
func TestTakeover_EngineChanged(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		r, id := request(100), newID(t)
		ref := reference(t, a, r)
		var x transcript
		x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), tokens(10))
		cancelRun(t, a, id, 1)
		changed := tinySim()
		changed.Threads = 3
		b.host.replace(t, changed)
		_, err := takeover(t, t.Context(), b, x.order(id, 2, r, modeSync))()
		wantReason(t, err, seguev1.Reason_REASON_FINGERPRINT_MISMATCH)
		if v := b.view(t, id, "holder"); v.GetCommitted() < 10 {
			t.Fatalf("the refusal lost what was held: %v", v)
		}
		b.host.replace(t, tinySim())
		x.read(takeover(t, t.Context(), b, x.order(id, 3, r, modeSync)), nil)
		x.equal(t, ref)
	})
}
