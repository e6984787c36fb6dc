// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

// attempt returns the attempt of epoch e: the one that runs, or what begin starts. Calls for one session follow
// each other, so that a repeat finds what the first one has started.
func (a *Agent) attempt(ctx context.Context, id snapshot.SessionID, e fence.Epoch, begin func() (*session, error)) (*session, error) {
	done, err := a.turn(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
	if s := a.find(id, e); s != nil {
		return s, nil
	}
	return begin()
}

// turn waits until no other call is about to change what the session has here, and keeps others from it until done
// is called.
func (a *Agent) turn(ctx context.Context, id snapshot.SessionID) (done func(), err error) {
	mine := make(chan struct{})
	for {
		a.mu.Lock()
		other := a.opening[id]
		if other == nil {
			a.opening[id] = mine
			a.mu.Unlock()
			break
		}
		a.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", engines.ErrCanceled, context.Cause(ctx))
		}
	}
	return func() {
		a.mu.Lock()
		delete(a.opening, id)
		a.mu.Unlock()
		close(mine)
	}, nil
}

// acquire takes a slot for an attempt of epoch e, if fewer than limit are in use. The session's earlier run here
// ends, and if all are in use, its slot counts as soon as the engine has stopped.
func (a *Agent) acquire(ctx context.Context, id snapshot.SessionID, e fence.Epoch, limit int) (release func(), ok bool) {
	earlier := a.end(id, e-1, fence.ErrStaleEpoch)
	if release, ok = a.slots.acquire(limit); ok || earlier == nil {
		return release, ok
	}
	timer := time.NewTimer(a.cfg.StepLimit)
	defer timer.Stop()
	select {
	case <-earlier.stopped:
		return a.slots.acquire(limit)
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil, false
}

// generate starts an attempt from the prompt.
func (a *Agent) generate(ctx context.Context, id snapshot.SessionID, e fence.Epoch, o order) (*session, error) {
	a.prepared.drop(id, e-1)
	eng, d, err := a.engine(o)
	if err != nil {
		return nil, err
	}
	release, ok := a.acquire(ctx, id, e, d.Contexts-a.cfg.ReservedForTakeover)
	if !ok {
		return nil, fmt.Errorf("%w for a new session: %d of %d contexts in use, %d reserved for takeovers",
			engines.ErrNoCapacity, a.slots.inUse(), d.Contexts, a.cfg.ReservedForTakeover)
	}
	if err := a.store.Admit(id, e); err != nil {
		release()
		return nil, err
	}
	return a.start(id, e, o, eng, d, release, nil)
}

// takeover continues a held session. The holder's epoch is raised under the store's lock before what is held is
// looked at; from then on nothing of a lower epoch changes the store. A node that has no engine or no context
// for it refuses before that. Whatever refuses, what is held stays held unless it is damaged.
func (a *Agent) takeover(ctx context.Context, id snapshot.SessionID, e fence.Epoch, o order, need snapshot.Need, textEnd uint64) (*session, error) {
	release, ok := a.prepared.claim(id, e)
	if !ok {
		release = func() {}
	}
	eng, d, err := a.engine(o)
	if err != nil {
		release()
		return nil, err
	}
	if ok {
		a.end(id, e-1, fence.ErrStaleEpoch)
	} else if release, ok = a.acquire(ctx, id, e, d.Contexts); !ok {
		return nil, fmt.Errorf("%w for a takeover: all %d contexts in use", engines.ErrNoCapacity, d.Contexts)
	}
	a.receiver.Settle(ctx, func() bool { return a.store.Covers(id, need.Delivered) })
	need.Accept = func(h *snapshot.Head) error { return fits(h, d) }
	held, err := a.store.Takeover(id, e, need)
	if err != nil {
		release()
		return nil, err
	}
	chain, err := held.Chain.Rebase(snapshot.BaseID{Session: id, Epoch: e})
	if err != nil {
		held.Memory.Release()
		release()
		return nil, err
	}
	return a.start(id, e, o, eng, d, release, &continuation{held: held, chain: chain, delivered: need.Delivered, textEnd: textEnd})
}

// continuation is what an attempt that continues starts with.
type continuation struct {
	held      *snapshot.Held
	chain     *snapshot.Chain
	delivered int
	textEnd   uint64
}

// engine is the running engine, if it can serve the order.
func (a *Agent) engine(o order) (LiveEngine, *engines.Description, error) {
	eng, err := a.host.Current()
	if err != nil {
		return nil, nil, err
	}
	d, err := eng.Describe(context.Background())
	if err != nil {
		return nil, nil, err
	}
	if err := a.unwell(d); err != nil {
		return nil, nil, err
	}
	if m := o.request.Model; m != "" && m != d.Model {
		return nil, nil, &engines.RequestError{Field: "model", Reason: fmt.Sprintf("%q is not served here; this node serves %q", m, d.Model)}
	}
	return eng, d, nil
}

// start makes the session known and runs it. It owns release and the continuation's memory from the call on.
func (a *Agent) start(id snapshot.SessionID, e fence.Epoch, o order, eng LiveEngine, d *engines.Description, release func(), c *continuation) (*session, error) {
	var to *transfer.Sender
	var unreachable error
	if o.holder != nil {
		to, unreachable = a.sender(o.holder)
	}
	s := newSession(a.lifetime(), id, e, o, d, tenure{clock: a.clock, lapsed: a.metrics.lapsed}, a.log)
	k := &sink{s: s, budget: a.budget, taken: &a.taken}
	var from *snapshot.State
	if c != nil {
		from = c.held.State
		s.resume(from, c.delivered)
		k.dropped, k.textEnd = c.delivered, c.textEnd
	}
	s.protect(to, unreachable)
	switch {
	case c == nil:
	case o.protects():
		s.open(transfer.NewOutbox(c.chain, windowBytes), c.held.Memory)
	default:
		c.held.Memory.Release()
	}
	if err := a.launch(s, eng, from, k, release); err != nil {
		release()
		s.close()
		s.cancel(err)
		return nil, err
	}
	// A device that lost data while the run began has ended all others.
	if a.doctor.isTainted() {
		s.taint(time.Time{}, "a device of the engine has lost data")
	}
	// A Cancel that came before the session was known has told the store.
	if err := a.store.Admit(id, e); err != nil {
		s.fail(err)
	}
	return s, nil
}

// lifetime is the context of sessions.
func (a *Agent) lifetime() context.Context {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.live == nil {
		return context.Background()
	}
	return a.live
}

// launch makes s known in place of an earlier attempt, which has been ended, and runs it.
func (a *Agent) launch(s *session, eng LiveEngine, from *snapshot.State, k *sink, release func()) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.live == nil {
		return fmt.Errorf("%w: the agent stops", engines.ErrNotReady)
	}
	a.sessions[s.id] = s
	a.running.Go(func() { s.guard(a.metrics.protection) })
	a.running.Go(func() {
		s.run(eng, from, k)
		release()
		close(s.stopped)
		a.metrics.ended(s)
		a.retire(s)
	})
	return nil
}

