// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
)

// Leases are what a fleet lets runs have.
type Leases struct {
	fence.Lease
	// Renewal is how often each node's leases are renewed, and how long one such call may take.
	Renewal time.Duration
	// Grantor is the random id of this router's process life.
	Grantor [16]byte
	// Clock is what they count by.
	Clock *fence.Clock
	// Renewed is called after each call with its outcome.
	Renewed func(error)
}

// run names an attempt.
type run struct {
	session snapshot.SessionID
	epoch   fence.Epoch
}

func (r run) compare(o run) int {
	return cmp.Or(bytes.Compare(r.session[:], o.session[:]), cmp.Compare(r.epoch, o.epoch))
}

// question is a node's last RenewResponse: what it asked for, and when that was received.
type question struct {
	response *seguev1.RenewResponse // nil before the first
	received time.Duration
}

// Lease is the lease of one run as this router, its grantor, sees it.
type Lease struct {
	node *Node
	run  run
	// The fleet's lock guards the rest. open: a call that quotes nothing may still be on its way to the node.
	grant  fence.Grant
	open   bool
	status *seguev1.RunStatus // as last heard, or nil
}

// LeaseStatus is a lease for people.
type LeaseStatus struct {
	Session   string `json:"session"`
	Epoch     uint64 `json:"epoch"`
	Phase     string `json:"phase"`
	Prefilled int    `json:"prefilled"`
	Captured  int    `json:"captured"`
	// LeftMillis is how long the lease lasts, by this router's clock, if nothing renews it.
	LeftMillis int64 `json:"left_ms"`
}

// Lend begins the lease of a run that is about to be started on the node. It is renewed until Revoke.
func (n *Node) Lend(session snapshot.SessionID, epoch fence.Epoch) *Lease {
	l := &Lease{node: n, run: run{session, epoch}}
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	n.state.leases[l.run] = l
	return l
}

// Quote is the lease for a call that starts the run, or repeats such a call. Take it just before the call.
func (l *Lease) Quote() *seguev1.Lease {
	f := l.node.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &seguev1.Lease{Grantor: f.leases.Grantor[:], TtlMs: millis(f.leases.TTL), MarginMs: millis(f.leases.Margin)}
	q := l.node.state.question
	fresh := q.response != nil && f.leases.Clock.Elapsed()-q.received < 2*f.leases.Renewal
	if !fresh || !bytes.Equal(q.response.GetBootId(), l.node.state.described.GetBootId()) {
		l.open = true
		return w
	}
	w.BootId, w.Number = q.response.GetBootId(), q.response.GetNumber()
	l.grant.Count(q.received, f.leases.Lease)
	return w
}

func millis(d time.Duration) uint32 { return uint32(d.Milliseconds()) }

// Answered records that the run's stream has yielded something: the call has arrived.
func (l *Lease) Answered() {
	l.node.fleet.mu.Lock()
	defer l.node.fleet.mu.Unlock()
	l.arrivedLocked()
}

// arrivedLocked counts the lease of a call that isn't on its way any more.
func (l *Lease) arrivedLocked() {
	if f := l.node.fleet; l.open {
		l.open = false
		l.grant.Count(f.leases.Clock.Elapsed(), f.leases.Lease)
	}
}

// Revoke ends the renewals, once the run is fenced or finished and its call is given up. The node hears of it at its
// next renewal. Later calls do nothing.
func (l *Lease) Revoke() {
	l.node.fleet.mu.Lock()
	defer l.node.fleet.mu.Unlock()
	l.arrivedLocked()
	if l.node.state.leases[l.run] == l {
		delete(l.node.state.leases, l.run)
	}
}

// Left is how long it takes until the run has certainly ended, after Revoke: 0 when it has.
func (l *Lease) Left() time.Duration {
	f := l.node.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	return l.grant.Left(f.leases.Clock.Elapsed())
}

// renewals renews the node's leases again and again until ctx ends.
func (n *Node) renewals(ctx context.Context, client seguev1.NodeServiceClient) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-n.ask:
		}
		began := time.Now()
		err := n.renew(ctx, client)
		if ctx.Err() != nil {
			return
		}
		n.fleet.leases.Renewed(err)
		timer.Reset(max(n.fleet.leases.Renewal-time.Since(began), 0))
	}
}

// renew makes one call: it grants what the node's last response asked for, and takes in what the node asks next.
func (n *Node) renew(ctx context.Context, client seguev1.NodeServiceClient) error {
	f := n.fleet
	f.mu.Lock()
	r, limit := n.grantLocked()
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	response, err := client.Renew(ctx, r)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n.state.question = question{response, f.leases.Clock.Elapsed()}
	for _, s := range response.GetRuns() {
		if l := n.state.leases[runOf(s)]; l != nil {
			l.status = s
			l.arrivedLocked()
		}
	}
	return nil
}

// runOf reads what a node lists; one with a malformed id is nobody's.
func runOf(s *seguev1.RunStatus) run {
	var r run
	copy(r.session[:], s.GetSession())
	r.epoch = fence.Epoch(s.GetEpoch())
	return r
}

// grantLocked makes the request, and counts what it grants before it leaves. The call may take as long as the lease
// that ends first leaves it.
//
// INVARIANT: whether a lease is renewed depends on nothing that its status says.
func (n *Node) grantLocked() (*seguev1.RenewRequest, time.Duration) {
	f, q := n.fleet, n.state.question
	limit, now := f.leases.Renewal, f.leases.Clock.Elapsed()
	for _, l := range n.state.leases {
		if spare := l.grant.Spare(now); spare > 0 {
			limit = min(limit, spare)
		}
	}
	r := &seguev1.RenewRequest{Grantor: f.leases.Grantor[:], BootId: q.response.GetBootId(), Number: q.response.GetNumber()}
	for _, s := range q.response.GetRuns() {
		l := n.state.leases[runOf(s)]
		if l == nil {
			r.Ended = append(r.Ended, &seguev1.Run{Session: s.GetSession(), Epoch: s.GetEpoch()})
			continue
		}
		l.grant.Count(q.received, f.leases.Lease)
		r.Grants = append(r.Grants, &seguev1.LeaseGrant{
			Session: s.GetSession(), Epoch: s.GetEpoch(), TtlMs: millis(f.leases.TTL), MarginMs: millis(f.leases.Margin),
		})
	}
	return r, limit
}

// askSoon has the node asked at once: its connection is new.
func (n *Node) askSoon() {
	select {
	case n.ask <- struct{}{}:
	default:
	}
}

// leaseStatusLocked lists the node's leases by session.
func (n *Node) leaseStatusLocked() []LeaseStatus {
	var list []LeaseStatus
	leases := make([]*Lease, 0, len(n.state.leases))
	for _, l := range n.state.leases {
		leases = append(leases, l)
	}
	slices.SortFunc(leases, func(a, b *Lease) int { return a.run.compare(b.run) })
	now := n.fleet.leases.Clock.Elapsed()
	for _, l := range leases {
		list = append(list, LeaseStatus{
			Session: l.run.session.String(), Epoch: uint64(l.run.epoch), Phase: l.status.GetPhase(),
			Prefilled: int(l.status.GetPrefilled()), Captured: int(l.status.GetCaptured()), LeftMillis: l.grant.Left(now).Milliseconds(),
		})
	}
	return list
}

// Leased is the number of leases that are being renewed.
func (f *Fleet) Leased() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, x := range f.nodes {
		n += len(x.state.leases)
	}
	return n
}
