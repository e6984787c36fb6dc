// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
)

// park ends the run of epoch e and keeps its state as if this node were its holder; it returns the boundary. What
// can't be parked ends. In both cases the store refuses the epoch from then on.
func (a *Agent) park(ctx context.Context, id snapshot.SessionID, e fence.Epoch) (boundary int, err error) {
	done, err := a.turn(ctx, id)
	if err != nil {
		return 0, err
	}
	defer done()
	if n, ok := a.store.Parked(id, e); ok {
		return n, nil
	}
	s := a.find(id, e)
	if s == nil {
		err = snapshot.ErrUnknownSession
	} else if boundary, err = s.park(a.store); err == nil {
		return boundary, nil
	}
	refused := a.store.Fence(id, e)
	a.end(id, e, errCanceled)
	if refused != nil && (s == nil || errors.Is(refused, fence.ErrStaleEpoch)) {
		return 0, refused
	}
	return 0, err
}

// park ends the run and gives what it has captured to the store. The run's outbox stays with its sender until the store
// has done with the state, so that the holder gets what is captured.
//
// INVARIANT: nothing is appended to the outbox, and no feed begins to send anything, after the state has left.
func (s *session) park(store *snapshot.Store) (boundary int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.order.protects():
		return 0, &UnprotectedError{Cause: "off", Detail: "nothing is captured"}
	case s.parked:
		return 0, errCanceled // what was kept has been given up, and the engine's last step isn't over yet
	case s.noRoom != nil:
		return 0, s.noRoom
	case s.err != nil && !errors.Is(s.err, engines.ErrLost):
		return 0, s.err
	case s.closed:
		return 0, fmt.Errorf("%w: its finish has been handed out", snapshot.ErrUnknownSession)
	case s.outbox == nil:
		return 0, &snapshot.NotCoveredError{Committed: 0, Need: 1}
	}
	o, to := s.outbox, s.sender
	chain, err := o.Seal()
	if err != nil {
		return 0, err
	}
	var gone func()
	if to != nil {
		gone = func() { to.Detach(o) }
	}
	boundary = chain.Committed()
	if err := store.Park(chain, s.memory, gone); err != nil {
		return 0, err
	}
	s.parked, s.outbox, s.memory = true, nil, nil
	s.end(errParked)
	s.log.Info("parked", "boundary", boundary)
	return boundary, nil
}

// isParked reports whether the run's state has left for the store.
func (s *session) isParked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parked
}
