// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// A run that its grantor has fenced learns it by the next renewal; another router has no say in it.
func TestRenew_EndsWhatTheGrantorHasDoneWith(t *testing.T) {
	leased(t, 50*time.Millisecond, modeSync, func(t *testing.T, a, b *testNode, id []byte, recv stream) {
		var x transcript
		x.read(recv, tokens(5))
		other := []byte("some-other-route")
		if q := a.renew(t, &seguev1.RenewRequest{Grantor: other}); len(q.GetRuns()) != 0 {
			t.Errorf("another grantor is asked for %v", q.GetRuns())
		}
		q := a.renew(t, &seguev1.RenewRequest{})
		if r := q.GetRuns(); len(r) != 1 || string(r[0].GetSession()) != string(id) || r[0].GetEpoch() != 1 || r[0].GetPhase() != "decode" ||
			r[0].GetCaptured() < 5 || r[0].GetPrefilled() != x.prompt.GetTokens() {
			t.Errorf("asked for %v", r)
		}
		over := []*seguev1.Run{{Session: id, Epoch: 1}}
		a.renew(t, &seguev1.RenewRequest{Grantor: other, Ended: over})
		a.renew(t, &seguev1.RenewRequest{Ended: []*seguev1.Run{{Session: id, Epoch: 2}, {Session: newID(t), Epoch: 1}}})
		x.read(recv, tokens(len(x.tokens)+5))
		if x.err != nil {
			t.Fatalf("ended by somebody else's word: %v", x.err)
		}
		a.renew(t, &seguev1.RenewRequest{Ended: over})
		x.read(recv, nil)
		wantReason(t, x.err, seguev1.Reason_REASON_FENCED)
		time.Sleep(100 * time.Millisecond) // virtual: the step in flight ends
		a.empty(t)
		if q := a.renew(t, &seguev1.RenewRequest{}); len(q.GetRuns()) != 0 {
			t.Errorf("still asked for %v", q.GetRuns())
		}
	})
}

// What doesn't answer a question of this boot is no renewal: the run ends as if it had never come.
func TestRenew_IgnoresWhatNobodyAskedFor(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, a *testNode, r *seguev1.RenewRequest){
		"no number":    func(_ *testing.T, _ *testNode, r *seguev1.RenewRequest) { r.Number = 0 },
		"never asked":  func(_ *testing.T, _ *testNode, r *seguev1.RenewRequest) { r.Number += 1000 },
		"another boot": func(_ *testing.T, _ *testNode, r *seguev1.RenewRequest) { r.BootId = []byte("another-boot-id!") },
		"no boot":      func(_ *testing.T, _ *testNode, r *seguev1.RenewRequest) { r.BootId = nil },
		"another router": func(_ *testing.T, _ *testNode, r *seguev1.RenewRequest) {
			r.Grantor = []byte("some-other-route")
		},
		"another epoch": func(_ *testing.T, _ *testNode, r *seguev1.RenewRequest) { r.Grants[0].Epoch = 2 },
		"too many questions ago": func(t *testing.T, a *testNode, _ *seguev1.RenewRequest) {
			for range 100 {
				a.renew(t, &seguev1.RenewRequest{})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			leased(t, 50*time.Millisecond, modeOff, func(t *testing.T, a, b *testNode, id []byte, recv stream) {
				began := time.Now()
				var x transcript
				x.read(recv, tokens(20))
				r := granting(a.renew(t, &seguev1.RenewRequest{}), id, 1)
				change(t, a, r)
				a.renew(t, r)
				x.read(recv, nil)
				wantReason(t, x.err, seguev1.Reason_REASON_LEASE_ENDED)
				if took := time.Since(began); took != usable {
					t.Errorf("ended after %v, want %v", took, usable)
				}
				if got := value(a.gather(t), "segue_agent_lease_renewals_total", "ignored"); got != 1 {
					t.Errorf("%v renewals ignored", got)
				}
			})
		})
	}
}

