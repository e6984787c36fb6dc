// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"context"
	"fmt"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

// generate starts an attempt from the prompt.
func (a *Agent) generate(id snapshot.SessionID, e fence.Epoch, o order) (*session, error) {
	eng, d, err := a.engine(o)
	if err != nil {
		return nil, err
	}
	release, ok := a.slots.acquire(d.Contexts - a.cfg.ReservedForTakeover)
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

// takeover continues a held session. The holder's epoch is raised under the store's lock before anything
// else is looked at; from then on nothing of a lower epoch changes the store.
func (a *Agent) takeover(id snapshot.SessionID, e fence.Epoch, o order, need snapshot.Need, textEnd uint64) (*session, error) {
	eng, d, err := a.engine(o)
	if err != nil {
		return nil, err
	}
	release, ok := a.slots.acquire(d.Contexts)
	if !ok {
		return nil, fmt.Errorf("%w for a takeover: all %d contexts in use", engines.ErrNoCapacity, d.Contexts)
	}
	a.end(id, e-1, fence.ErrStaleEpoch)
	held, err := a.store.Takeover(id, e, need)
	if err != nil {
		release()
		return nil, err
	}
	if err := fits(held.Chain.Head(), d); err != nil {
		held.Memory.Release()
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
	if m := o.request.Model; m != "" && m != d.Model {
		return nil, nil, &engines.RequestError{Field: "model", Reason: fmt.Sprintf("%q is not served here; this node serves %q", m, d.Model)}
	}
	return eng, d, nil
}

// start makes the session known and runs it. It owns release and the continuation's memory from the call on.
func (a *Agent) start(id snapshot.SessionID, e fence.Epoch, o order, eng LiveEngine, d *engines.Description, release func(), c *continuation) (*session, error) {
	undo := func() {
		release()
		if c != nil {
			c.held.Memory.Release()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.live == nil {
		undo()
		return nil, fmt.Errorf("%w: the agent stops", engines.ErrNotReady)
	}
	if old := a.sessions[id]; old != nil {
		if old.epoch >= e {
			undo()
			return nil, fmt.Errorf("%w: epoch %d runs here", fence.ErrStaleEpoch, old.epoch)
		}
		old.fail(fence.ErrStaleEpoch)
	}
	s := newSession(a.live, id, e, o, d, a.log)
	k := &sink{s: s, budget: a.budget, sender: a.sender}
	var from *snapshot.State
	if c != nil {
		from = c.held.State
		s.resume(from)
		k.dropped, k.textEnd = c.delivered, c.textEnd
		if o.protects() {
			if err := k.open(c.chain, c.held.Memory); err != nil {
				release()
				return nil, err
			}
		} else {
			c.held.Memory.Release()
		}
	}
	a.sessions[id] = s
	a.running.Go(func() { s.guard(a.metrics.protection) })
	a.running.Go(func() {
		s.run(eng, from, k)
		release()
		a.metrics.ended(s)
		a.retire(s)
	})
	return s, nil
}

// retire waits until nobody needs the ended session any more and removes it.
func (a *Agent) retire(s *session) {
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for over := false; !over; {
		s.mu.Lock()
		changed, busy, cut := s.changed, s.feeds > 0, s.ctx.Err() != nil
		s.mu.Unlock()
		switch {
		case cut:
			over = true
		case busy:
			<-changed
			timer.Reset(linger)
		default:
			select {
			case <-changed:
			case <-timer.C:
				over = true
			case <-s.ctx.Done():
			}
		}
	}
	s.close()
	s.cancel(nil)
	a.store.Cancel(s.id, s.epoch)
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

// end ends the session's run of an epoch up to e and reports whether there was one.
func (a *Agent) end(id snapshot.SessionID, e fence.Epoch, cause error) bool {
	a.mu.Lock()
	s := a.sessions[id]
	a.mu.Unlock()
	if s == nil || s.epoch > e {
		return false
	}
	s.fail(cause)
	return true
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

// list describes what runs and what is held here.
func (a *Agent) list() []*seguev1.SessionInfo {
	a.mu.Lock()
	all := make([]*session, 0, len(a.sessions))
	for _, s := range a.sessions {
		all = append(all, s)
	}
	a.mu.Unlock()
	var out []*seguev1.SessionInfo
	for _, s := range all {
		out = append(out, s.info())
	}
	for _, o := range a.store.Offers() {
		out = append(out, &seguev1.SessionInfo{
			Session: o.Session[:], Epoch: uint64(o.Epoch), Role: "holder", Base: o.Base,
			PromptTokens: uint32(o.Prompt), Committed: uint32(o.Committed), Bytes: uint64(o.Bytes), State: "held",
		})
	}
	return out
}
