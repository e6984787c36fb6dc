// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines/sim"
)

func park(t *testing.T, on *testNode, id []byte, epoch uint64) (int, error) {
	t.Helper()
	r, err := on.client.Park(t.Context(), &seguev1.ParkRequest{Session: id, Epoch: epoch})
	return int(r.GetBoundary()), err
}

func mustPark(t *testing.T, on *testNode, id []byte, epoch uint64) int {
	t.Helper()
	n, err := park(t, on, id, epoch)
	if err != nil {
		t.Fatalf("park: %v", err)
	}
	return n
}

// exact reads every row again at each step.
func exact() sim.Config {
	c := tinySim()
	c.Verify = true
	return c
}

// planned runs f when a session of epoch 1 runs on a, replicated to b, and its caller has got cut tokens.
func planned(t *testing.T, mode seguev1.ProtectionMode, cut, max int, change func(*agent.Config), f func(t *testing.T, n *memNet, a, b *testNode, m *move)) {
	t.Helper()
	bubble(t, func(t *testing.T, n *memNet) {
		a := n.start(t, "a", "127.0.0.1:1001", exact(), change)
		b := n.start(t, "b", "127.0.0.1:1002", exact(), change)
		m := &move{r: request(max), id: newID(t), mode: mode}
		m.ref = reference(t, b, m.r)
		m.recv = generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: m.id, Epoch: 1, Request: m.r, Protection: mode, Holder: b.peer})
		m.x.read(m.recv, tokens(cut))
		if m.x.err != nil {
			t.Fatal(m.x.err)
		}
		f(t, n, a, b, m)
	})
}

// move is a session that is to be moved.
type move struct {
	r    *seguev1.Request
	id   []byte
	mode seguev1.ProtectionMode
	ref  *transcript
	recv stream     // of epoch 1
	x    transcript // what the caller's gate has accepted
}

// take continues the session to its end.
func (m *move) take(t *testing.T, on *testNode, epoch uint64, holder *seguev1.Peer) {
	t.Helper()
	o := m.x.order(m.id, epoch, m.r, m.mode)
	o.Holder = holder
	m.x.read(takeover(t, t.Context(), on, o), nil)
	m.x.equal(t, m.ref)
}

func TestPark_TakeoverBackContinuesTokenForToken(t *testing.T) {
	for _, mode := range []seguev1.ProtectionMode{modeSync, modeAsync} {
		for _, cut := range []int{1, 2, 15, 16, 17, 39} {
			planned(t, mode, cut, 60, nil, func(t *testing.T, n *memNet, a, b *testNode, m *move) {
				before := a.host.facts(t)
				boundary := mustPark(t, a, m.id, 1)
				if boundary < cut || boundary > 60 {
					t.Errorf("parked at %d after %d tokens", boundary, cut)
				}
				var old transcript
				old.read(m.recv, nil)
				wantReason(t, old.err, seguev1.Reason_REASON_PARKED)
				time.Sleep(2 * tinySim().Step) // virtual
				d := a.describe(t)
				if d.GetContextsUsed() != 0 || a.host.facts(t).Running != 0 || d.GetSnapshotBytesUsed() == 0 || d.GetSessionsParked() != 1 {
					t.Errorf("parked: %v", d)
				}
				v := a.view(t, m.id, "parked")
				if v.GetEpoch() != 1 || int(v.GetCommitted()) != boundary || v.GetBytes() == 0 || a.view(t, m.id, "primary") != nil {
					t.Errorf("listed as %v and %v", v, a.view(t, m.id, "primary"))
				}
				m.take(t, a, 3, b.peer)
				f := a.host.facts(t)
				if int(m.x.seam.GetBoundary()) != boundary || f.PrefillTokens != before.PrefillTokens || f.ReplayedDecodeSteps != 0 || f.RestoredRows == before.RestoredRows {
					t.Errorf("mode %v, cut %d: seam %v, engine %+v, before %+v", mode, cut, m.x.seam, f, before)
				}
				if a.view(t, m.id, "parked") != nil || a.describe(t).GetSessionsParked() != 0 {
					t.Error("still parked")
				}
			})
		}
	}
}

