// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"fmt"
	"testing"
	"time"
	"unicode/utf8"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// The engine dies after k deltas, for every k: no delta comes again, and none is missing.
func TestCase_C2_EngineDiesAfterEveryDelta(t *testing.T) {
	const total = 40
	for _, mode := range []seguev1.ProtectionMode{modeSync, modeAsync} {
		for k := 1; k <= total; k++ {
			if k == total && mode == modeAsync {
				continue // the finish has left with it
			}
			pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
				r, id := request(total), newID(t)
				ref := reference(t, b, r)
				recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: mode, Holder: b.peer})
				var x transcript
				x.read(recv, tokens(k))
				if x.err != nil || x.finish != nil {
					t.Fatalf("mode %v, k = %d: over too early: %v", mode, k, x.err)
				}
				a.host.kill(nil)
				y := transcript{prompt: x.prompt, tokens: x.tokens[:k:k]}
				y.read(takeover(t, t.Context(), b, y.order(id, 2, r, mode)), nil)
				if y.err != nil {
					t.Fatalf("mode %v, k = %d: %v", mode, k, y.err)
				}
				if got := y.tokens[k:]; len(got) > 0 && int(got[0].GetIndex()) != k {
					t.Errorf("mode %v, k = %d: goes on at %d", mode, k, got[0].GetIndex())
				}
				y.equal(t, ref)
				x.read(recv, nil)
				if k < total && x.err == nil {
					t.Errorf("mode %v, k = %d: the engine's death wasn't noticed", mode, k)
				}
				cancelRun(t, a, id, 2)
			})
		}
	}
}

// A session goes to and fro between two engines within milliseconds, each time before the run before last has been told
// of its end: every attempt is another one, and what the old ones still say reaches nobody.
func TestCase_C7_BackToTheSameEngineAtOnce(t *testing.T) {
	for _, pieces := range []int{1, 3} {
		pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
			r, id := request(80), newID(t)
			ref := reference(t, b, r)
			nodes := []*testNode{a, b}
			recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer})
			var old []stream
			var x transcript
			began, hops, fenced := time.Now(), 0, 0
			for epoch := uint64(2); ; epoch++ {
				at := len(x.tokens) + pieces
				x.read(recv, func(x *transcript) bool { return len(x.tokens) >= at && x.protected() })
				if x.finish != nil {
					break
				}
				if x.err != nil {
					t.Fatalf("epoch %d: %v", epoch-1, x.err)
				}
				old = append(old, recv)
				next := nodes[(epoch+1)%2]
				o := x.order(id, epoch, r, modeSync)
				o.Holder = nodes[epoch%2].peer
				x.protections = nil
				recv = takeover(t, t.Context(), next, o)
				hops++
			}
			x.equal(t, ref)
			if hops < 8 {
				t.Fatalf("%d hops", hops)
			}
			if d := time.Since(began); d > time.Duration(hops)*100*time.Millisecond {
				t.Errorf("%d hops took %v", hops, d)
			}
			for i, recv := range old {
				var y transcript
				y.read(recv, nil)
				if y.err != nil { // else all of it was committed before the takeover
					wantReason(t, y.err, seguev1.Reason_REASON_FENCED)
					fenced++
				}
				for _, tok := range y.tokens {
					if ref.tokens[tok.GetIndex()].GetId() != tok.GetId() {
						t.Errorf("the attempt of epoch %d said something else at %d", i+1, tok.GetIndex())
					}
				}
			}
			if fenced < hops/2 {
				t.Errorf("%d of %d attempts were fenced", fenced, hops)
			}
		})
	}
}

// A takeover inside a character: the text function of the new run knows the bytes that were held back, and
// the first delta goes on where the client's text ends.
func TestCase_C13_TextGoesOnInsideACharacter(t *testing.T) {
	inside := 0
	for seed := range uint64(24) {
		pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
			r := request(40)
			r.Prompt = &seguev1.Request_Text{Text: "日本語のテキスト、naïve café, a\u0301\u0302 👨‍👩‍👧‍👦 🇩🇪"}
			r.Sampling = &seguev1.Sampling{Temperature: 1.3, Seed: seed, RepetitionPenalty: 1}
			ref := reference(t, b, r)
			for k := 1; k < len(ref.tokens); k++ {
				last := ref.tokens[k-1]
				if last.GetRawEnd() == last.GetTextEnd() {
					continue
				}
				inside++
				id := newID(t)
				ctx, cancel := context.WithCancel(t.Context())
				var x transcript
				x.read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), tokens(k))
				cancel()
				cancelRun(t, a, id, 1)
				x.tokens = x.tokens[:k:k]
				x.read(takeover(t, t.Context(), b, x.order(id, 2, r, modeOff)), nil)
				x.equal(t, ref)
				end := uint64(0)
				for i, tok := range x.tokens {
					if !utf8.Valid(tok.GetText()) {
						t.Errorf("seed %d, k = %d: the text of token %d is %q", seed, k, i, tok.GetText())
					}
					if end += uint64(len(tok.GetText())); tok.GetTextEnd() != end {
						t.Fatalf("seed %d, k = %d: token %d ends at %d, its text at %d", seed, k, i, tok.GetTextEnd(), end)
					}
				}
			}
		})
	}
	if inside < 10 {
		t.Fatalf("%d takeovers inside a character: nothing is shown", inside)
	}
}

// What is about to reach the holder when a takeover comes counts, applied or not.
func TestTakeover_AppliesWhatWasReceived(t *testing.T) {
	for k := 1; k <= 30; k++ {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
				n.delay("a", time.Millisecond)
				r, id := request(60), newID(t)
				ref := reference(t, b, r)
				ctx, cancel := context.WithCancel(t.Context())
				var x transcript
				x.read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeAsync, Holder: b.peer}), tokens(k))
				if got := b.view(t, id, "holder").GetCommitted(); int(got) >= k {
					t.Fatalf("%d are committed: nothing is on its way", got)
				}
				began := time.Now()
				x.tokens = x.tokens[:k:k]
				x.read(takeover(t, t.Context(), b, x.order(id, 2, r, modeOff)), tokens(k+1))
				if d := time.Since(began); x.err != nil || d > 30*time.Millisecond {
					t.Fatalf("after %v: %v", d, x.err)
				}
				cancel()
				cancelRun(t, a, id, 1)
				x.read(takeover(t, t.Context(), b, x.order(id, 2, r, modeOff)), nil)
				x.equal(t, ref)
			})
		})
	}
}
