// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

func prepare(t *testing.T, on *testNode, id []byte, epoch uint64, hold uint32) (*seguev1.PrepareResponse, error) {
	t.Helper()
	return on.client.Prepare(t.Context(), &seguev1.PrepareRequest{Session: id, Epoch: epoch, HoldMs: hold})
}

func mustPrepare(t *testing.T, on *testNode, id []byte, epoch uint64, hold uint32) *seguev1.PrepareResponse {
	t.Helper()
	r, err := prepare(t, on, id, epoch, hold)
	if err != nil {
		t.Fatalf("prepare: %v", err)
	}
	return r
}

// crowded runs f when two sessions of epoch 1 run on a, and their holder b has one context.
func crowded(t *testing.T, f func(t *testing.T, n *memNet, a, b *testNode, m, other *move)) {
	t.Helper()
	bubble(t, func(t *testing.T, n *memNet) {
		one := exact()
		one.Contexts = 1
		a := n.start(t, "a", "127.0.0.1:1001", exact(), nil)
		b := n.start(t, "b", "127.0.0.1:1002", one, func(c *agent.Config) { c.ReservedForTakeover = 0 })
		var moves []*move
		for range 2 {
			m := &move{r: request(400), id: newID(t), mode: modeSync}
			m.recv = generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: m.id, Epoch: 1, Request: m.r, Protection: m.mode, Holder: b.peer})
			m.x.read(m.recv, tokens(10))
			moves = append(moves, m)
		}
		f(t, n, a, b, moves[0], moves[1])
	})
}

// order is the takeover with protection off.
func (m *move) order(epoch uint64) *seguev1.TakeoverRequest {
	return m.x.order(m.id, epoch, m.r, modeOff)
}

func TestPrepare_KeepsTheLastContext(t *testing.T) {
	crowded(t, func(t *testing.T, n *memNet, a, b *testNode, m, other *move) {
		p := mustPrepare(t, b, m.id, 1, 0)
		if p.GetBoundary() < 10 || p.GetStateEpoch() != 1 || p.GetPromptTokens() != m.x.prompt.GetTokens() || p.GetHoldMs() != 5000 {
			t.Errorf("answer %v", p)
		}
		d, v := b.describe(t), b.view(t, m.id, "holder")
		if d.GetContextsUsed() != 1 || d.GetContextsPrepared() != 1 || v.GetPreparedMs() == 0 || v.GetPreparedMs() > 5000 {
			t.Errorf("%v, listed as %v", d, v)
		}
		if code, body := b.get(t, "/v1/sessions"); code != 200 || strings.Count(body, "prepared_ms") != 1 {
			t.Errorf("admin view: %d %s", code, body)
		}
		_, err := takeover(t, t.Context(), b, other.order(2))()
		wantReason(t, err, seguev1.Reason_REASON_NO_CAPACITY)
		_, err = prepare(t, b, other.id, 1, 0)
		wantReason(t, err, seguev1.Reason_REASON_NO_CAPACITY)
		_, err = generate(t, t.Context(), b, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: m.r, Protection: modeOff})()
		wantReason(t, err, seguev1.Reason_REASON_NO_CAPACITY)

		// The run goes on and replicates: its epoch isn't raised.
		m.x.read(m.recv, tokens(40))
		if again := mustPrepare(t, b, m.id, 1, 0); again.GetBoundary() < 40 || m.x.err != nil {
			t.Errorf("later answer %v, %v", again, m.x.err)
		}
		mustPark(t, a, m.id, 1)
		if e, err := takeover(t, t.Context(), b, m.order(2))(); err != nil || e.GetSeam() == nil {
			t.Fatalf("prepared takeover: %v %v", e, err)
		}
		if d := b.describe(t); d.GetContextsUsed() != 1 || d.GetContextsPrepared() != 0 {
			t.Errorf("after the takeover: %v", d)
		}
	})
}

func TestPrepare_Expires(t *testing.T) {
	crowded(t, func(t *testing.T, n *memNet, a, b *testNode, m, other *move) {
		for hold, want := range map[uint32]uint32{0: 5000, 700: 700, 60_000: 60_000, 1<<32 - 1: 60_000} {
			if got := mustPrepare(t, b, m.id, 1, hold).GetHoldMs(); got != want {
				t.Errorf("hold_ms %d: %d are granted, want %d", hold, got, want)
			}
			cancelKept(t, b, m)
		}
		kept := func() bool { return b.describe(t).GetContextsPrepared() == 1 }
		mustPrepare(t, b, m.id, 1, 1000)
		time.Sleep(600 * time.Millisecond) // virtual
		mustPrepare(t, b, m.id, 1, 1000)
		time.Sleep(600 * time.Millisecond) // virtual
		mustPrepare(t, b, m.id, 1, 100)    // shortens nothing
		time.Sleep(300 * time.Millisecond) // virtual
		if !kept() {
			t.Fatal("the repeat didn't renew it")
		}
		time.Sleep(110 * time.Millisecond) // virtual
		if kept() || b.view(t, m.id, "holder").GetPreparedMs() != 0 {
			t.Fatal("still kept after its time")
		}
		if got := value(b.gather(t), "segue_agent_prepared_ended_total", "expired"); got != 1 {
			t.Errorf("%v expired", got)
		}
		if e, err := takeover(t, t.Context(), b, other.order(2))(); err != nil || e.GetSeam() == nil {
			t.Fatalf("takeover into the context that was kept: %v %v", e, err)
		}
		_, err := takeover(t, t.Context(), b, m.order(2))()
		wantReason(t, err, seguev1.Reason_REASON_NO_CAPACITY)
	})
}

