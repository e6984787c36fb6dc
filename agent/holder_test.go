// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

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
	bubble(t, func(t *testing.T, n *memNet) {
		big := tinySim()
		big.KVBytesPerToken = 16 << 10
		a := n.start(t, "a", "127.0.0.1:1001", big, nil)
		b := n.start(t, "b", "127.0.0.1:1002", big, func(c *agent.Config) { c.SnapshotMemory = 1 << 20 })
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
		x.read(recv, (*transcript).protected)
		if p := x.protections[1]; p.GetProtected() || p.GetHolder() != "b" || p.GetCause() != "" || len(x.protections) != 3 {
			t.Errorf("protections %v, want a base on its way to b in between", x.protections)
		}
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

// A holder that is assigned before the run has its prompt gets the base as soon as there is one.
func TestPair_BeforeThePrompt(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		r, id := request(40), newID(t)
		ref := reference(t, b, r)
		letGo := a.host.hold("run")
		recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync})
		var x transcript
		x.read(recv, protection(1))
		if _, err := a.client.Pair(t.Context(), &seguev1.PairRequest{Session: id, Epoch: 1, Holder: b.peer}); err != nil {
			t.Fatal(err)
		}
		letGo()
		x.read(recv, nil)
		x.equal(t, ref)
		if !x.protected() {
			t.Errorf("protections %v", x.protections)
		}
	})
}

func TestPair_Refusals(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		big := tinySim()
		big.KVBytesPerToken = 16 << 10
		a := n.start(t, "a", "127.0.0.1:1001", big, func(c *agent.Config) { c.SnapshotMemory = 1 << 20 })
		b := n.start(t, "b", "127.0.0.1:1002", big, nil)
		r := request(100)
		begin := func(mode seguev1.ProtectionMode) ([]byte, stream) {
			id := newID(t)
			recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: mode})
			new(transcript).read(recv, tokens(3))
			return id, recv
		}
		pair := func(id []byte, epoch uint64, holder *seguev1.Peer) error {
			_, err := a.client.Pair(t.Context(), &seguev1.PairRequest{Session: id, Epoch: epoch, Holder: holder})
			return err
		}
		id, recv := begin(modeOff)
		wantReason(t, pair(id, 1, b.peer), seguev1.Reason_REASON_INVALID_REQUEST)
		wantReason(t, pair(id, 2, b.peer), seguev1.Reason_REASON_UNKNOWN_SESSION)
		wantReason(t, pair(id, 1, a.peer), seguev1.Reason_REASON_INVALID_REQUEST)
		new(transcript).read(recv, nil)
		wantReason(t, pair(id, 1, b.peer), seguev1.Reason_REASON_UNKNOWN_SESSION)
		// The primary itself has no memory for the base: no holder can help.
		id, _ = begin(modeSync)
		wantReason(t, pair(id, 1, b.peer), seguev1.Reason_REASON_STORE_FULL)
	})
}

// The former holder is left alone: nobody tries to reach it for this session any more.
func TestPair_LeavesTheFormerHolder(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		a := n.start(t, "a", "127.0.0.1:1001", tinySim(), nil)
		b := n.start(t, "b", "127.0.0.1:1002", tinySim(), nil)
		c := n.start(t, "c", "127.0.0.1:1003", tinySim(), nil)
		id := newID(t)
		recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: request(450), Protection: modeSync, Holder: b.peer})
		var x transcript
		x.read(recv, tokens(10))
		if _, err := a.client.Pair(t.Context(), &seguev1.PairRequest{Session: id, Epoch: 1, Holder: c.peer}); err != nil {
			t.Fatal(err)
		}
		x.read(recv, tokens(20))
		x.read(recv, (*transcript).protected)
		b.stop()
		dials := n.dialed("a", "b")
		x.read(recv, tokens(200))
		if got := n.dialed("a", "b"); got > dials+1 { // the connection itself may try once
			t.Errorf("%d attempts to reach the former holder", got-dials)
		}
		if !x.protected() || x.protections[len(x.protections)-1].GetHolder() != "c" {
			t.Errorf("protections %v", x.protections)
		}
	})
}

