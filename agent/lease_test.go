// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines/sim"
)

const (
	ttl    = 6 * time.Second
	margin = 500 * time.Millisecond
	usable = ttl - margin
)

// grantorID is the router of these tests.
var grantorID = []byte("router-of-a-test")

// lease is what a call brings that quotes nothing.
func lease() *seguev1.Lease {
	return &seguev1.Lease{Grantor: grantorID, TtlMs: uint32(ttl.Milliseconds()), MarginMs: uint32(margin.Milliseconds())}
}

// quoting is a lease that answers a question.
func quoting(q *seguev1.RenewResponse) *seguev1.Lease {
	l := lease()
	l.BootId, l.Number = q.GetBootId(), q.GetNumber()
	return l
}

func (b *testNode) renew(t *testing.T, r *seguev1.RenewRequest) *seguev1.RenewResponse {
	t.Helper()
	if r.Grantor == nil {
		r.Grantor = grantorID
	}
	q, err := b.client.Renew(t.Context(), r)
	if err != nil {
		t.Error("renew:", err) // not Fatal: also called from other goroutines
	}
	return q
}

// granting answers a question for one run.
func granting(q *seguev1.RenewResponse, id []byte, epoch uint64) *seguev1.RenewRequest {
	return &seguev1.RenewRequest{BootId: q.GetBootId(), Number: q.GetNumber(), Grants: []*seguev1.LeaseGrant{{
		Session: id, Epoch: epoch, TtlMs: uint32(ttl.Milliseconds()), MarginMs: uint32(margin.Milliseconds()),
	}}}
}

// steps is an engine with a step time.
func steps(d time.Duration) sim.Config {
	c := tinySim()
	c.Step = d
	return c
}

// leased runs f with a session on node a that has a lease, of which nothing was read yet.
func leased(t *testing.T, step time.Duration, mode seguev1.ProtectionMode, f func(t *testing.T, a, b *testNode, id []byte, recv stream)) {
	t.Helper()
	bubble(t, func(t *testing.T, n *memNet) {
		a := n.start(t, "a", "127.0.0.1:1001", steps(step), patient)
		b := n.start(t, "b", "127.0.0.1:1002", steps(step), patient)
		id := newID(t)
		f(t, a, b, id, generate(t, t.Context(), a, &seguev1.GenerateRequest{
			Session: id, Epoch: 1, Request: request(400), Protection: mode, Holder: b.peer, Lease: lease(),
		}))
	})
}

func TestLease_RenewalsKeepARunAlive(t *testing.T) {
	leased(t, time.Second, modeSync, func(t *testing.T, a, b *testNode, id []byte, recv stream) {
		stop := make(chan struct{})
		go func() { // ends with stop
			q := a.renew(t, &seguev1.RenewRequest{})
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Second):
				}
				q = a.renew(t, granting(q, id, 1))
			}
		}()
		began := time.Now()
		var x transcript
		x.read(recv, nil)
		close(stop)
		if x.err != nil || x.finish.GetTokens() == 0 || time.Since(began) < 3*time.Minute {
			t.Errorf("ended after %v: %v, %v", time.Since(began), x.finish, x.err)
		}
		synctest.Wait()
		if got := value(a.gather(t), "segue_agent_lease_renewals_total", "granted"); got < 180 {
			t.Errorf("%v renewals granted", got)
		}
	})
}

// Without a renewal a run ends at ttl - margin, not sooner and not later, and everything that it holds is free.
func TestLease_EndsTheRunOnTime(t *testing.T) {
	for name, mode := range map[string]seguev1.ProtectionMode{"off": modeOff, "async": modeAsync, "sync": modeSync} {
		t.Run(name, func(t *testing.T) {
			leased(t, 50*time.Millisecond, mode, func(t *testing.T, a, b *testNode, id []byte, recv stream) {
				began := time.Now()
				var x transcript
				x.read(recv, tokens(20))
				left := time.Duration(a.view(t, id, "primary").GetLeaseMs()) * time.Millisecond
				if want := usable - time.Since(began); left-want < 0 || left-want >= time.Millisecond {
					t.Errorf("%v left of the lease, want %v", left, want)
				}
				x.read(recv, nil)
				wantReason(t, x.err, seguev1.Reason_REASON_LEASE_ENDED)
				if took := time.Since(began); took != usable {
					t.Errorf("ended after %v, want %v", took, usable)
				}
				if len(x.tokens) < 100 {
					t.Errorf("%d tokens came before", len(x.tokens))
				}
				time.Sleep(100 * time.Millisecond) // virtual: the step in flight ends
				a.empty(t)
				if got := value(a.gather(t), "segue_agent_leases_expired_total"); got != 1 {
					t.Errorf("%v leases expired", got)
				}
			})
		})
	}
}

