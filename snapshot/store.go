// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/seguekv/segue/fence"
)

// Store is what a holder keeps: one chain per session. Safe for concurrent use; one lock serialises
// records, takeovers and releases, so a takeover sees everything that was applied before it and nothing
// of a lower epoch after it.
//
// INVARIANT: no record of an epoch below a session's highest changes the store.
type Store struct {
	budget *Budget
	accept func(*Head) error

	mu   sync.Mutex
	held map[SessionID]*held
	// order lists sessions by age for the bound on records without a chain.
	order []SessionID
	// records is the bound.
	records int
	// parked counts the chains of runs of this node.
	parked int
}

type held struct {
	record fence.Record
	chain  *Chain
	memory *Reservation
	// newest is the highest base begun, held or not; from is the process life of the primary that began it.
	newest BaseID
	from   [16]byte
	// refused is why the newest base isn't taken.
	refused error
	// parked: the chain is of a run of this node; gone is called when it leaves the store.
	parked bool
	gone   func()
}

// maxRecords bounds the epoch records kept for sessions of which no chain is held.
const maxRecords = 1 << 16

// NewStore returns an empty store. accept judges each new base (fingerprint, geometry); its error is kept
// and returned by later calls for that session.
func NewStore(b *Budget, accept func(*Head) error) *Store {
	return &Store{budget: b, accept: accept, held: make(map[SessionID]*held), records: maxRecords}
}

// Begin opens a base of the primary with the boot id from, and reserves its memory. A base that replaces another one of the session drops it:
// the session is then uncovered until the new base's first boundary.
//
// Errors: fence.ErrStaleEpoch, fence.ErrCanceled, ErrUnknownBase for a base below the newest, ErrStoreFull, ErrFormat,
// and accept's.
func (s *Store) Begin(h Head, from [16]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(h.Session)
	if err := e.record.Admit(h.Epoch); err != nil {
		return err
	}
	if e.newest.Epoch == h.Epoch && h.Base < e.newest.Base {
		return fmt.Errorf("%w: base %d, the newest is %d", ErrUnknownBase, h.Base, e.newest.Base)
	}
	e.newest, e.from = h.BaseID, from
	e.drop()
	e.refused = s.begin(e, h)
	return e.refused
}

func (s *Store) begin(e *held, h Head) error {
	if err := s.accept(&h); err != nil {
		return err
	}
	c, err := NewChain(h)
	if err != nil {
		return err
	}
	m, err := s.budget.Reserve(h.Bytes())
	if err != nil {
		return err
	}
	e.chain, e.memory = c, m
	return nil
}

// Apply adds the record that r stands at to its base, and returns the chain's progress after it. A record
// whose bytes don't verify drops the base.
func (s *Store) Apply(r *Reader) (rows, committed int, err error) {
	id := r.h.BaseID
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.held[id.Session]
	if e == nil {
		return 0, 0, ErrUnknownSession
	}
	if err := e.record.Check(id.Epoch); err != nil {
		return 0, 0, err
	}
	if e.chain == nil || e.chain.head.BaseID != id {
		if e.refused != nil {
			return 0, 0, e.refused
		}
		return 0, 0, ErrUnknownBase
	}
	if err := e.apply(r); err != nil {
		e.drop()
		e.refused = err
		return 0, 0, err
	}
	return e.chain.Rows(), e.chain.Committed(), nil
}

func (e *held) apply(r *Reader) error {
	switch r.h.Kind {
	case KindRows:
		return r.Rows(e.chain)
	case KindBoundary:
		b, err := r.Boundary()
		if err != nil {
			return err
		}
		got, err := e.chain.AppendBoundary(b.N, b.Token, b.Sampler)
		if err != nil {
			return err
		}
		if got.Seal != b.Seal {
			return fmt.Errorf("%w: boundary %d", ErrDigest, b.N)
		}
		return nil
	}
	return fmt.Errorf("%w: kind %d", ErrFormat, r.h.Kind)
}