// cancelKept gives the reservation up by a takeover that is refused.
func cancelKept(t *testing.T, b *testNode, m *move) {
	t.Helper()
	o := m.order(1<<32 + uint64(value(b.gather(t), "segue_agent_prepared_ended_total")))
	o.Request = request(400)
	o.Request.Model = "another"
	_, err := takeover(t, t.Context(), b, o)()
	wantReason(t, err, seguev1.Reason_REASON_INVALID_REQUEST)
}

func TestPrepare_Ends(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, a, b *testNode, m *move){
		"cancel":  func(t *testing.T, _, b *testNode, m *move) { cancelRun(t, b, m.id, 1) },
		"release": func(t *testing.T, _, b *testNode, m *move) { release(t, b, m.id) },
		"refused takeover": func(t *testing.T, _, b *testNode, m *move) {
			o := m.order(2)
			o.Delivered = 1000
			_, err := takeover(t, t.Context(), b, o)()
			wantReason(t, err, seguev1.Reason_REASON_NOT_COVERED)
		},
		"takeover without an engine": func(t *testing.T, _, b *testNode, m *move) {
			b.host.die()
			_, err := takeover(t, t.Context(), b, m.order(2))()
			wantReason(t, err, seguev1.Reason_REASON_NOT_READY)
			b.host.restart(t, exact())
		},
		"refused repeat": func(t *testing.T, _, b *testNode, m *move) {
			b.host.die()
			_, err := prepare(t, b, m.id, 1, 0)
			wantReason(t, err, seguev1.Reason_REASON_NOT_READY)
			b.host.restart(t, exact())
		},
		"base of a higher epoch": func(t *testing.T, a, b *testNode, m *move) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			new(transcript).read(generate(t, ctx, a, &seguev1.GenerateRequest{Session: m.id, Epoch: 2, Request: m.r, Protection: modeSync, Holder: b.peer}), (*transcript).protected)
			cancelRun(t, a, m.id, 2)
		},
		"run of a higher epoch": func(t *testing.T, a, b *testNode, m *move) {
			x := new(transcript).read(generate(t, t.Context(), b, &seguev1.GenerateRequest{Session: m.id, Epoch: 2, Request: m.r, Protection: modeOff}), tokens(1))
			if x.err != nil {
				t.Fatalf("a run in place of the takeover: %v", x.err)
			}
			cancelRun(t, b, m.id, 2)
			time.Sleep(100 * time.Millisecond) // virtual
		},
	} {
		t.Run(name, func(t *testing.T) {
			crowded(t, func(t *testing.T, n *memNet, a, b *testNode, m, other *move) {
				mustPrepare(t, b, m.id, 1, 60_000)
				end(t, a, b, m)
				if d := b.describe(t); d.GetContextsPrepared() != 0 || d.GetContextsUsed() != 0 {
					t.Fatalf("still kept: %v", d)
				}
				if e, err := takeover(t, t.Context(), b, other.order(2))(); err != nil || e.GetSeam() == nil {
					t.Fatalf("the context is not free: %v %v", e, err)
				}
			})
		})
	}
}

// Calls of an epoch below the reservation's don't end it.
func TestPrepare_OutlivesEarlierEpochs(t *testing.T) {
	crowded(t, func(t *testing.T, n *memNet, a, b *testNode, m, other *move) {
		cancelRun(t, a, m.id, 1)
		m.x = transcript{}
		m.x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: m.id, Epoch: 5, Request: m.r, Protection: modeSync, Holder: b.peer}), tokens(5))
		mustPrepare(t, b, m.id, 5, 60_000)
		_, err := prepare(t, b, m.id, 4, 0)
		wantReason(t, err, seguev1.Reason_REASON_FENCED)
		cancelRun(t, b, m.id, 4)
		_, err = b.client.Release(t.Context(), &seguev1.ReleaseRequest{Session: m.id, Epoch: 4})
		if err != nil {
			t.Fatal(err)
		}
		_, err = takeover(t, t.Context(), b, m.order(5))()
		wantReason(t, err, seguev1.Reason_REASON_NO_CAPACITY)
		if b.describe(t).GetContextsPrepared() != 1 {
			t.Fatal("not kept any more")
		}
		if e, err := takeover(t, t.Context(), b, m.order(6))(); err != nil || e.GetSeam() == nil {
			t.Fatalf("prepared takeover: %v %v", e, err)
		}
	})
}

