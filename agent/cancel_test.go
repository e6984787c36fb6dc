// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines/sim"
)

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

// A cancel in any phase ends the stream and frees the context and the memory at once.
func TestCancel_InEveryPhase(t *testing.T) {
	type world struct {
		n    *memNet
		a, b *testNode
		id   []byte
		x    *transcript
		recv stream
	}
	slow := func(c *sim.Config) { c.PrefillToken = 10 * time.Millisecond }
	for name, c := range map[string]struct {
		engine func(*sim.Config)
		window uint32
		max    int
		before func(w *world) // the call
		until  func(t *testing.T, w *world)
		state  string
	}{
		"before the prompt": {before: func(w *world) { w.a.host.hold("run") }, until: func(*testing.T, *world) { synctest.Wait() }, state: "queued"},
		"in prefill": {engine: slow, until: func(t *testing.T, w *world) {
			w.x.read(w.recv, func(x *transcript) bool { return x.progress.GetPrefilledTokens() > 0 })
		}, state: "prefill"},
		"in decode": {until: func(t *testing.T, w *world) { w.x.read(w.recv, tokens(10)) }, state: "decode"},
		"waiting for the window": {window: 4, until: func(t *testing.T, w *world) {
			w.x.read(w.recv, tokens(10))
			w.n.freeze("a")
			w.x.read(w.recv, func(x *transcript) bool { return x.progress.GetWaitsFor() == "window" })
		}, state: "decode"},
		"waiting for the last commit": {max: 12, until: func(t *testing.T, w *world) {
			w.x.read(w.recv, tokens(10))
			w.n.freeze("a")
			w.x.read(w.recv, func(x *transcript) bool { return x.progress.GetWaitsFor() == "commit" })
		}, state: "finished"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *memNet) {
				engine := tinySim()
				if c.engine != nil {
					c.engine(&engine)
				}
				w := &world{n: n, id: newID(t), x: new(transcript)}
				w.a = n.start(t, "a", "127.0.0.1:1001", engine, patient)
				w.b = n.start(t, "b", "127.0.0.1:1002", engine, patient)
				if c.before != nil {
					c.before(w)
				}
				r := request(max(c.max, 0))
				if c.max == 0 {
					r.MaxTokens = 300
				}
				w.recv = generate(t, t.Context(), w.a, &seguev1.GenerateRequest{
					Session: w.id, Epoch: 1, Request: r, Protection: modeSync, Holder: w.b.peer, Window: c.window,
				})
				c.until(t, w)
				if v := w.a.view(t, w.id, "primary"); v.GetState() != c.state {
					t.Fatalf("cancelled in state %q, want %q", v.GetState(), c.state)
				}
				cancelRun(t, w.a, w.id, 1)
				w.x.read(w.recv, nil)
				wantReason(t, w.x.err, seguev1.Reason_REASON_CANCELLED)
				time.Sleep(200 * time.Millisecond) // virtual: a chunk in flight ends
				w.a.empty(t)
				if v := w.a.view(t, w.id, "primary"); v != nil {
					t.Errorf("the session is still listed: %v", v)
				}
				w.n.thaw()
				cancelRun(t, w.b, w.id, 1)
				time.Sleep(200 * time.Millisecond) // virtual
				w.b.empty(t)
			})
		})
	}
}

func TestCancel_AfterTheFinish(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		id, r := newID(t), request(10)
		req := &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}
		var x transcript
		x.read(generate(t, t.Context(), a, req), nil)
		synctest.Wait()
		a.empty(t)
		cancelRun(t, a, id, 1)
		synctest.Wait()
		if v := a.view(t, id, "primary"); v != nil {
			t.Errorf("still listed: %v", v)
		}
		_, err := generate(t, t.Context(), a, req)()
		wantReason(t, err, seguev1.Reason_REASON_CANCELLED)
	})
}

// A cancel that comes while the attempt is about to begin ends it as surely as one that comes later.
func TestCancel_RacesWithTheBeginning(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		r := request(400)
		for i := range 40 {
			id := newID(t)
			var x transcript
			var calls sync.WaitGroup
			if i%2 == 0 {
				calls.Go(func() {
					x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 2, Request: r, Protection: modeSync, Holder: b.peer}), nil)
				})
			} else {
				ctx, cancel := context.WithCancel(t.Context())
				x.read(generate(t, ctx, b, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: a.peer}), tokens(3))
				cancel()
				cancelRun(t, b, id, 1)
				calls.Go(func() { x.read(takeover(t, t.Context(), a, x.order(id, 2, r, modeOff)), nil) })
			}
			calls.Go(func() {
				for range i {
					runtime.Gosched()
				}
				if _, err := a.client.Cancel(t.Context(), &seguev1.CancelRequest{Session: id, Epoch: 2}); err != nil {
					t.Error(err)
				}
			})
			calls.Wait()
			wantReason(t, x.err, seguev1.Reason_REASON_CANCELLED)
			time.Sleep(10 * time.Millisecond) // virtual
			a.empty(t)
			cancelRun(t, b, id, 2)
		}
	})
}

// An agent that stops ends its sessions with a reason, and its own end doesn't wait for them.
func TestAgent_StopsWithLiveSessions(t *testing.T) {
	pair(t, patient, func(t *testing.T, n *memNet, a, b *testNode) {
		r := request(400)
		streams := make([]stream, 2)
		seen := make([]transcript, 2)
		for i, mode := range []seguev1.ProtectionMode{modeSync, modeOff} {
			streams[i] = generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: mode, Holder: b.peer, Window: 4})
			seen[i].read(streams[i], tokens(5))
		}
		seen = append(seen, transcript{})
		id := newID(t)
		seen[2].read(generate(t, t.Context(), b, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: a.peer}), tokens(5))
		n.freeze("a")
		time.Sleep(time.Second) // virtual: the protected one waits for its window
		began := time.Now()
		stopped := make(chan struct{})
		go func() { a.stop(); close(stopped) }()
		for i, s := range streams {
			seen[i].read(s, nil)
			wantReason(t, seen[i].err, seguev1.Reason_REASON_NOT_READY)
		}
		<-stopped
		if d := time.Since(began); d > 1100*time.Millisecond {
			t.Errorf("the agent took %v to stop", d)
		}
	})
}

// An engine that hangs keeps neither callers nor other sessions from hearing that the agent stops.
func TestAgent_StopsWithAHungEngine(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		letGo := a.host.hold("hang")
		recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(5), Protection: modeOff})
		synctest.Wait()
		began := time.Now()
		stopped := make(chan struct{})
		go func() { a.stop(); close(stopped) }()
		_, err := recv()
		wantReason(t, err, seguev1.Reason_REASON_NOT_READY)
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("the caller heard after %v", d)
		}
		letGo()
		<-stopped
	})
}
