// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer

import (
	"slices"
	"sync"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/snapshot"
)

// Outbox is one session's captured state on its way to a holder. The capturing goroutine appends, one Sender
// at a time takes records from it. Safe for concurrent use.
//
// INVARIANT: only the sender that it is attached to moves its watermarks.
// INVARIANT: a base is attached to a sender at most once, so an ack that is under way when the session is
// detached can't count after it was attached there again.
type Outbox struct {
	mu      sync.Mutex
	chain   *snapshot.Chain
	p       progress
	holder  *Sender // it is attached to; nil: detached
	earlier []*Sender
	changed chan struct{}
	// capturedAt has the time of each captured, uncommitted boundary, oldest first.
	capturedAt []time.Time
	// movedAt is when the holder last acknowledged something, or when it was attached.
	movedAt time.Time
	// downSince is when the stream to the holder ended, or when it was attached; zero while there is one.
	downSince time.Time
	reason    seguev1.Reason
	detail    string
	sealed    bool
}

// Status is a snapshot of an outbox.
type Status struct {
	// Attached says whether a holder is assigned.
	Attached bool
	// Rejected says that the holder refuses this base for good; Reason and Detail say why.
	Rejected bool
	Reason   seguev1.Reason
	Detail   string
	// Replicating: the holder had a complete boundary when it was last heard.
	Replicating bool
	// Connected: a replication stream is up.
	Connected bool
	// DownSince is when the last stream to the holder ended or, before the first, when the holder was attached; zero
	// while a stream is up, and without a holder.
	DownSince time.Time

	Rows, AckRows             int
	Captured, Sent, Committed int
	// OldestUncommitted is when the oldest captured, uncommitted boundary was captured; zero if none.
	OldestUncommitted time.Time
	// MovedAt is when the holder last acknowledged anything, was attached, or was given something new after
	// it had acknowledged everything.
	MovedAt time.Time
}

// NewOutbox returns an outbox of chain c, which it owns from now on. windowBytes bounds the rows in flight.
func NewOutbox(c *snapshot.Chain, windowBytes int) *Outbox {
	o := &Outbox{chain: c, changed: make(chan struct{})}
	o.p = progress{windowBytes: windowBytes}
	o.reset()
	return o
}

// reset makes progress fit the chain, as for a holder that has nothing.
func (o *Outbox) reset() {
	h := o.chain.Head()
	o.p = progress{
		rowBytes: h.Geometry.RowBytes(), windowBytes: o.p.windowBytes,
		prompt: len(h.Prompt), first: o.chain.First(),
	}
	o.p.capture(o.chain.Rows(), o.chain.Committed())
}

// AppendRows adds prompt rows. The bytes are copied.
func (o *Outbox) AppendRows(first int, rows []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sealed {
		return ErrSealed
	}
	if err := o.chain.AppendRows(first, rows); err != nil {
		return err
	}
	if o.p.rows == o.p.ackRows {
		o.movedAt = time.Now()
	}
	o.grown()
	return nil
}

// AppendBoundary adds a boundary and, before it, the row that came with it, if any. The bytes are copied.
func (o *Outbox) AppendBoundary(n int, token int32, s snapshot.Sampler, row []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sealed {
		return ErrSealed
	}
	if row != nil {
		if err := o.chain.AppendRows(o.chain.Rows(), row); err != nil {
			return err
		}
	}
	if _, err := o.chain.AppendBoundary(n, token, s); err != nil {
		return err
	}
	o.capturedAt = append(o.capturedAt, time.Now())
	o.grown()
	return nil
}

// Seal ends the capture: appends fail from now on with ErrSealed. What is captured is still sent. It returns a chain of the
// caller's own, which shares the rows: as long as it is in use, so is their memory. A base in progress has
// no state to return and isn't sealed: snapshot.NotCoveredError.
func (o *Outbox) Seal() (*snapshot.Chain, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h, n := o.chain.Head(), o.chain.Committed()
	// Rows above the newest boundary, which a failed append leaves, could be sent while their memory gets others.
	if n == 0 || o.chain.Rows() != len(h.Prompt)+n-1 {
		return nil, &snapshot.NotCoveredError{Committed: 0, Need: 1}
	}
	o.sealed = true
	return o.chain.Share(), nil
}

func (o *Outbox) grown() {
	o.p.capture(o.chain.Rows(), o.chain.Committed())
	o.notify()
	o.broadcast()
}

func (o *Outbox) notify() {
	if o.holder != nil {
		o.holder.notify()
	}
}

// Changed is closed at the next change of Status.
func (o *Outbox) Changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

// Status returns the present state.
func (o *Outbox) Status() Status {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := Status{
		Attached: o.holder != nil, Rejected: o.p.phase == phaseRejected, Reason: o.reason, Detail: o.detail,
		Replicating: o.p.commit > 0, Connected: o.p.phase == phaseBase || o.p.phase == phaseReplicating,
		Rows: o.p.rows, AckRows: o.p.ackRows,
		Captured: o.p.captured, Sent: o.p.sent, Committed: o.p.commit,
		MovedAt: o.movedAt, DownSince: o.downSince,
	}
	if len(o.capturedAt) > 0 {
		s.OldestUncommitted = o.capturedAt[0]
	}
	return s
}

// Base is the id of the base being replicated.
func (o *Outbox) Base() snapshot.BaseID {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.chain.Head().BaseID
}

func (o *Outbox) broadcast() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// attached starts a fresh replication through s.
func (o *Outbox) attached(s *Sender) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holder, o.reason, o.detail = s, seguev1.Reason_REASON_UNSPECIFIED, ""
	o.reset()
	if slices.Contains(o.earlier, s) {
		o.rebase(o.chain.Head().Base + 1)
	}
	o.earlier = append(o.earlier, s)
	o.stamp()
	o.downSince = o.movedAt
	o.broadcast()
}