// A session that has rows and no holder can be parked too, and so can a continuation before its engine has begun.
func TestPark_WithoutAHolderAndAgain(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		m := &move{r: request(60), id: newID(t), mode: modeAsync}
		m.ref = reference(t, b, m.r)
		m.x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: m.id, Epoch: 1, Request: m.r, Protection: m.mode}), tokens(20))
		first := mustPark(t, a, m.id, 1)
		letGo := a.host.hold("run")
		recv := takeover(t, t.Context(), a, m.x.order(m.id, 2, m.r, m.mode))
		new(transcript).read(recv, protection(1))
		if again := mustPark(t, a, m.id, 2); again != first {
			t.Errorf("parked at %d, then at %d though nothing was computed", first, again)
		}
		letGo()
		m.take(t, a, 3, nil)
	})
}

// What was captured goes to the holder though the run is over; nobody waits for it.
func TestPark_WhileTheHolderLags(t *testing.T) {
	for name, c := range map[string]struct{ hinder, help func(n *memNet) }{
		"slow":   {func(n *memNet) { n.delay("a", 80*time.Millisecond) }, func(n *memNet) {}},
		"frozen": {func(n *memNet) { n.freeze("a") }, func(n *memNet) { n.thaw() }},
	} {
		t.Run(name, func(t *testing.T) {
			planned(t, modeAsync, 20, 60, patient, func(t *testing.T, n *memNet, a, b *testNode, m *move) {
				synctest.Wait()
				c.hinder(n)
				m.x.read(m.recv, tokens(30))
				began := time.Now()
				boundary := mustPark(t, a, m.id, 1)
				if d := time.Since(began); d > 0 {
					t.Errorf("park took %v", d)
				}
				if got := int(b.view(t, m.id, "holder").GetCommitted()); got >= 30 {
					t.Fatalf("the holder has %d: it doesn't lag", got)
				}
				_, err := takeover(t, t.Context(), b, m.x.order(m.id, 2, m.r, modeOff))()
				wantReason(t, err, seguev1.Reason_REASON_NOT_COVERED)
				// That has raised the holder's epoch: what comes now it doesn't take, and the run goes on where it is parked.
				c.help(n)
				m.take(t, a, 3, nil)
				if int(m.x.seam.GetBoundary()) != boundary {
					t.Errorf("continued at %d, parked at %d", m.x.seam.GetBoundary(), boundary)
				}
			})
			planned(t, modeAsync, 20, 60, patient, func(t *testing.T, n *memNet, a, b *testNode, m *move) {
				synctest.Wait()
				c.hinder(n)
				m.x.read(m.recv, tokens(30))
				boundary := mustPark(t, a, m.id, 1)
				c.help(n)
				time.Sleep(time.Second) // virtual
				if got := int(b.view(t, m.id, "holder").GetCommitted()); got != boundary {
					t.Fatalf("the holder has %d of %d", got, boundary)
				}
				m.take(t, b, 2, nil)
				if int(m.x.seam.GetBoundary()) != boundary {
					t.Errorf("continued at %d, parked at %d", m.x.seam.GetBoundary(), boundary)
				}
			})
		})
	}
}

// A holder that loses its store while the run is parked gets the base again, and can take over.
func TestPark_HolderRestarts(t *testing.T) {
	planned(t, modeSync, 30, 60, nil, func(t *testing.T, n *memNet, a, b *testNode, m *move) {
		boundary := mustPark(t, a, m.id, 1)
		b.stop()
		b2 := n.start(t, "b", "127.0.0.1:1002", exact(), nil)
		time.Sleep(3 * time.Second) // virtual: until the sender tries again
		if got := int(b2.view(t, m.id, "holder").GetCommitted()); got != boundary {
			t.Fatalf("the new holder has %d of %d", got, boundary)
		}
		m.take(t, b2, 2, nil)
	})
}

