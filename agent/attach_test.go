// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

func TestGenerate_OrphanIsCanceledUnlessReattached(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		slow := tinySim()
		slow.Step = 20 * time.Millisecond
		a := n.start(t, "a", "127.0.0.1:1001", slow, nil)
		b := n.start(t, "b", "127.0.0.1:1002", slow, nil)
		r, id := request(450), newID(t)
		ref := reference(t, b, r)
		req := &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}
		ctx, cancel := context.WithCancel(t.Context())
		var x transcript
		x.read(generate(t, ctx, a, req), tokens(5))
		cancel()
		time.Sleep(time.Second) // virtual; inside the grace
		req.FromIndex = uint32(len(x.tokens))
		x.read(generate(t, t.Context(), a, req), nil)
		x.equal(t, ref)

		id = newID(t)
		req = &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeOff}
		ctx, cancel = context.WithCancel(t.Context())
		x = transcript{}
		x.read(generate(t, ctx, a, req), tokens(5))
		cancel()
		time.Sleep(2500 * time.Millisecond) // virtual; past the grace, before the run's own end
		if d := a.describe(t); d.GetContextsUsed() != 0 {
			t.Errorf("orphan still runs: %d contexts", d.GetContextsUsed())
		}
		_, err := generate(t, t.Context(), a, req)()
		wantReason(t, err, seguev1.Reason_REASON_CANCELLED)
	})
}

// The grace begins anew with each caller that goes.
func TestGenerate_OrphanTimerIsOfTheLastCaller(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		slow := tinySim()
		slow.Step = 20 * time.Millisecond
		a := n.start(t, "a", "127.0.0.1:1001", slow, nil)
		b := n.start(t, "b", "127.0.0.1:1002", slow, nil)
		r, id := request(450), newID(t)
		ref := reference(t, b, r)
		req := &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeOff}
		for range 4 {
			ctx, cancel := context.WithCancel(t.Context())
			var x transcript
			x.read(generate(t, ctx, a, req), tokens(5))
			cancel()
			time.Sleep(300 * time.Millisecond) // virtual; an orphan each time
		}
		time.Sleep(1500 * time.Millisecond) // virtual; the timers of the first callers are past their time
		var x transcript
		x.read(generate(t, t.Context(), a, req), nil)
		x.equal(t, ref)
	})
}

// A caller whose stream broke after the finish gets everything again, though the holder is let go by then.
func TestGenerate_RepeatAfterTheFinish(t *testing.T) {
	for _, mode := range []seguev1.ProtectionMode{modeOff, modeAsync, modeSync} {
		pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
			r, id := request(20), newID(t)
			ref := reference(t, b, r)
			req := &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: mode, Holder: b.peer}
			for range 3 {
				var x transcript
				x.read(generate(t, t.Context(), a, req), nil)
				x.equal(t, ref)
				time.Sleep(time.Second) // virtual
			}
			time.Sleep(15 * time.Second) // virtual: nobody comes any more
			_, err := generate(t, t.Context(), a, req)()
			wantReason(t, err, seguev1.Reason_REASON_CANCELLED)
			if got := a.host.facts(t).PrefillTokens; got != uint64(ref.finish.GetPromptTokens()) {
				t.Errorf("%d tokens prefilled, the prompt has %d", got, ref.finish.GetPromptTokens())
			}
		})
	}
}

// A higher epoch takes the place of the attempt that runs here, for good.
func TestGenerate_HigherEpochReplaces(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		r, id := request(450), newID(t)
		r.IgnoreEos = true
		first := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer})
		var x, y transcript
		x.read(first, tokens(10))
		req := &seguev1.GenerateRequest{Session: id, Epoch: 2, Request: r, Protection: modeSync, Holder: b.peer}
		y.read(generate(t, t.Context(), a, req), nil)
		x.read(first, nil)
		wantReason(t, x.err, seguev1.Reason_REASON_FENCED)
		time.Sleep(5 * time.Second) // virtual: the earlier attempt is gone, this one isn't
		var z transcript
		z.read(generate(t, t.Context(), a, req), nil)
		z.equal(t, &y)
		if got, want := a.host.facts(t).PrefillTokens, uint64(2*y.finish.GetPromptTokens()); got != want {
			t.Errorf("%d tokens prefilled, want %d: one run for each epoch", got, want)
		}
		_, err := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeOff})()
		wantReason(t, err, seguev1.Reason_REASON_CANCELLED)
	})
}