func (o *Outbox) detached(s *Sender) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holder != s {
		return
	}
	o.holder, o.downSince = nil, time.Time{}
	o.p.detach()
	o.broadcast()
}

// rebase starts a new base with the same rows. If the rows in memory are damaged it rejects the session.
func (o *Outbox) rebase(base uint32) {
	id := o.chain.Head().BaseID
	id.Base = base
	c, err := o.chain.Rebase(id)
	if err != nil {
		o.p.reject()
		o.reason, o.detail = seguev1.Reason_REASON_DIGEST_MISMATCH, err.Error()
		return
	}
	o.chain, o.earlier = c, nil
	o.reset()
}

// stamp restarts the ages: nothing captured so far counts as late before now.
func (o *Outbox) stamp() {
	o.movedAt = time.Now()
	o.capturedAt = nil
	o.age()
}

// age gives every captured, uncommitted boundary its time again after the watermarks moved. One that was
// committed and isn't any more counts from now.
func (o *Outbox) age() {
	n := 0
	if o.p.captured > 0 {
		n = o.p.captured - max(o.p.commit, o.p.first-1)
	}
	if extra := len(o.capturedAt) - n; extra > 0 {
		o.capturedAt = o.capturedAt[extra:]
	}
	now := time.Now()
	for len(o.capturedAt) < n {
		o.capturedAt = slices.Insert(o.capturedAt, 0, now)
	}
}

// welcome resumes from what the holder offers, or starts over. A holder that has other rows of this base, or
// a later base, gets a new one. What it has of another epoch or of an earlier base gives way to this base.
func (o *Outbox) welcome(s *Sender, offer *seguev1.ResumeOffer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holder != s {
		return
	}
	h := o.chain.Head()
	rows, boundary := o.p.ackRows, o.p.commit
	switch {
	case offer == nil || offer.GetEpoch() != uint64(h.Epoch) || offer.GetBase() < h.Base:
		o.p.welcome(false, 0, 0)
	case o.matches(offer):
		o.p.welcome(true, int(offer.GetRows()), int(offer.GetBoundary()))
	default:
		o.rebase(offer.GetBase() + 1)
		o.p.welcome(false, 0, 0)
	}
	o.downSince = time.Time{}
	// A new stream alone is no progress: a peer that comes and goes must not look alive.
	if o.p.ackRows > rows || o.p.commit > boundary {
		o.movedAt = time.Now()
	}
	o.age()
	o.broadcast()
}

// matches reports whether what is offered of this epoch is a beginning of this very base.
func (o *Outbox) matches(offer *seguev1.ResumeOffer) bool {
	h := o.chain.Head()
	rows, n := int(offer.GetRows()), int(offer.GetBoundary())
	if offer.GetBase() != h.Base {
		return false
	}
	if rows > o.chain.Rows() || n > o.chain.Committed() || (n > 0 && n < o.chain.First()) {
		return false
	}
	d := o.chain.DigestAt(rows)
	if string(offer.GetChain()) != string(d[:]) {
		return false
	}
	if n > 0 {
		s := o.chain.SealAt(n)
		return string(offer.GetSeal()) == string(s[:])
	}
	return true
}

func (o *Outbox) disconnected(s *Sender) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holder != s {
		return
	}
	o.p.disconnect()
	o.downSince = time.Now()
	o.broadcast()
}

// ack handles an ack; acks of another holder or base are old.
func (o *Outbox) ack(s *Sender, a *seguev1.Ack) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if h := o.chain.Head(); o.holder != s || a.GetEpoch() != uint64(h.Epoch) || a.GetBase() != h.Base {
		return nil
	}
	before := o.p.commit
	if err := o.p.ack(int(a.GetRows()), int(a.GetCommitted())); err != nil {
		return err
	}
	o.movedAt = time.Now()
	if before == 0 {
		before = o.p.first - 1
	}
	if n := o.p.commit - before; n > 0 {
		o.capturedAt = o.capturedAt[min(n, len(o.capturedAt)):]
	}
	o.notify()
	o.broadcast()
	return nil
}

func (o *Outbox) rejected(s *Sender, r *seguev1.Reject) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if h := o.chain.Head(); o.holder != s || r.GetEpoch() != uint64(h.Epoch) || r.GetBase() != h.Base {
		return
	}
	o.p.reject()
	o.reason, o.detail = r.GetReason(), r.GetDetail()
	o.broadcast()
}

// take appends records worth about maxBytes to pieces and returns their size. With deltasOnly it takes
// nothing from a session that is still in its base.
func (o *Outbox) take(s *Sender, pieces [][]byte, maxBytes int, deltasOnly bool) (_ [][]byte, size int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holder != s || (deltasOnly && !o.p.isDelta()) {
		return pieces, 0
	}
	for size < maxBytes {
		next := o.p.next(maxBytes - size)
		if next.kind == stepNone {
			break
		}
		at := len(pieces)
		pieces = o.record(pieces, next)
		for _, p := range pieces[at:] {
			size += len(p)
		}
		o.p.did(next)
	}
	return pieces, size
}

func (o *Outbox) record(pieces [][]byte, s step) [][]byte {
	switch s.kind {
	case stepBase:
		return append(pieces, snapshot.AppendBaseRecord(nil, o.chain.Head()))
	case stepRows:
		return snapshot.AppendRowsRecord(pieces, o.chain, s.first, s.count)
	default:
		return append(pieces, snapshot.AppendBoundaryRecord(nil, o.chain.Head().BaseID, o.chain.BoundaryAt(s.n)))
	}
}