// The same in every phase of a run, also when all that is left is to hand out tokens.
func TestLease_EndsTheRunInEveryPhase(t *testing.T) {
	type world struct {
		n    *memNet
		a, b *testNode
		x    *transcript
		recv stream
	}
	for name, c := range map[string]struct {
		engine func(*sim.Config)
		window uint32
		max    uint32
		before func(w *world)
		until  func(w *world)
		state  string
	}{
		"before the prompt": {before: func(w *world) { w.a.host.hold("run") }, until: func(*world) { synctest.Wait() }, state: "queued"},
		"in prefill": {engine: func(c *sim.Config) { c.PrefillToken = 500 * time.Millisecond }, until: func(w *world) {
			w.x.read(w.recv, func(x *transcript) bool { return x.progress != nil })
		}, state: "prefill"},
		"waiting for the window": {max: 300, window: 4, until: func(w *world) {
			w.x.read(w.recv, tokens(10))
			w.n.freeze("a")
			w.x.read(w.recv, func(x *transcript) bool { return x.progress.GetWaitsFor() == "window" })
		}, state: "decode"},
		"waiting for the last commit": {max: 12, until: func(w *world) {
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
				w := &world{n: n, x: new(transcript)}
				w.a = n.start(t, "a", "127.0.0.1:1001", engine, patient)
				w.b = n.start(t, "b", "127.0.0.1:1002", engine, patient)
				if c.before != nil {
					c.before(w)
				}
				r, id := request(100), newID(t)
				if c.max > 0 {
					r.MaxTokens = c.max
				}
				began := time.Now()
				w.recv = generate(t, t.Context(), w.a, &seguev1.GenerateRequest{
					Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: w.b.peer, Window: c.window, Lease: lease(),
				})
				c.until(w)
				v := w.a.view(t, id, "primary")
				if v.GetState() != c.state || v.GetLeaseMs() == 0 {
					t.Fatalf("state %q, %d ms left, want %q", v.GetState(), v.GetLeaseMs(), c.state)
				}
				seen := len(w.x.tokens)
				w.x.read(w.recv, nil)
				wantReason(t, w.x.err, seguev1.Reason_REASON_LEASE_ENDED)
				if took := time.Since(began); took != usable || len(w.x.tokens) != seen {
					t.Errorf("ended after %v with %d tokens more, want %v and none", took, len(w.x.tokens)-seen, usable)
				}
				time.Sleep(8 * time.Second) // virtual: a chunk in flight ends
				w.a.empty(t)
			})
		})
	}
}

// While the process or its machine is stopped, no timer fires. Whatever it had in hand stays there.
func TestLease_NothingLeavesAfterALongStop(t *testing.T) {
	for name, mode := range map[string]seguev1.ProtectionMode{"off": modeOff, "async": modeAsync, "sync": modeSync} {
		t.Run(name, func(t *testing.T) {
			leased(t, 100*time.Millisecond, mode, func(t *testing.T, a, b *testNode, id []byte, recv stream) {
				var x transcript
				x.read(recv, tokens(5))
				time.Sleep(50 * time.Millisecond) // virtual: in the middle of a step
				captured := int(a.view(t, id, "primary").GetCaptured())
				a.clock.jump(usable)
				x.read(recv, nil)
				wantReason(t, x.err, seguev1.Reason_REASON_LEASE_ENDED)
				if len(x.tokens) > captured {
					t.Errorf("%d tokens came after the stop", len(x.tokens)-captured)
				}
				time.Sleep(200 * time.Millisecond) // virtual
				a.empty(t)
			})
		})
	}
}

// A stop that leaves something of the lease does no harm.
func TestLease_ShortStopIsForgiven(t *testing.T) {
	leased(t, 100*time.Millisecond, modeSync, func(t *testing.T, a, b *testNode, id []byte, recv stream) {
		began := time.Now()
		var x transcript
		x.read(recv, tokens(5))
		a.clock.jump(3 * time.Second)
		x.read(recv, nil)
		wantReason(t, x.err, seguev1.Reason_REASON_LEASE_ENDED)
		// The timer was set for the bubble's clock; the look at the lease's comes with the next thing to hand out.
		if took := time.Since(began); took < usable-3*time.Second || took > usable-3*time.Second+200*time.Millisecond {
			t.Errorf("ended after %v, of which 3s more were slept", took)
		}
	})
}