// retire waits until nobody needs the ended session any more and removes it.
func (a *Agent) retire(s *session) {
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for needed := true; needed; {
		s.mu.Lock()
		changed, idle := s.changed, timer.C
		if s.feeds > 0 {
			timer.Reset(linger)
			idle = nil
		}
		s.mu.Unlock()
		select {
		case <-changed:
		case <-idle:
			needed = false
		case <-s.ctx.Done():
			needed = false
		}
	}
	s.close()
	if s.fail(errOrphan); !s.isParked() {
		a.store.Cancel(s.id, s.epoch)
	}
	a.mu.Lock()
	if a.sessions[s.id] == s {
		delete(a.sessions, s.id)
	}
	a.mu.Unlock()
}

// serve feeds a caller, and gives the session's memory back once it has the finish.
func (a *Agent) serve(ctx context.Context, s *session, from int, send func(*seguev1.Event) error) error {
	alive := func() bool {
		e, err := a.host.Current()
		return err == nil && a.engineAlive(ctx, e)
	}
	err := s.feed(ctx, from, a.cfg.OrphanGrace, alive, send)
	if err == nil {
		s.close()
		return nil
	}
	return statusError(err)
}

// end ends the session's run of an epoch up to e and returns it, if there is one.
func (a *Agent) end(id snapshot.SessionID, e fence.Epoch, cause error) *session {
	a.mu.Lock()
	s := a.sessions[id]
	a.mu.Unlock()
	if s == nil || s.epoch > e {
		return nil
	}
	s.fail(cause)
	return s
}

func (a *Agent) find(id snapshot.SessionID, e fence.Epoch) *session {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.sessions[id]; s != nil && s.epoch == e {
		return s
	}
	return nil
}

func (a *Agent) sender(p *seguev1.Peer) (*transfer.Sender, error) {
	return a.pool.To(p.GetId(), p.GetAddr())
}

// all returns the attempts that run or linger here.
func (a *Agent) all() []*session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.sessions))
}

// list describes what runs and what is held here.
func (a *Agent) list() []*seguev1.SessionInfo {
	var out []*seguev1.SessionInfo
	for _, s := range a.all() {
		out = append(out, s.info())
	}
	for _, o := range a.store.Offers() {
		role := "holder"
		if o.Parked {
			role = "parked"
		}
		out = append(out, &seguev1.SessionInfo{
			Session: o.Session[:], Epoch: uint64(o.Epoch), Role: role, Base: o.Base,
			PromptTokens: uint32(o.Prompt), Committed: uint32(o.Committed), Bytes: uint64(o.Bytes), State: "held",
			PreparedMs: milliseconds(a.prepared.left(o.Session)),
		})
	}
	return out
}