// Calls that assign holders at once leave one, and nothing behind on the others.
func TestPair_Concurrent(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		a := n.start(t, "a", "127.0.0.1:1001", tinySim(), nil)
		b := n.start(t, "b", "127.0.0.1:1002", tinySim(), nil)
		c := n.start(t, "c", "127.0.0.1:1003", tinySim(), nil)
		r, id := request(400), newID(t)
		ref := reference(t, b, r)
		recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync})
		var x transcript
		for range 10 {
			x.read(recv, tokens(len(x.tokens)+10))
			var calls sync.WaitGroup
			for _, h := range []*testNode{b, c, b, c} {
				calls.Go(func() {
					if _, err := a.client.Pair(t.Context(), &seguev1.PairRequest{Session: id, Epoch: 1, Holder: h.peer}); err != nil {
						t.Error(err)
					}
				})
			}
			calls.Wait()
		}
		x.read(recv, (*transcript).protected)
		holder := map[string]*testNode{"b": b, "c": c}[a.view(t, id, "primary").GetPeer()]
		x.read(recv, tokens(len(x.tokens)+10))
		if got := holder.view(t, id, "holder").GetCommitted(); int(got) < len(x.tokens) {
			t.Errorf("%d tokens left, the holder has %d", len(x.tokens), got)
		}
		x.read(recv, nil)
		x.equal(t, ref)
		for i, p := range x.protections {
			if p.GetCause() != "" && i > 0 {
				t.Errorf("announced %v", p)
			}
		}
	})
}

// Nobody releases what is held: it is given up once it hasn't changed for the hold time, and not before.
func TestSweep_GivesUpWhatNobodyReleases(t *testing.T) {
	hold := func(c *agent.Config) { c.HoldTimeout = 2 * time.Minute }
	bubble(t, func(t *testing.T, n *memNet) {
		slow := tinySim()
		slow.Step = time.Second
		a := n.start(t, "a", "127.0.0.1:1001", slow, hold)
		b := n.start(t, "b", "127.0.0.1:1002", slow, hold)
		id := newID(t)
		var x transcript
		recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: request(400), Protection: modeSync, Holder: b.peer})
		x.read(recv, tokens(300)) // five minutes
		if v := b.view(t, id, "holder"); v.GetCommitted() < 300 || !x.protected() {
			t.Fatalf("a live session was given up: %v, %v", v, x.protections)
		}
		a.stop()
		time.Sleep(110 * time.Second) // virtual
		if b.view(t, id, "holder") == nil {
			t.Fatal("given up before the hold time")
		}
		time.Sleep(70 * time.Second) // virtual; the hold time and two sweeps
		b.empty(t)
		if v := b.view(t, id, "holder"); v != nil {
			t.Errorf("still held: %v", v)
		}
		_, err := takeover(t, t.Context(), b, x.order(id, 2, request(400), modeSync))()
		wantReason(t, err, seguev1.Reason_REASON_UNKNOWN_SESSION)
	})
}

// An ended session is over for its sender too: a holder that comes back isn't given it again.
func TestClose_StopsReplicating(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		for _, end := range []func(id []byte, recv stream){
			func(_ []byte, recv stream) { new(transcript).read(recv, nil) },
			func(id []byte, _ stream) { cancelRun(t, a, id, 1) },
		} {
			id := newID(t)
			recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: request(30), Protection: modeSync, Holder: b.peer})
			new(transcript).read(recv, tokens(10))
			end(id, recv)
			time.Sleep(100 * time.Millisecond) // virtual
			b.stop()
			b = n.start(t, "b", "127.0.0.1:1002", tinySim(), nil)
			time.Sleep(5 * time.Second) // virtual
			b.empty(t)
		}
	})
}