// The engine restarts between the two calls: the context is kept, and whether the state fits is judged anew.
func TestPrepare_EngineRestarts(t *testing.T) {
	for _, same := range []bool{true, false} {
		planned(t, modeSync, 20, 60, nil, func(t *testing.T, n *memNet, a, b *testNode, m *move) {
			mustPrepare(t, b, m.id, 1, 0)
			next := exact()
			if !same {
				next.Threads = 3
			}
			boot := b.describe(t).GetEngineBootId()
			b.host.die()
			b.host.restart(t, next)
			if d := b.describe(t); string(d.GetEngineBootId()) == string(boot) || d.GetContextsPrepared() != 1 {
				t.Fatalf("after the restart: %v", d)
			}
			mustPark(t, a, m.id, 1)
			if same {
				m.take(t, b, 2, nil)
				return
			}
			_, err := takeover(t, t.Context(), b, m.order(2))()
			wantReason(t, err, seguev1.Reason_REASON_FINGERPRINT_MISMATCH)
			_, err = prepare(t, b, m.id, 2, 0)
			wantReason(t, err, seguev1.Reason_REASON_FINGERPRINT_MISMATCH)
			if d := b.describe(t); d.GetContextsUsed() != 0 {
				t.Errorf("after the refusals: %v", d)
			}
			m.take(t, a, 3, nil)
		})
	}
}

func TestPrepare_Refusals(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		a := n.start(t, "a", "127.0.0.1:1001", slowSim(), nil)
		b := n.start(t, "b", "127.0.0.1:1002", slowSim(), nil)
		refused := func(id []byte, epoch uint64, want seguev1.Reason) {
			t.Helper()
			_, err := prepare(t, b, id, epoch, 0)
			wantReason(t, err, want)
			if d := b.describe(t); d.GetContextsUsed() != 0 {
				t.Errorf("a refusal keeps a context: %v", d)
			}
		}
		id, r := newID(t), request(30)
		refused(id, 1, seguev1.Reason_REASON_UNKNOWN_SESSION)
		recv := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 3, Request: r, Protection: modeSync, Holder: b.peer})
		time.Sleep(400 * time.Millisecond) // virtual
		if v := b.view(t, id, "holder"); v == nil || v.GetCommitted() != 0 {
			t.Fatalf("no base in progress: %v", v)
		}
		refused(id, 3, seguev1.Reason_REASON_NOT_COVERED)
		refused(id, 2, seguev1.Reason_REASON_FENCED)
		new(transcript).read(recv, tokens(5))
		_, err := prepare(t, a, id, 3, 0)
		wantReason(t, err, seguev1.Reason_REASON_UNKNOWN_SESSION) // the primary holds nothing
		// State of an earlier epoch is told apart: the base of the running attempt may still come.
		if p := mustPrepare(t, b, id, 4, 0); p.GetStateEpoch() != 3 || p.GetBoundary() < 5 {
			t.Errorf("answer %v", p)
		}
		cancelRun(t, b, id, 4)
		refused(id, 4, seguev1.Reason_REASON_CANCELLED)
		refused(id, 5, seguev1.Reason_REASON_UNKNOWN_SESSION)
	})
}

// A parked session can have a context kept for its way back.
func TestPrepare_OnAParkedSession(t *testing.T) {
	planned(t, modeSync, 20, 60, nil, func(t *testing.T, n *memNet, a, b *testNode, m *move) {
		boundary := mustPark(t, a, m.id, 1)
		_, err := prepare(t, a, m.id, 1, 0)
		wantReason(t, err, seguev1.Reason_REASON_CANCELLED)
		if p := mustPrepare(t, a, m.id, 2, 0); int(p.GetBoundary()) != boundary || p.GetStateEpoch() != 1 {
			t.Errorf("answer %v, parked at %d", p, boundary)
		}
		time.Sleep(100 * time.Millisecond) // virtual
		if v, d := a.view(t, m.id, "parked"), a.describe(t); v.GetPreparedMs() == 0 || d.GetContextsUsed() != 1 || d.GetContextsPrepared() != 1 {
			t.Errorf("listed as %v; %v", v, d)
		}
		m.take(t, a, 3, nil)
	})
}

// Calls at once keep one context.
func TestPrepare_Concurrent(t *testing.T) {
	planned(t, modeSync, 20, 60, nil, func(t *testing.T, n *memNet, a, b *testNode, m *move) {
		var calls sync.WaitGroup
		for range 16 {
			calls.Go(func() { _, _ = prepare(t, b, m.id, 1, 1000) })
		}
		calls.Wait()
		if d := b.describe(t); d.GetContextsUsed() != 1 || d.GetContextsPrepared() != 1 {
			t.Errorf("kept: %v", d)
		}
		time.Sleep(1001 * time.Millisecond) // virtual
		if d := b.describe(t); d.GetContextsUsed() != 0 {
			t.Errorf("kept for ever: %v", d)
		}
	})
}