// Need is what a takeover must cover.
type Need struct {
	// Delivered is d, the number of output ids the gate has accepted.
	Delivered int
	// PromptDigest is the digest of the prompt ids; nil if the caller never learnt it, then Delivered is 0.
	PromptDigest *Digest
	// OutputDigest is the digest of the first Delivered output ids.
	OutputDigest Digest
	// Request is the digest of the caller's request.
	Request Digest
	// Clean bounds the boundaries that count: what was captured above it may be spoilt. nil: all of them count.
	Clean *int
	// Accept judges the held base's head, last and under the store's lock; nil accepts every one. What it
	// refuses stays held.
	Accept func(*Head) error
}

// Held is a chain taken from the store, with its memory.
type Held struct {
	Chain  *Chain
	State  *State
	Memory *Reservation
}

// Takeover raises the session's epoch to e, checks coverage, ids and digests, and moves the chain out of the
// store. The epoch stays raised when it refuses, unless nothing at all is known of the session.
//
// Errors: ErrUnknownSession, fence.ErrStaleEpoch, fence.ErrCanceled, *NotCoveredError, ErrPrompt,
// ErrOutput, ErrDigest, the reason a base was refused for, and Need.Accept's.
func (s *Store) Takeover(id SessionID, e fence.Epoch, n Need) (*Held, error) {
	h, x, err := s.take(id, e, n)
	if err != nil {
		return nil, err
	}
	// Without the lock: digests of a large state take longer than other sessions' acks may wait. The chain is
	// out of the store, so nothing else can reach it.
	if x.State, err = x.Chain.State(); err != nil {
		x.Memory.Release()
		s.mu.Lock()
		defer s.mu.Unlock()
		if h.chain == nil && h.newest == x.Chain.head.BaseID {
			h.refused = err
		}
		return nil, err
	}
	return x, nil
}

// take is the part of a takeover that happens at once.
func (s *Store) take(id SessionID, e fence.Epoch, n Need) (*held, *Held, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[id]
	if h == nil {
		return nil, nil, ErrUnknownSession
	}
	if err := h.record.Raise(e); err != nil {
		return nil, nil, err
	}
	if h.chain == nil {
		if h.refused != nil {
			return nil, nil, h.refused
		}
		return nil, nil, ErrUnknownSession
	}
	if err := n.check(h.chain); err != nil {
		return nil, nil, err
	}
	if n.Clean != nil && *n.Clean < h.chain.Committed() {
		h.chain.cut(*n.Clean)
	}
	x := &Held{Chain: h.chain, Memory: h.memory}
	h.chain, h.memory = nil, nil
	h.leave()
	return h, x, nil
}

// check is the coverage rule: a complete boundary >= max(d, 1) with the caller's ids.
func (n Need) check(c *Chain) error {
	committed := c.Committed()
	if n.Clean != nil {
		committed = min(committed, *n.Clean)
	}
	if need := max(n.Delivered, 1); n.Delivered < 0 || committed < need || committed < c.First() {
		return &NotCoveredError{Committed: max(committed, 0), Need: need}
	}
	if n.PromptDigest != nil && IDsDigest(c.head.Prompt) != *n.PromptDigest {
		return ErrPrompt
	}
	if n.PromptDigest == nil && n.Delivered > 0 {
		return fmt.Errorf("%w: %d delivered tokens and no prompt digest", ErrPrompt, n.Delivered)
	}
	if n.Request != c.head.Request {
		return fmt.Errorf("%w: another request", ErrPrompt)
	}
	if IDsDigest(c.output[:n.Delivered]) != n.OutputDigest {
		return ErrOutput
	}
	if n.Accept != nil {
		return n.Accept(&c.head)
	}
	return nil
}

// Covers reports whether what is held of a session reaches boundary max(d, 1).
func (s *Store) Covers(id SessionID, d int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[id]
	return h != nil && h.chain != nil && h.chain.Committed() >= max(d, 1)
}