// The whole planned move, and the ends of what is parked.
func TestPark_Ends(t *testing.T) {
	hold := func(c *agent.Config) { c.HoldTimeout = time.Minute }
	for name, end := range map[string]func(t *testing.T, a, b *testNode, m *move){
		"cancel": func(t *testing.T, a, _ *testNode, m *move) { cancelRun(t, a, m.id, 1) },
		"cancel of a later epoch": func(t *testing.T, a, _ *testNode, m *move) {
			cancelRun(t, a, m.id, 2)
		},
		"release": func(t *testing.T, a, _ *testNode, m *move) { release(t, a, m.id) },
		"sweep":   func(*testing.T, *testNode, *testNode, *move) { time.Sleep(2 * time.Minute) }, // virtual
		"restart from the prompt": func(t *testing.T, a, _ *testNode, m *move) {
			new(transcript).read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: m.id, Epoch: 3, Request: m.r, Protection: modeOff}), tokens(1))
			cancelRun(t, a, m.id, 3)
		},
		"base of a higher epoch": func(t *testing.T, a, b *testNode, m *move) {
			id := m.id
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			new(transcript).read(generate(t, ctx, b, &seguev1.GenerateRequest{Session: id, Epoch: 4, Request: m.r, Protection: modeSync, Holder: a.peer}), (*transcript).protected)
			if v := a.view(t, id, "holder"); v.GetEpoch() != 4 {
				t.Fatalf("a holds %v", v)
			}
			cancelRun(t, b, id, 4)
			cancelRun(t, a, id, 4)
		},
	} {
		t.Run(name, func(t *testing.T) {
			planned(t, modeSync, 20, 60, hold, func(t *testing.T, n *memNet, a, b *testNode, m *move) {
				if _, err := prepare(t, b, m.id, 1, 0); err != nil {
					t.Fatal(err)
				}
				mustPark(t, a, m.id, 1)
				m.take(t, b, 2, nil)
				if a.view(t, m.id, "parked") == nil {
					t.Fatal("not parked any more before its end")
				}
				end(t, a, b, m)
				time.Sleep(100 * time.Millisecond) // virtual
				a.empty(t)
				if v := a.view(t, m.id, "parked"); v != nil || a.describe(t).GetSessionsParked() != 0 {
					t.Errorf("still parked: %v", v)
				}
				_, err := takeover(t, t.Context(), a, m.x.order(m.id, 9, m.r, modeOff))()
				wantReason(t, err, seguev1.Reason_REASON_UNKNOWN_SESSION)
				dials := n.dialed("a", "b")
				b.stop()
				time.Sleep(5 * time.Second) // virtual
				if got := n.dialed("a", "b"); got > dials+1 {
					t.Errorf("%d attempts to reach the holder of what isn't kept any more", got-dials)
				}
			})
		})
	}
}

func TestPark_Repeats(t *testing.T) {
	planned(t, modeSync, 20, 60, nil, func(t *testing.T, n *memNet, a, b *testNode, m *move) {
		answers := make([]int, 8)
		var calls sync.WaitGroup
		for i := range answers {
			calls.Go(func() { answers[i], _ = park(t, a, m.id, 1) })
		}
		calls.Wait()
		for _, n := range answers {
			if n != answers[0] || n < 20 {
				t.Fatalf("answers %v", answers)
			}
		}
		// A late one harms no later run, and one that finds nothing to park says why.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		recv := takeover(t, ctx, a, m.x.order(m.id, 3, m.r, m.mode))
		m.x.read(recv, tokens(30))
		for _, epoch := range []uint64{1, 2} {
			_, err := park(t, a, m.id, epoch)
			wantReason(t, err, seguev1.Reason_REASON_FENCED)
		}
		m.x.read(recv, nil)
		m.x.equal(t, m.ref)
		_, err := park(t, a, m.id, 3)
		wantReason(t, err, seguev1.Reason_REASON_UNKNOWN_SESSION)
	})
}

