// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
)

const (
	// holdDefault and holdLongest bound how long a context is kept for a planned takeover.
	holdDefault = 5 * time.Second
	holdLongest = time.Minute
)

// holdOf is the time for which a call's context is kept.
func holdOf(millis uint32) time.Duration {
	if millis == 0 {
		return holdDefault
	}
	return min(time.Duration(millis)*time.Millisecond, holdLongest)
}

// prepare checks what a takeover of what is held would check and keeps a slot for it. A refusal keeps none.
func (a *Agent) prepare(ctx context.Context, id snapshot.SessionID, e fence.Epoch, hold time.Duration) (*seguev1.PrepareResponse, error) {
	done, err := a.turn(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
	out, err := a.reserve(ctx, id, e, hold)
	if err != nil {
		a.prepared.drop(id, e)
	}
	return out, err
}

func (a *Agent) reserve(ctx context.Context, id snapshot.SessionID, e fence.Epoch, hold time.Duration) (*seguev1.PrepareResponse, error) {
	_, d, err := a.engine(order{})
	if err != nil {
		return nil, err
	}
	o, err := a.store.Examine(id, e, func(h *snapshot.Head) error { return fits(h, d) })
	if err != nil {
		return nil, err
	}
	if !a.prepared.renew(id, e, hold) {
		release, ok := a.acquire(ctx, id, e, d.Contexts)
		if !ok {
			return nil, fmt.Errorf("%w for a planned takeover: all %d contexts in use", engines.ErrNoCapacity, d.Contexts)
		}
		a.prepared.add(id, e, hold, release)
	}
	return &seguev1.PrepareResponse{
		Boundary: uint32(o.Committed), StateEpoch: uint64(o.Epoch), PromptTokens: uint32(o.Prompt), HoldMs: milliseconds(hold),
	}, nil
}

// reservations are the slots kept for planned takeovers, at most one per session, each for a bounded time. Safe for
// concurrent use.
type reservations struct {
	// ended is told how each one ended: "used", "expired" or "dropped".
	ended func(how string)

	mu   sync.Mutex
	kept map[snapshot.SessionID]*reservation
}

type reservation struct {
	epoch   fence.Epoch // of the attempt that is to be taken over
	release func()
	until   time.Time
	timer   *time.Timer
}

func newReservations(ended func(how string)) *reservations {
	return &reservations{ended: ended, kept: make(map[snapshot.SessionID]*reservation)}
}

// add keeps a slot for a takeover of an attempt of epoch e. There is none for the session yet.
func (r *reservations) add(id snapshot.SessionID, e fence.Epoch, hold time.Duration, release func()) {
	x := &reservation{epoch: e, release: release, until: time.Now().Add(hold)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept[id] = x
	x.timer = time.AfterFunc(hold, func() { r.expire(id, x) })
}

// renew keeps the session's slot for at least hold from now on, and reports whether there is one.
func (r *reservations) renew(id snapshot.SessionID, e fence.Epoch, hold time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.kept[id]
	if x == nil {
		return false
	}
	x.epoch = max(x.epoch, e)
	if until := time.Now().Add(hold); until.After(x.until) {
		x.until = until
		x.timer.Reset(hold)
	}
	return true
}

// expire is what the timer does; a reservation that was renewed meanwhile stays.
func (r *reservations) expire(id snapshot.SessionID, x *reservation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept[id] == x && !time.Now().Before(x.until) {
		r.end(id, "expired")()
	}
}

// claim hands over the slot that is kept for a takeover with epoch e.
func (r *reservations) claim(id snapshot.SessionID, e fence.Epoch) (release func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x := r.kept[id]; x == nil || x.epoch >= e {
		return nil, false
	}
	return r.end(id, "used"), true
}

// drop gives up the slot that is kept for an attempt of epoch <= e, if there is one.
func (r *reservations) drop(id snapshot.SessionID, e fence.Epoch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x := r.kept[id]; x != nil && x.epoch <= e {
		r.end(id, "dropped")()
	}
}

// clear gives up all.
func (r *reservations) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.kept {
		r.end(id, "dropped")()
	}
}

// end forgets a reservation and returns what gives its slot back. r.mu is held.
func (r *reservations) end(id snapshot.SessionID, how string) (release func()) {
	x := r.kept[id]
	delete(r.kept, id)
	x.timer.Stop()
	r.ended(how)
	return x.release
}

// left is for how long a slot is kept for the session; 0 if none is.
func (r *reservations) left(id snapshot.SessionID) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x := r.kept[id]; x != nil {
		return max(time.Until(x.until), 0)
	}
	return 0
}

func (r *reservations) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.kept)
}
