// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// A takeover that is granted has loaded every row and computed nothing again; its seam says how many. One that isn't
// says so and leaves the engine alone: a continuation that prefills without saying so doesn't exist.
func TestCase_B2_TakeoverIsReuseOrRefusal(t *testing.T) {
	for _, cut := range []int{1, 16, 29} {
		pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
			r, id := request(40), newID(t)
			ref := reference(t, b, r)
			ctx, cancel := context.WithCancel(t.Context())
			var x transcript
			x.read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), tokens(cut))
			a.host.kill(nil)
			cancel()
			before := b.host.facts(t)
			var y transcript
			y.read(takeover(t, t.Context(), b, x.order(other(id), 2, r, modeOff)), nil)
			wantReason(t, y.err, seguev1.Reason_REASON_UNKNOWN_SESSION)
			if after := b.host.facts(t); after != before {
				t.Fatalf("cut %d: a refused takeover left %+v, before %+v", cut, after, before)
			}
			x.read(takeover(t, t.Context(), b, x.order(id, 2, r, modeOff)), nil)
			x.equal(t, ref)
			after := b.host.facts(t)
			if after.PrefillTokens != before.PrefillTokens || after.ReplayedDecodeSteps != 0 {
				t.Errorf("cut %d: %d prompt tokens and %d steps were computed again", cut, after.PrefillTokens-before.PrefillTokens, after.ReplayedDecodeSteps)
			}
			rows := x.prompt.GetTokens() + x.seam.GetBoundary() - 1
			if got := after.RestoredRows - before.RestoredRows; got != uint64(rows) || x.seam.GetRestoredRows() != rows {
				t.Errorf("cut %d: %d rows loaded, the seam says %d, boundary %d has %d", cut, got, x.seam.GetRestoredRows(), x.seam.GetBoundary(), rows)
			}
			if steps := after.DecodeSteps - before.DecodeSteps; steps != uint64(len(ref.tokens))-uint64(x.seam.GetBoundary()) {
				t.Errorf("cut %d: %d steps from boundary %d to %d tokens", cut, steps, x.seam.GetBoundary(), len(ref.tokens))
			}
		})
	}
}

// A holder that is killed at any time of its storing and comes back covers nothing of what it had: its new boot id says
// so, a takeover there is refused, and the primary gives it a new base that covers the session again.
func TestCase_B8_RestartedHolderCoversNothing(t *testing.T) {
	refused, covered := 0, 0
	for at := range 24 {
		pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
			r, id := request(60), newID(t)
			ref := reference(t, a, r)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			recv := generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer})
			// From the first chunk of the prompt to the first tokens, at steps that fall into no rhythm with the engine's.
			time.Sleep(time.Duration(at) * 1700 * time.Microsecond) // virtual
			boot := slices.Clone(b.describe(t).GetBootId())
			if b.view(t, id, "holder").GetCommitted() > 0 {
				covered++
			}
			n.delay("a", 3*time.Millisecond) // so that the base doesn't begin again before the new process was asked
			b.stop()
			b2 := n.start(t, "b", b.peer.GetAddr(), tinySim(), nil)
			if d := b2.describe(t); slices.Equal(d.GetBootId(), boot) || d.GetSnapshotBytesUsed() != 0 {
				t.Fatalf("at %d: the new process has boot %x and %d bytes", at, d.GetBootId(), d.GetSnapshotBytesUsed())
			}
			var early transcript
			early.read(takeover(t, t.Context(), b2, early.order(id, 2, r, modeOff)), nil)
			wantReason(t, early.err, seguev1.Reason_REASON_UNKNOWN_SESSION)
			refused++
			n.delay("a", 0)

			var x transcript
			x.read(recv, func(x *transcript) bool { return x.protected() && len(x.tokens) >= 20 })
			if x.err != nil || !x.protected() {
				t.Fatalf("at %d: %d tokens, protections %v, %v", at, len(x.tokens), x.protections, x.err)
			}
			a.host.kill(nil)
			cancel()
			x.read(takeover(t, t.Context(), b2, x.order(id, 2, r, modeOff)), nil)
			if diff := cmp.Diff(ref.ids(), x.ids()); diff != "" || x.err != nil {
				t.Errorf("at %d: %v, ids (-reference +continued):\n%s", at, x.err, diff)
			}
		})
	}
	if covered == 0 || covered == 24 {
		t.Errorf("in %d of 24 runs the holder covered something when it was killed: the times miss a case", covered)
	}
	if refused != 24 {
		t.Errorf("%d refusals", refused)
	}
}
