// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot

import (
	"fmt"

	"github.com/seguekv/segue/fence"
)

// Park keeps the chain of a run of this node, which is over, as what is held of its session: a takeover of a higher epoch
// continues it, and no record of the run's epoch or a lower one changes it. The store owns c and m from now on, unless
// it refuses. gone, if not nil, is called once when c leaves the store, with the store's lock held.
//
// Errors: fence.ErrStaleEpoch, fence.ErrCanceled, *NotCoveredError.
func (s *Store) Park(c *Chain, m *Reservation, gone func()) error {
	if c.Committed() == 0 {
		return &NotCoveredError{Committed: 0, Need: 1}
	}
	id := c.head.BaseID
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.entry(id.Session)
	if err := h.record.Admit(id.Epoch); err != nil {
		return err
	}
	h.record.Cancel(id.Epoch)
	h.drop()
	h.chain, h.memory, h.newest, h.from = c, m, id, [16]byte{}
	h.parked = true
	s.parked++
	h.gone = func() {
		s.parked--
		if gone != nil {
			gone()
		}
	}
	return nil
}

// Parked is the boundary at which the run of epoch e is parked; ok is false if it isn't, or if a higher epoch is known.
func (s *Store) Parked(id SessionID, e fence.Epoch) (boundary int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[id]
	if h == nil || !h.parked || h.chain.head.Epoch != e || h.record.Highest() > e {
		return 0, false
	}
	return h.chain.Committed(), true
}

// ParkedSessions counts them.
func (s *Store) ParkedSessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parked
}

// Fence refuses every epoch <= e of the session from now on, and keeps what is held.
//
// Errors: fence.ErrStaleEpoch and fence.ErrCanceled if e is refused already; nothing changes then.
func (s *Store) Fence(id SessionID, e fence.Epoch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.entry(id)
	if top := h.record.Highest(); e < top {
		return fmt.Errorf("%w: %d, highest is %d", fence.ErrStaleEpoch, e, top) // also if it was cancelled
	}
	if err := h.record.Check(e); err != nil {
		return err
	}
	h.record.Cancel(e)
	return nil
}

// Examine describes what a takeover with an epoch above e would continue from, and changes nothing. accept judges the
// head, under the store's lock.
//
// Errors: ErrUnknownSession, fence.ErrStaleEpoch, fence.ErrCanceled, *NotCoveredError, the reason a base was refused for,
// and accept's.
func (s *Store) Examine(id SessionID, e fence.Epoch, accept func(*Head) error) (Offer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[id]
	if h == nil {
		return Offer{}, ErrUnknownSession
	}
	if err := h.record.Check(e); err != nil {
		return Offer{}, err
	}
	if h.chain == nil {
		if h.refused != nil {
			return Offer{}, h.refused
		}
		return Offer{}, ErrUnknownSession
	}
	if err := accept(&h.chain.head); err != nil {
		return Offer{}, err
	}
	o := h.offer()
	if o.Committed == 0 {
		return Offer{}, &NotCoveredError{Committed: 0, Need: 1}
	}
	return o, nil
}