// Admit records that an attempt of epoch e starts here as primary. What is held of lower epochs is dropped.
func (s *Store) Admit(id SessionID, e fence.Epoch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.entry(id)
	if err := h.record.Admit(e); err != nil {
		return err
	}
	if h.chain != nil && h.chain.head.Epoch < e {
		h.drop()
	}
	return nil
}

// Cancel refuses every epoch <= e of the session from now on and drops what is held of them.
func (s *Store) Cancel(id SessionID, e fence.Epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.entry(id)
	h.record.Cancel(e)
	if h.chain != nil && h.chain.head.Epoch <= e {
		h.drop()
	}
}

// Release drops what is held of epochs <= e and reports whether anything was.
func (s *Store) Release(id SessionID, e fence.Epoch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[id]
	if h == nil || h.chain == nil || h.chain.head.Epoch > e {
		return false
	}
	h.drop()
	return true
}

// Offer describes a chain that is held.
type Offer struct {
	BaseID
	Rows, Committed int
	// First is the base's first boundary.
	First  int
	Prompt int
	Chain  Digest
	// Seal is boundary Committed's; zero for none.
	Seal  Digest
	Bytes int64
	// Parked: it is the state of a run of this node, see Park.
	Parked bool
}

// offersAtOnce is how many sessions Offers looks at under the lock: records of others don't wait for all.
const offersAtOnce = 64

// Offers lists what is held, in no order. Each offer is true at some moment of the call.
func (s *Store) Offers() []Offer {
	return s.list(func(*held) bool { return true })
}

// OffersTo is Offers of the bases that the primary with the boot id from has begun.
func (s *Store) OffersTo(from [16]byte) []Offer {
	return s.list(func(h *held) bool { return h.from == from && !h.parked })
}

func (s *Store) list(want func(*held) bool) []Offer {
	s.mu.Lock()
	ids := slices.Clone(s.order)
	s.mu.Unlock()
	var out []Offer
	for part := range slices.Chunk(ids, offersAtOnce) {
		out = s.offers(out, part, want)
		runtime.Gosched() // to whoever waits for the lock
	}
	return out
}

func (s *Store) offers(out []Offer, ids []SessionID, want func(*held) bool) []Offer {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		h := s.held[id]
		if h == nil || h.chain == nil || !want(h) {
			continue
		}
		out = append(out, h.offer())
	}
	return out
}

// offer describes h, which has a chain.
func (h *held) offer() Offer {
	c := h.chain
	o := Offer{
		BaseID: c.head.BaseID, Rows: c.Rows(), Committed: c.Committed(), First: c.First(), Prompt: len(c.head.Prompt),
		Chain: c.DigestAt(c.Rows()), Bytes: c.Bytes(), Parked: h.parked,
	}
	if o.Committed > 0 {
		o.Seal = c.SealAt(o.Committed)
	}
	return o
}

func (h *held) drop() {
	if h.memory != nil {
		h.memory.Release()
	}
	h.chain, h.memory, h.refused = nil, nil, nil
	h.leave()
}

// leave ends the parking of a chain that is out of the store.
func (h *held) leave() {
	if h.gone != nil {
		h.gone()
	}
	h.parked, h.gone = false, nil
}

// entry finds or makes a session's entry, and forgets the oldest entries without a chain beyond the bound.
// Entries with a chain come on top of it; the budget bounds them.
func (s *Store) entry(id SessionID) *held {
	if h := s.held[id]; h != nil {
		return h
	}
	for looks := 0; len(s.order) >= s.records && looks < 64; looks++ {
		old := s.order[0]
		s.order = s.order[1:]
		if s.held[old].chain != nil {
			s.order = append(s.order, old)
			continue
		}
		delete(s.held, old)
	}
	h := new(held)
	s.held[id] = h
	s.order = append(s.order, id)
	return h
}