// G4: once a run is parked, nothing of its epoch starts, is accepted or leaves, and what is kept doesn't change.
func TestPark_FencesTheOldEpoch(t *testing.T) {
	planned(t, modeSync, 20, 60, patient, func(t *testing.T, n *memNet, a, b *testNode, m *move) {
		c := n.start(t, "c", "127.0.0.1:1003", exact(), nil)
		n.freeze("a")
		m.x.read(m.recv, func(x *transcript) bool { return x.progress.GetWaitsFor() == "window" })
		v := a.view(t, m.id, "primary")
		if int(v.GetCaptured()) <= len(m.x.tokens) {
			t.Fatalf("nothing waits to leave: %v after %d tokens", v, len(m.x.tokens))
		}
		boundary := mustPark(t, a, m.id, 1)
		n.thaw()
		var old transcript
		old.read(m.recv, nil)
		wantReason(t, old.err, seguev1.Reason_REASON_PARKED)
		if len(old.tokens) > 0 {
			t.Errorf("%d tokens left after the run was parked", len(old.tokens))
		}
		kept := a.view(t, m.id, "parked")
		for what, try := range map[string]func() error{
			"generate": func() error {
				_, err := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: m.id, Epoch: 1, Request: m.r, Protection: modeOff})()
				return err
			},
			"takeover": func() error {
				_, err := takeover(t, t.Context(), a, m.x.order(m.id, 1, m.r, modeOff))()
				return err
			},
			"pair": func() error {
				_, err := a.client.Pair(t.Context(), &seguev1.PairRequest{Session: m.id, Epoch: 1, Holder: c.peer})
				return err
			},
			"base and records": func() error {
				var x transcript
				x.read(generate(t, t.Context(), c, &seguev1.GenerateRequest{Session: m.id, Epoch: 1, Request: request(50), Protection: modeSync, Holder: a.peer}), nil)
				return x.err
			},
		} {
			if err := try(); err == nil {
				t.Errorf("%s of the parked epoch is accepted", what)
			}
			now := a.view(t, m.id, "parked")
			if now.GetCommitted() != kept.GetCommitted() || now.GetEpoch() != 1 || now.GetBytes() != kept.GetBytes() {
				t.Fatalf("%s changed what is kept: %v, was %v", what, now, kept)
			}
		}
		m.take(t, a, 3, nil)
		if int(m.x.seam.GetBoundary()) != boundary {
			t.Errorf("continued at %d, parked at %d", m.x.seam.GetBoundary(), boundary)
		}
	})
}

// The record has the finish: it is handed out without the engine.
func TestPark_FinishedRun(t *testing.T) {
	planned(t, modeSync, 10, 20, patient, func(t *testing.T, n *memNet, a, b *testNode, m *move) {
		n.freeze("a")
		m.x.read(m.recv, func(x *transcript) bool { return x.progress.GetWaitsFor() == "commit" })
		if v := a.view(t, m.id, "primary"); v.GetState() != "finished" {
			t.Fatalf("parked as %v", v)
		}
		before := a.host.facts(t)
		if got := mustPark(t, a, m.id, 1); got != 20 {
			t.Errorf("parked at %d of 20", got)
		}
		m.take(t, a, 3, nil)
		if after := a.host.facts(t); after != before {
			t.Errorf("the engine worked: %+v, before %+v", after, before)
		}
	})
}

// The rows are the agent's: a run whose engine died is parked, and goes on when there is an engine again.
func TestPark_EngineLost(t *testing.T) {
	planned(t, modeSync, 20, 60, nil, func(t *testing.T, n *memNet, a, b *testNode, m *move) {
		a.host.die()
		new(transcript).read(m.recv, nil)
		mustPark(t, a, m.id, 1)
		_, err := takeover(t, t.Context(), a, m.x.order(m.id, 3, m.r, m.mode))()
		wantReason(t, err, seguev1.Reason_REASON_NOT_READY)
		a.host.restart(t, exact())
		m.take(t, a, 4, nil)
	})
}

// Whatever order the calls of a move come in, the session goes on in at most one place, and nothing stays behind.
func TestPark_RacesWithOtherCalls(t *testing.T) {
	for i := range 24 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			planned(t, modeSync, 5+i, 60, nil, func(t *testing.T, n *memNet, a, b *testNode, m *move) {
				var calls sync.WaitGroup
				var y transcript
				parked, parkErr := 0, error(nil)
				for k, call := range []func(){
					func() { parked, parkErr = park(t, a, m.id, 1) },
					func() { y.read(takeover(t, t.Context(), a, m.x.order(m.id, 3, m.r, m.mode)), nil) },
					func() { _, _ = prepare(t, a, m.id, 2, 100) },
					func() {
						if i%3 == 0 {
							cancelRun(t, a, m.id, 1)
						}
					},
				} {
					calls.Go(func() {
						time.Sleep(time.Duration((i*(k+3))%4) * time.Millisecond) // virtual
						call()
					})
				}
				calls.Wait()
				switch {
				case y.err == nil:
					m.x.tokens, m.x.finish = append(m.x.tokens, y.tokens...), y.finish
					m.x.equal(t, m.ref)
					if parkErr == nil && int(y.seam.GetBoundary()) != parked {
						t.Errorf("parked at %d, continued at %v", parked, y.seam)
					}
				default:
					wantReason(t, y.err, seguev1.Reason_REASON_UNKNOWN_SESSION)
				}
				cancelRun(t, a, m.id, 3)
				cancelRun(t, b, m.id, 3)
				time.Sleep(6 * time.Second) // virtual
				a.empty(t)
			})
		})
	}
}
