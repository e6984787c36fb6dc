// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"bytes"
	"fmt"
	"time"
)

// Action is one entry of the ledger: a tool call of a request, done at most once.
type Action struct {
	Request string `json:"request"`
	Call    string `json:"call"`
	// State is claimed, or done when Result is there.
	State string `json:"state"`
	// Granted: the caller, and nobody else ever, is to do it.
	Granted   bool      `json:"granted"`
	By        string    `json:"by"`
	ClaimedAt time.Time `json:"claimed_at"`
	Result    []byte    `json:"-"`
}

// States of an action.
const (
	ActionClaimed = "claimed"
	ActionDone    = "done"
)

// action is one action in memory; Journal.mu guards it.
type action struct {
	digest         [32]byte
	record         actionRecord
	result         []byte // until it is durable
	granted        bool   // somebody was told, or may have been by an earlier process
	version, saved uint64
	queued         bool
}

func (a *action) ops(ops []Op) []Op {
	ops = append(ops, Op{TableActions, a.digest[:], a.record.encode()})
	if a.result != nil {
		ops = append(ops, Op{TableResults, a.digest[:], a.result})
	}
	return ops
}

// committed notes that a version is durable. The result is read from the storage from then on.
func (a *action) committed(version uint64) {
	if a.saved = version; a.saved == a.version {
		a.result = nil
	}
}

func (a *action) view() Action {
	v := Action{Request: a.record.request, Call: a.record.call, State: ActionClaimed, By: a.record.by, ClaimedAt: instant(a.record.claimed)}
	if a.record.done {
		v.State = ActionDone
	}
	return v
}

// queueAction puts an action into the next batch; mu is held.
func (j *Journal) queueAction(a *action) {
	if !a.queued {
		a.queued = true
		j.dirtyActions = append(j.dirtyActions, a)
	}
	j.kick(true)
}

// Claim asks to do an action. The first claim is granted, durably, and no other ever; later ones get the result, or
// the state "claimed" while there is none. Other arguments are *ArgumentsError. With ErrUnavailable nothing was granted
// and the claim may be repeated.
func (j *Journal) Claim(tenant, request, call string, args [32]byte, by string) (Action, error) {
	for _, l := range []struct{ name, v string }{{"tenant", tenant}, {"request", request}, {"call", call}, {"claimer", by}} {
		if err := label(l.name, l.v); err != nil {
			return Action{}, err
		}
	}
	d := actionDigest(tenant, request, call)
	j.mu.Lock()
	defer j.mu.Unlock()
	a := j.actions[d]
	if a == nil {
		if len(j.actions) >= j.o.MaxActions {
			return Action{}, fmt.Errorf("%w: %d actions are kept", ErrFull, j.o.MaxActions)
		}
		a = &action{digest: d, version: 1, record: actionRecord{
			tenant: tenant, request: request, call: call, by: by, args: args, claimed: nanos(j.o.Now()),
		}}
		j.actions[d] = a
		j.claims.push(used{d, a.record.claimed})
		j.queueAction(a)
	}
	if a.record.args != args {
		return Action{}, &ArgumentsError{request, call}
	}
	if err := j.durable(a); err != nil {
		return Action{}, err
	}
	if a.record.done {
		return j.withResult(a)
	}
	v := a.view()
	if !a.granted {
		a.granted, v.Granted = true, true
	}
	return v, nil
}

// Result stores what the action came to. The first result stays; a second one gets the first. It is durable when Result
// returns nil; after ErrUnavailable it may be repeated.
func (j *Journal) Result(tenant, request, call string, args [32]byte, body []byte) (Action, error) {
	if len(body) > MaxResult {
		return Action{}, fmt.Errorf("%w: the result has %d bytes, at most %d are kept", ErrInvalid, len(body), MaxResult)
	}
	d := actionDigest(tenant, request, call)
	j.mu.Lock()
	defer j.mu.Unlock()
	a := j.actions[d]
	switch {
	case a == nil || !a.granted:
		return Action{}, ErrNotClaimed
	case a.record.args != args:
		return Action{}, &ArgumentsError{request, call}
	case !a.record.done:
		if j.resultBytes+int64(len(body)) > j.o.MaxStored {
			return Action{}, fmt.Errorf("%w: results of %d bytes are kept", ErrFull, j.resultBytes)
		}
		a.result = append([]byte{}, body...)
		a.record.done, a.record.size = true, len(body)
		a.version++
		j.resultBytes += int64(len(body))
		j.queueAction(a)
	}
	if err := j.durable(a); err != nil {
		return Action{}, err
	}
	return j.withResult(a)
}

// Action is the action as it is.
func (j *Journal) Action(tenant, request, call string) (Action, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	a := j.actions[actionDigest(tenant, request, call)]
	if a == nil {
		return Action{}, false
	}
	if !a.record.done {
		return a.view(), true
	}
	v, err := j.withResult(a)
	return v, err == nil
}

// durable waits until the action is as durable as it is now; mu is held, and released meanwhile.
func (j *Journal) durable(a *action) error {
	want := a.version
	if a.saved >= want {
		return nil
	}
	if err := j.healthy(); err != nil {
		return err
	}
	c := make(chan error, 1)
	j.syncs = append(j.syncs, c)
	j.kick(true)
	j.mu.Unlock()
	defer j.mu.Lock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-c:
		return err
	case <-timer.C:
		return fmt.Errorf("%w: a commit takes more than %v", ErrUnavailable, patience)
	}
}

// withResult is the action with its result; mu is held.
func (j *Journal) withResult(a *action) (Action, error) {
	v := a.view()
	if a.result != nil {
		v.Result = bytes.Clone(a.result)
		return v, nil
	}
	d := a.digest
	j.mu.Unlock()
	defer j.mu.Lock()
	b, err := j.store.Read(TableResults, d[:])
	if err != nil || b == nil {
		return v, fmt.Errorf("%w: result of action %s:%s can't be read: %v", ErrUnavailable, v.Request, v.Call, err)
	}
	v.Result = b
	return v, nil
}