// A lease counts from the question, however late the answer comes, and nothing shortens it.
func TestRenew_CountsFromTheQuestion(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(t *testing.T, a *testNode, id []byte, first, second *seguev1.RenewResponse)
		want   time.Duration // after the first question
	}{
		"late": {func(t *testing.T, a *testNode, id []byte, first, _ *seguev1.RenewResponse) {
			time.Sleep(2 * time.Second)
			a.renew(t, granting(first, id, 1))
		}, usable},
		"repeated": {func(t *testing.T, a *testNode, id []byte, first, _ *seguev1.RenewResponse) {
			for range 5 {
				a.renew(t, granting(first, id, 1))
				time.Sleep(500 * time.Millisecond)
			}
		}, usable},
		"reordered": {func(t *testing.T, a *testNode, id []byte, first, second *seguev1.RenewResponse) {
			a.renew(t, granting(second, id, 1))
			a.renew(t, granting(first, id, 1))
		}, usable + time.Second},
		"shorter": {func(t *testing.T, a *testNode, id []byte, first, second *seguev1.RenewResponse) {
			r := granting(second, id, 1)
			r.Grants[0].TtlMs = uint32((margin + time.Second).Milliseconds())
			a.renew(t, granting(first, id, 1))
			a.renew(t, r)
		}, usable},
		"too late": {func(t *testing.T, a *testNode, id []byte, first, _ *seguev1.RenewResponse) {
			time.Sleep(usable)
			a.renew(t, granting(first, id, 1))
		}, usable - 2*time.Second}, // the call's own lease
	} {
		t.Run(name, func(t *testing.T) {
			leased(t, 50*time.Millisecond, modeOff, func(t *testing.T, a, b *testNode, id []byte, recv stream) {
				time.Sleep(2 * time.Second) // virtual
				began := time.Now()
				first := a.renew(t, &seguev1.RenewRequest{})
				time.Sleep(time.Second) // virtual
				second := a.renew(t, &seguev1.RenewRequest{})
				if second.GetNumber() <= first.GetNumber() {
					t.Errorf("question %d after %d", second.GetNumber(), first.GetNumber())
				}
				go c.answer(t, a, id, first, second)
				var x transcript
				x.read(recv, nil)
				wantReason(t, x.err, seguev1.Reason_REASON_LEASE_ENDED)
				if took := time.Since(began); took != c.want {
					t.Errorf("ended %v after the first question, want %v", took, c.want)
				}
				time.Sleep(usable) // virtual: the answers end
			})
		})
	}
}

// A call that lay unread, before a stopped process say, comes with a lease that is over. Nothing of it runs.
func TestLease_LateCallIsRefused(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		id, r := newID(t), request(20)
		q := a.renew(t, &seguev1.RenewRequest{})
		time.Sleep(usable) // virtual
		call := func(l *seguev1.Lease) *transcript {
			return new(transcript).read(generate(t, t.Context(), a, &seguev1.GenerateRequest{
				Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer, Lease: l,
			}), nil)
		}
		wantReason(t, call(quoting(q)).err, seguev1.Reason_REASON_LEASE_ENDED)
		stranger := quoting(a.renew(t, &seguev1.RenewRequest{}))
		stranger.BootId = []byte("another-boot-id!")
		wantReason(t, call(stranger).err, seguev1.Reason_REASON_LEASE_ENDED)
		if a.host.facts(t).PrefillTokens != 0 {
			t.Error("the engine worked for a call that was refused")
		}
		if x := call(quoting(a.renew(t, &seguev1.RenewRequest{}))); x.err != nil {
			t.Errorf("in time: %v", x.err)
		}
		x := new(transcript)
		x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(400), Protection: modeOff}), tokens(1))
		order := x.order(newID(t), 2, r, modeOff)
		order.Lease = quoting(q)
		_, err := takeover(t, t.Context(), b, order)()
		wantReason(t, err, seguev1.Reason_REASON_LEASE_ENDED)
	})
}

// A call's lease counts from the question that it quotes.
func TestLease_FirstCountsFromTheQuestion(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		a := n.start(t, "a", "127.0.0.1:1001", steps(50*time.Millisecond), patient)
		began := time.Now()
		q := a.renew(t, &seguev1.RenewRequest{})
		time.Sleep(time.Second) // virtual
		var x transcript
		x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(400), Protection: modeOff, Lease: quoting(q)}), nil)
		wantReason(t, x.err, seguev1.Reason_REASON_LEASE_ENDED)
		if took := time.Since(began); took != usable {
			t.Errorf("ended %v after the question, want %v", took, usable)
		}
	})
}

