// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"crypto/rand"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

const (
	modeOff   = seguev1.ProtectionMode_PROTECTION_MODE_OFF
	modeAsync = seguev1.ProtectionMode_PROTECTION_MODE_ASYNC
	modeSync  = seguev1.ProtectionMode_PROTECTION_MODE_SYNC
)

// pair starts two agents and calls f in a bubble.
func pair(t *testing.T, change func(*agent.Config), f func(t *testing.T, n *memNet, a, b *testNode)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &memNet{nodes: make(map[string]*bufListener)}
		a := n.start(t, "a", "127.0.0.1:1001", tinySim(), change)
		b := n.start(t, "b", "127.0.0.1:1002", tinySim(), change)
		defer b.stop()
		defer a.stop()
		f(t, n, a, b)
	})
}

func request(max int) *seguev1.Request {
	return &seguev1.Request{
		Model:     "sim",
		Prompt:    &seguev1.Request_Text{Text: "the quick brown fox jumps over the lazy dog and goes on its way home"},
		Sampling:  &seguev1.Sampling{Temperature: 0.8, TopP: 0.95, TopK: 40, Seed: 7, RepetitionPenalty: 1.1},
		MaxTokens: uint32(max),
	}
}

func newID(t *testing.T) []byte {
	t.Helper()
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		t.Fatal(err)
	}
	return id
}

// transcript is what a caller has received.
type transcript struct {
	seam        *seguev1.Seam
	prompt      *seguev1.Prompt
	protections []*seguev1.Protection
	tokens      []*seguev1.Token
	finish      *seguev1.Finish
	err         error
}

func (x *transcript) ids() []int32 {
	out := make([]int32, len(x.tokens))
	for i, t := range x.tokens {
		out[i] = t.GetId()
	}
	return out
}

func (x *transcript) text() string {
	s := ""
	for _, t := range x.tokens {
		s += string(t.GetText())
	}
	return s
}

func (x *transcript) add(e *seguev1.Event) {
	switch v := e.GetEvent().(type) {
	case *seguev1.Event_Seam:
		x.seam = v.Seam
	case *seguev1.Event_Prompt:
		x.prompt = v.Prompt
	case *seguev1.Event_Protection:
		x.protections = append(x.protections, v.Protection)
	case *seguev1.Event_Token:
		x.tokens = append(x.tokens, v.Token)
	case *seguev1.Event_Finish:
		x.finish = v.Finish
	}
}

// read reads a stream to its end, or until until says so.
func (x *transcript) read(recv func() (*seguev1.Event, error), until func(*transcript) bool) {
	for until == nil || !until(x) {
		e, err := recv()
		if err != nil {
			x.err = err
			return
		}
		x.add(e)
		if x.finish != nil {
			return
		}
	}
}

func tokens(n int) func(*transcript) bool {
	return func(x *transcript) bool { return len(x.tokens) >= n }
}

func generate(t *testing.T, ctx context.Context, on *testNode, r *seguev1.GenerateRequest) func() (*seguev1.Event, error) {
	t.Helper()
	st, err := on.client.Generate(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return func() (*seguev1.Event, error) {
		m, err := st.Recv()
		return m.GetEvent(), err
	}
}

// order makes the takeover of what x has received.
func (x *transcript) order(id []byte, epoch uint64, r *seguev1.Request, mode seguev1.ProtectionMode) *seguev1.TakeoverRequest {
	d := snapshot.IDsDigest(x.ids())
	o := &seguev1.TakeoverRequest{Session: id, Epoch: epoch, Delivered: uint32(len(x.tokens)), OutputDigest: d[:], Request: r, Protection: mode}
	if x.prompt != nil {
		o.PromptDigest = x.prompt.GetDigest()
	}
	if n := len(x.tokens); n > 0 {
		o.TextEnd = x.tokens[n-1].GetTextEnd()
	}
	return o
}

func takeover(t *testing.T, ctx context.Context, on *testNode, r *seguev1.TakeoverRequest) func() (*seguev1.Event, error) {
	t.Helper()
	st, err := on.client.Takeover(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return func() (*seguev1.Event, error) {
		m, err := st.Recv()
		return m.GetEvent(), err
	}
}

func wantReason(t *testing.T, err error, want seguev1.Reason) {
	t.Helper()
	r, ok := transfer.RefusalOf(err)
	if !ok || r.GetReason() != want {
		t.Fatalf("got %v (refusal %v), want reason %v", err, r, want)
	}
}

// reference is the run that nobody kills.
func reference(t *testing.T, on *testNode, r *seguev1.Request) *transcript {
	t.Helper()
	var x transcript
	x.read(generate(t, t.Context(), on, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: modeOff}), nil)
	if x.err != nil || x.finish == nil {
		t.Fatalf("reference: %v", x.err)
	}
	return &x
}

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

func TestGenerate_SyncAnnouncesProtectionBeforeTheFirstToken(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		var x transcript
		x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(4), Protection: modeSync, Holder: b.peer}), func(x *transcript) bool {
			if len(x.tokens) > 0 && len(x.protections) == 0 {
				t.Error("a token came before the protection state")
			}
			return false
		})
		if x.err != nil {
			t.Fatal(x.err)
		}
		if len(x.protections) != 1 || !x.protections[0].GetProtected() || x.protections[0].GetHolder() != "b" {
			t.Errorf("protections %v, want one: protected by b", x.protections)
		}
	})
}

