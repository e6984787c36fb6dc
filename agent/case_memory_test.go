// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/transfer"
)

// holdShort gives held sessions up after half a minute, seen by a sweep twice a minute.
func holdShort(c *agent.Config) { c.HoldTimeout = 30 * time.Second }

// holdBound is when nothing is held any more that nobody has touched, with holdShort.
const holdBound = 91 * time.Second

// longPrompt is a request whose base takes a while, on an engine of slowBase.
func longPrompt(max int) *seguev1.Request {
	r := request(max)
	list := make([]int32, 80)
	for i := range list {
		list[i] = int32(200 + i)
	}
	r.Prompt = ids(list...)
	return r
}

// heap is the memory in use after collections, the least of several: what pools keep and what an ending goroutine
// refers to goes with a later one.
func heap() int64 {
	var m runtime.MemStats
	least := int64(math.MaxInt64)
	for range 5 {
		runtime.GC()
		runtime.ReadMemStats(&m)
		least = min(least, int64(m.HeapAlloc))
	}
	return least
}

// The client leaves while its snapshot is on its way, and the primary dies without a word to the holder: the holder
// and its engine are empty a second after the router's word, or without one when the hold time is over. Again and
// again, with flat memory.
func TestCase_A1_ClientLeavesDuringSnapshotAndPrimaryDies(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 240
	}
	bubble(t, func(t *testing.T, n *memNet) {
		slow := tinySim()
		slow.PrefillToken = 4 * time.Millisecond // 64 ms a chunk
		b := n.start(t, "b", "127.0.0.1:1002", slow, holdShort)
		r := longPrompt(60)
		var bytes, goroutines int64
		for round := range rounds {
			a := n.start(t, "a", "127.0.0.1:1001", slow, holdShort)
			id, kind := newID(t), round%4
			ctx, cancel := context.WithCancel(t.Context())
			var x transcript
			recv := generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer})
			if kind < 2 {
				x.read(recv, func(x *transcript) bool { return x.progress.GetPrefilledTokens() > 0 })
			} else {
				x.read(recv, tokens(1+round%20))
			}
			synctest.Wait()
			v := b.view(t, id, "holder")
			if v == nil || (kind < 2) != (v.GetCommitted() == 0) || b.describe(t).GetSnapshotBytesUsed() == 0 {
				t.Fatalf("round %d: no snapshot on its way: %v", round, v)
			}
			n.freeze("a") // no word of the primary's end reaches the holder
			cancel()
			a.stop()
			n.thaw()
			n.started = n.started[:1]
			switch kind {
			case 0: // the router's word
				cancelRun(t, b, id, 1)
				time.Sleep(time.Second) // virtual
			case 1, 2: // none: the router is gone too
				time.Sleep(holdBound)
			case 3: // the client leaves a takeover as it begins
				ctx, cancel := context.WithCancel(t.Context())
				o := x.order(id, 2, r, modeSync)
				o.Holder = a.peer // gone
				y := transcript{tokens: x.tokens}
				y.read(takeover(t, ctx, b, o), func(x *transcript) bool { return x.seam != nil })
				if y.err != nil {
					t.Fatalf("round %d: %v", round, y.err)
				}
				cancel()
				cancelRun(t, b, id, 2)
				time.Sleep(time.Second) // virtual
			}
			b.empty(t)
			if t.Failed() {
				t.Fatalf("in round %d of kind %d", round, kind)
			}
			if round == rounds/4 {
				time.Sleep(time.Minute) // virtual: what lingers ends
				bytes, goroutines = heap(), int64(runtime.NumGoroutine())
			}
		}
		time.Sleep(time.Minute) // virtual
		// Of every session its epoch record stays, for a while, and nothing else.
		if grown := heap() - bytes; grown > int64(rounds)*1024 {
			t.Errorf("%d bytes more in use after %d rounds more", grown, 3*rounds/4)
		}
		t.Logf("%d bytes more in use after %d rounds more", heap()-bytes, 3*rounds/4)
		if now := int64(runtime.NumGoroutine()); now > goroutines+8 { // a connection has a few, for a moment
			t.Errorf("%d goroutines, were %d", now, goroutines)
		}
	})
}