// Whoever comes back to a run brings it a lease anew.
func TestLease_ComesWithARepeatedCall(t *testing.T) {
	leased(t, 50*time.Millisecond, modeSync, func(t *testing.T, a, b *testNode, id []byte, recv stream) {
		var x transcript
		x.read(recv, tokens(40))
		again := time.Now()
		l := lease()
		l.Grantor = []byte("some-other-route")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var y transcript
		recv = generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: request(400), Protection: modeSync, Holder: b.peer, FromIndex: 40, Lease: l})
		y.read(recv, tokens(5))
		if q := a.renew(t, &seguev1.RenewRequest{}); len(q.GetRuns()) != 0 {
			t.Errorf("the first grantor is still asked for %v", q.GetRuns())
		}
		y.read(recv, nil)
		wantReason(t, y.err, seguev1.Reason_REASON_LEASE_ENDED)
		if took := time.Since(again); took != usable {
			t.Errorf("ended %v after the second call, want %v", took, usable)
		}
	})
}

// A continuation has a lease too, and its end leaves the node that held the session free.
func TestLease_EndsATakeover(t *testing.T) {
	bubble(t, func(t *testing.T, n *memNet) {
		a := n.start(t, "a", "127.0.0.1:1001", steps(50*time.Millisecond), patient)
		b := n.start(t, "b", "127.0.0.1:1002", steps(50*time.Millisecond), patient)
		r, id := request(400), newID(t)
		var x transcript
		x.read(generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer}), tokens(5))
		cancelRun(t, a, id, 1)
		began := time.Now()
		o := x.order(id, 2, r, modeSync)
		o.Lease = lease()
		x.read(takeover(t, t.Context(), b, o), nil)
		wantReason(t, x.err, seguev1.Reason_REASON_LEASE_ENDED)
		if took := time.Since(began); took != usable || x.seam == nil || len(x.tokens) < 50 {
			t.Errorf("ended after %v with %d tokens, want %v", took, len(x.tokens), usable)
		}
		time.Sleep(100 * time.Millisecond) // virtual: the step in flight ends
		b.empty(t)
	})
}

// A finished run that was handed out whole needs no lease any more.
func TestLease_EndsWithTheRun(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		id := newID(t)
		req := &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: request(10), Protection: modeSync, Holder: b.peer, Lease: lease()}
		var x transcript
		x.read(generate(t, t.Context(), a, req), nil)
		synctest.Wait()
		if q := a.renew(t, &seguev1.RenewRequest{}); len(q.GetRuns()) != 0 {
			t.Errorf("asked for %v", q.GetRuns())
		}
		time.Sleep(usable + time.Second) // virtual
		if got := value(a.gather(t), "segue_agent_leases_expired_total"); got != 0 || x.err != nil {
			t.Errorf("%v leases expired, stream ended with %v", got, x.err)
		}
	})
}

func TestLease_Malformed(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		for name, change := range map[string]func(*seguev1.Lease){
			"no grantor":     func(l *seguev1.Lease) { l.Grantor = nil },
			"long grantor":   func(l *seguev1.Lease) { l.Grantor = make([]byte, 17) },
			"all margin":     func(l *seguev1.Lease) { l.MarginMs = l.GetTtlMs() },
			"no margin":      func(l *seguev1.Lease) { l.MarginMs = 0 },
			"longer than ok": func(l *seguev1.Lease) { l.TtlMs = 600_001 },
		} {
			l := lease()
			change(l)
			_, err := generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(5), Protection: modeOff, Lease: l})()
			if err == nil {
				t.Errorf("%s: accepted", name)
				continue
			}
			wantReason(t, err, seguev1.Reason_REASON_INVALID_REQUEST)
		}
		q := a.renew(t, &seguev1.RenewRequest{})
		for name, r := range map[string]*seguev1.RenewRequest{
			"no grantor":    {},
			"short session": {Grantor: grantorID, BootId: q.GetBootId(), Number: q.GetNumber(), Grants: []*seguev1.LeaseGrant{{Session: []byte("x"), Epoch: 1, TtlMs: 6000, MarginMs: 500}}},
			"no epoch":      {Grantor: grantorID, Ended: []*seguev1.Run{{Session: newID(t)}}},
			"no ttl":        {Grantor: grantorID, BootId: q.GetBootId(), Number: q.GetNumber(), Grants: []*seguev1.LeaseGrant{{Session: newID(t), Epoch: 1}}},
		} {
			_, err := a.client.Renew(t.Context(), r)
			if err == nil {
				t.Errorf("%s: accepted", name)
				continue
			}
			wantReason(t, err, seguev1.Reason_REASON_INVALID_REQUEST)
		}
	})
}