func TestGenerate_LostHolderUnprotectsAfterCommitTimeout(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		r := request(100)
		ref := reference(t, a, r)
		recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer})
		var x transcript
		x.read(recv, tokens(20))
		b.stop()
		began := time.Now()
		x.read(recv, func(x *transcript) bool { return len(x.protections) == 2 })
		if d := time.Since(began); d > 600*time.Millisecond {
			t.Errorf("unprotected after %v, want about the commit timeout", d)
		}
		x.read(recv, nil)
		if diff := cmp.Diff(ref.ids(), x.ids()); diff != "" || x.err != nil {
			t.Errorf("err %v, ids differ:\n%s", x.err, diff)
		}
		if p := x.protections[1]; p.GetProtected() || p.GetCause() != "holder_lost" {
			t.Errorf("announced %v, want unprotected by holder_lost", p)
		}
	})
}

func TestGenerate_RestartedHolderProtectsAgain(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		r := request(400)
		id := newID(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		recv := generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer})
		var x transcript
		x.read(recv, tokens(20))
		b.stop()
		x.read(recv, func(x *transcript) bool { return len(x.protections) == 2 })
		b2 := n.start(t, "b", "127.0.0.1:1002", tinySim(), nil)
		defer b2.stop()
		x.read(recv, func(x *transcript) bool { return len(x.protections) == 3 })
		if x.err != nil {
			t.Fatal(x.err)
		}
		if p := x.protections[2]; !p.GetProtected() || int(p.GetFromIndex()) != len(x.tokens) {
			t.Fatalf("announced %v after %d tokens, want protected from there", p, len(x.tokens))
		}
		x.read(recv, tokens(len(x.tokens)+5))
		ref := reference(t, b2, r)
		a.host.kill(nil)
		cancel()
		x.read(takeover(t, t.Context(), b2, x.order(id, 2, r, modeSync)), nil)
		if diff := cmp.Diff(ref.ids(), x.ids()); diff != "" || x.err != nil {
			t.Errorf("err %v, ids differ:\n%s", x.err, diff)
		}
	})
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
	synctest.Test(t, func(t *testing.T) {
		n := &memNet{nodes: make(map[string]*bufListener)}
		other := tinySim()
		other.Threads = 2
		a := n.start(t, "a", "127.0.0.1:1001", tinySim(), nil)
		defer a.stop()
		b := n.start(t, "b", "127.0.0.1:1002", other, nil)
		defer b.stop()
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
		if want := "threads"; !contains(ref.GetDetail(), want) {
			t.Errorf("detail %q doesn't name %q", ref.GetDetail(), want)
		}
	})
}

func TestAdmission_ReservedContextsAreForTakeovers(t *testing.T) {
	pair(t, func(c *agent.Config) { c.ReservedForTakeover = 2 }, func(t *testing.T, n *memNet, a, b *testNode) {
		r := request(200)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		open := func(on, holder *testNode) ([]byte, *transcript) {
			id := newID(t)
			var x transcript
			x.read(generate(t, ctx, on, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: holder.peer}), tokens(3))
			if x.err != nil {
				t.Fatal(x.err)
			}
			return id, &x
		}
		open(b, a)
		open(b, a)
		_, err := generate(t, ctx, b, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: modeOff})()
		wantReason(t, err, seguev1.Reason_REASON_NO_CAPACITY)
		id1, x1 := open(a, b)
		id2, x2 := open(a, b)
		for _, s := range []struct {
			id []byte
			x  *transcript
		}{{id1, x1}, {id2, x2}} {
			if e, err := takeover(t, ctx, b, s.x.order(s.id, 2, r, modeOff))(); err != nil || e.GetSeam() == nil {
				t.Fatalf("takeover into the reserve: %v %v", e, err)
			}
		}
		id3, x3 := id1, x1
		_, err = takeover(t, ctx, b, x3.order(id3, 3, r, modeOff))()
		wantReason(t, err, seguev1.Reason_REASON_NO_CAPACITY)
	})
}