// A primary of many sessions dies and nobody takes its place: what is held for it goes by itself.
func TestCase_A14_DeadPeersMemoryReturns(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		engine := tinySim()
		engine.Contexts, engine.PrefillToken = 32, 4*time.Millisecond
		a := n.start(t, "a", "127.0.0.1:1001", engine, holdShort)
		b := n.start(t, "b", "127.0.0.1:1002", engine, holdShort)
		base := b.describe(t).GetSnapshotBytesUsed()
		for i := range 24 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			recv := generate(t, ctx, a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: longPrompt(10 + 10*i), Protection: modeSync, Holder: b.peer})
			var x transcript
			switch i % 3 {
			case 0:
				x.read(recv, nil) // finished, never released
			case 1:
				x.read(recv, tokens(1+i/3))
			case 2:
				x.read(recv, func(x *transcript) bool { return x.progress.GetPrefilledTokens() > 0 })
			}
		}
		synctest.Wait()
		phases := map[bool]int{}
		for _, v := range b.sessions(t) {
			phases[v.GetCommitted() > 0]++
		}
		if phases[true] < 8 || phases[false] == 0 || b.describe(t).GetSnapshotBytesUsed() == base {
			t.Fatalf("held: %d with a boundary, %d without", phases[true], phases[false])
		}
		n.freeze("a")
		a.stop()
		n.thaw()
		time.Sleep(holdBound)
		if got := b.describe(t).GetSnapshotBytesUsed(); got != base {
			t.Errorf("%d bytes are held for a dead peer, %d before it", got, base)
		}
		b.empty(t)
		if l := b.sessions(t); len(l) > 0 {
			t.Errorf("held: %v", l)
		}
	})
}

// A restore that comes late finds out: what was given up meanwhile is refused, and what was taken in time is whole.
func TestCase_A8_DelayedRestoreChecksAgain(t *testing.T) {
	for name, c := range map[string]struct {
		gate      string
		meanwhile func(t *testing.T, b *testNode, id []byte)
		want      seguev1.Reason // REASON_UNSPECIFIED: the whole answer
	}{
		"given up before it is taken": {"describe", func(t *testing.T, b *testNode, _ []byte) {
			time.Sleep(holdBound)
			if got := b.heldCount(t); got != 0 {
				t.Fatalf("%d sessions are still held", got)
			}
		}, seguev1.Reason_REASON_UNKNOWN_SESSION},
		"cancelled before it is taken": {"describe", func(t *testing.T, b *testNode, id []byte) { cancelRun(t, b, id, 2) }, seguev1.Reason_REASON_CANCELLED},
		"taken, then the time is over": {"hang", func(*testing.T, *testNode, []byte) { time.Sleep(holdBound) }, 0},
		"taken, then cancelled":        {"hang", func(t *testing.T, b *testNode, id []byte) { cancelRun(t, b, id, 2) }, seguev1.Reason_REASON_CANCELLED},
		"taken, then released":         {"hang", release, 0},
	} {
		t.Run(name, func(t *testing.T) {
			pair(t, holdShort, func(t *testing.T, n *memNet, a, b *testNode) {
				r, id := request(60), newID(t)
				ref := reference(t, a, r)
				ctx, cancel := context.WithCancel(t.Context())
				var x transcript
				x.read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), tokens(9))
				cancel()
				cancelRun(t, a, id, 1)
				before := b.host.facts(t)
				letGo := b.host.hold(c.gate)
				y := transcript{prompt: x.prompt, tokens: x.tokens[:9:9]}
				done := make(chan struct{})
				go func() { // ends with the takeover
					defer close(done)
					y.read(takeover(t, t.Context(), b, y.order(id, 2, r, modeOff)), nil)
				}()
				synctest.Wait()
				if len(y.tokens) != 9 || y.err != nil || y.finish != nil {
					t.Fatalf("the restore wasn't delayed: %v", y.err)
				}
				c.meanwhile(t, b, id)
				letGo()
				<-done
				if c.want == 0 {
					y.equal(t, ref)
					return
				}
				if r, ok := transfer.RefusalOf(y.err); !ok || r.GetReason() != seguev1.Reason_REASON_NOT_READY || c.gate != "describe" {
					wantReason(t, y.err, c.want) // an engine that has said nothing for so long may count as cut off
				}
				f := b.host.facts(t)
				if len(y.tokens) != 9 || f.DecodeSteps != before.DecodeSteps || f.RestoredRows != before.RestoredRows {
					t.Errorf("%d tokens came, engine %+v, before %+v", len(y.tokens)-9, f, before)
				}
			})
		})
	}
}

// heldCount counts what b holds for others, without asking its engine.
func (b *testNode) heldCount(t *testing.T) (n int) {
	t.Helper()
	for _, s := range b.sessions(t) {
		if s.GetRole() == "holder" {
			n++
		}
	}
	return n
}

func release(t *testing.T, b *testNode, id []byte) {
	t.Helper()
	if _, err := b.client.Release(t.Context(), &seguev1.ReleaseRequest{Session: id, Epoch: 2}); err != nil {
		t.Fatal(err)
	}
}