// A caller that claims more tokens than there are gets the finish.
func TestGenerate_FromBeyondTheEnd(t *testing.T) {
	for _, mode := range []seguev1.ProtectionMode{modeOff, modeAsync, modeSync} {
		for _, from := range []uint32{19, 20, 21, 1 << 31, 1<<32 - 1} {
			pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
				n.delay("a", 20*time.Millisecond)
				id := newID(t)
				var x transcript
				x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: request(20), Protection: mode, Holder: b.peer, FromIndex: from}), nil)
				want := 0
				if from == 19 {
					want = 1
				}
				if mode == modeSync {
					if got := b.view(t, id, "holder").GetCommitted(); got != 20 {
						t.Errorf("from %d: finished with %d committed", from, got)
					}
				}
				if x.err != nil || x.finish.GetTokens() != 20 || len(x.tokens) != want {
					t.Errorf("mode %v, from %d: %d tokens, finish %v, error %v", mode, from, len(x.tokens), x.finish, x.err)
				}
				if mode == modeSync && (len(x.protections) != 1 || !x.protected()) {
					t.Errorf("from %d: protections %v", from, x.protections)
				}
			})
		}
	}
}

// Repeats of a call while its first try begins: one run, and one caller who gets all of it.
func TestAttempt_RepeatsBeginOnce(t *testing.T) {
	for _, kind := range []string{"generate", "takeover"} {
		for range 5 {
			pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
				r, id := request(60), newID(t)
				ref := reference(t, b, r)
				var x transcript
				if kind == "takeover" {
					ctx, cancel := context.WithCancel(t.Context())
					x.read(generate(t, ctx, b, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: a.peer}), tokens(7))
					cancel()
					cancelRun(t, b, id, 1)
				}
				letGo := a.host.hold("describe")
				var calls sync.WaitGroup
				got := make([]transcript, 6)
				for i := range got {
					calls.Go(func() {
						if kind == "takeover" {
							o := x.order(id, 2, r, modeOff)
							got[i].tokens = append(got[i].tokens, x.tokens...)
							got[i].read(takeover(t, t.Context(), a, o), nil)
							return
						}
						got[i].read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 2, Request: r, Protection: modeOff}), nil)
					})
				}
				synctest.Wait() // all calls are on their way
				letGo()
				calls.Wait()
				whole := 0
				for i := range got {
					if got[i].err == nil {
						got[i].equal(t, ref)
						whole++
					} else if !strings.Contains(got[i].err.Error(), "another caller attached") {
						t.Errorf("%s: %v", kind, got[i].err)
					}
				}
				if whole != 1 {
					t.Errorf("%s: %d callers got the run", kind, whole)
				}
				if f := a.host.facts(t); kind == "generate" && f.PrefillTokens != uint64(ref.finish.GetPromptTokens()) {
					t.Errorf("%d tokens prefilled, the prompt has %d", f.PrefillTokens, ref.finish.GetPromptTokens())
				}
				cancelRun(t, b, id, 2)
			})
		}
	}
}

// The newest caller gets the stream; the one before hears why it doesn't any more, and leaves no orphan.
func TestGenerate_ReplacedCaller(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		r, id := request(450), newID(t)
		ref := reference(t, b, r)
		req := &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}
		first := generate(t, t.Context(), a, req)
		var x, y transcript
		x.read(first, tokens(10))
		second := generate(t, t.Context(), a, req)
		y.read(second, tokens(5))
		x.read(first, nil)
		wantReason(t, x.err, seguev1.Reason_REASON_FENCED)
		synctest.Wait()
		y.read(second, nil) // longer than the grace of an orphan
		y.equal(t, ref)
	})
}