func TestCancel_FreesTheSlotAndIsRemembered(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		r, id := request(300), newID(t)
		recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer})
		var x transcript
		x.read(recv, tokens(5))
		c, err := a.client.Cancel(t.Context(), &seguev1.CancelRequest{Session: id, Epoch: 1})
		if err != nil || !c.GetWasRunning() {
			t.Fatalf("cancel: %v %v", c, err)
		}
		x.read(recv, nil)
		wantReason(t, x.err, seguev1.Reason_REASON_CANCELLED)
		time.Sleep(time.Second) // virtual
		d, err := a.client.Describe(t.Context(), &seguev1.DescribeRequest{})
		if err != nil || d.GetContextsUsed() != 0 || d.GetSnapshotBytesUsed() != 0 {
			t.Errorf("a second after the cancel: %d contexts, %d bytes, %v", d.GetContextsUsed(), d.GetSnapshotBytesUsed(), err)
		}
		_, err = generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeOff})()
		wantReason(t, err, seguev1.Reason_REASON_CANCELLED)
		if _, err := b.client.Release(t.Context(), &seguev1.ReleaseRequest{Session: id, Epoch: 1}); err != nil {
			t.Fatal(err)
		}
		d, err = b.client.Describe(t.Context(), &seguev1.DescribeRequest{})
		if err != nil || d.GetSnapshotBytesUsed() != 0 {
			t.Errorf("holder after release: %d bytes, %v", d.GetSnapshotBytesUsed(), err)
		}
	})
}

func TestGenerate_OrphanIsCanceledUnlessReattached(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
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
		if diff := cmp.Diff(ref.ids(), x.ids()); diff != "" || x.err != nil {
			t.Fatalf("re-attached: err %v, ids differ:\n%s", x.err, diff)
		}

		id = newID(t)
		req = &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeOff}
		ctx, cancel = context.WithCancel(t.Context())
		x = transcript{}
		x.read(generate(t, ctx, a, req), tokens(5))
		cancel()
		time.Sleep(2500 * time.Millisecond) // virtual; past the grace, before the run's own end
		d, err := a.client.Describe(t.Context(), &seguev1.DescribeRequest{})
		if err != nil || d.GetContextsUsed() != 0 {
			t.Errorf("orphan still runs: %d contexts, %v", d.GetContextsUsed(), err)
		}
	})
}

func TestGenerate_FencedPrimaryStops(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		r, id := request(450), newID(t)
		recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer})
		var x, y transcript
		x.read(recv, tokens(5))
		y.read(takeover(t, t.Context(), b, x.order(id, 2, r, modeOff)), tokens(1))
		if y.err != nil {
			t.Fatal(y.err)
		}
		x.read(recv, nil)
		wantReason(t, x.err, seguev1.Reason_REASON_FENCED)
	})
}

func TestGenerate_FullStoreLeavesTheSessionUnprotected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &memNet{nodes: make(map[string]*bufListener)}
		big := tinySim()
		big.KVBytesPerToken = 16 << 10
		a := n.start(t, "a", "127.0.0.1:1001", big, nil)
		defer a.stop()
		b := n.start(t, "b", "127.0.0.1:1002", big, func(c *agent.Config) { c.SnapshotMemory = 1 << 20 })
		defer b.stop()
		var x transcript
		x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(100), Protection: modeSync, Holder: b.peer}), nil)
		if x.finish == nil || len(x.protections) != 1 || x.protections[0].GetCause() != "store_full" {
			t.Errorf("finish %v, protections %v, want a finish, unprotected by store_full", x.finish, x.protections)
		}
		var y transcript
		y.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(100), Protection: modeSync, Holder: b.peer, RequireProtection: true}), nil)
		wantReason(t, y.err, seguev1.Reason_REASON_UNPROTECTED)
		if len(y.tokens) > 0 {
			t.Errorf("%d tokens of a session that must be protected and isn't", len(y.tokens))
		}
	})
}

func TestPair_GivesARunningSessionAHolder(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		r, id := request(300), newID(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		recv := generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync})
		var x transcript
		x.read(recv, tokens(5))
		if _, err := a.client.Pair(t.Context(), &seguev1.PairRequest{Session: id, Epoch: 1, Holder: b.peer}); err != nil {
			t.Fatal(err)
		}
		x.read(recv, func(x *transcript) bool { return len(x.protections) == 2 && x.protections[1].GetProtected() })
		x.read(recv, tokens(len(x.tokens)+10))
		ref := reference(t, b, r)
		a.host.kill(nil)
		cancel()
		x.read(takeover(t, t.Context(), b, x.order(id, 2, r, modeSync)), nil)
		if diff := cmp.Diff(ref.ids(), x.ids()); diff != "" || x.err != nil {
			t.Errorf("err %v, ids differ:\n%s", x.err, diff)
		}
	})
}
