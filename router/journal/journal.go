// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Journal is safe for concurrent use.
type Journal struct {
	o     Options
	store Storage
	m     *metrics

	wake  chan struct{} // something is to be committed
	hurry chan struct{} // somebody waits for it
	done  chan struct{} // closed when Run has returned

	mu sync.Mutex // guards what follows
	index
	live         int // requests with an entry
	dirty        []*Entry
	dirtyActions []*action
	syncs        []chan error
	pending      int64 // bytes of answers that aren't durable yet
	started      bool
	closed       bool

	failing error     // of the last commit
	since   time.Time // when the commit that is under way began
	late    bool      // somebody gave up waiting since the last commit

	recovered map[*item]*stored // while Open runs

	changed chan struct{} // nil while nobody has asked for it
}

// Open reads what is stored. Requests that were open then have ended when it returns: failed, with cause router_crash,
// delivered at most what they had reserved.
func Open(o Options) (*Journal, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	store := o.Storage
	if store == nil {
		if o.Path == "" {
			store = NewMemory()
		} else if store, err = openFile(o.Path, o.Log); err != nil {
			return nil, err
		}
	}
	j := &Journal{
		o: o, store: store, index: newIndex(),
		wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if err := j.recover(); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	if j.m, err = newMetrics(o.Registerer, j); err != nil {
		return nil, errors.Join(fmt.Errorf("journal: %w", err), store.Close())
	}
	return j, nil
}

// Close gives the storage back. Run must have returned, or never been called.
func (j *Journal) Close() error {
	j.mu.Lock()
	busy := j.started && !j.closed
	if !busy {
		j.shut()
	}
	j.mu.Unlock()
	if busy {
		return errors.New("journal: Close called before Run has returned")
	}
	j.m.unregister()
	if err := j.store.Close(); err != nil {
		return fmt.Errorf("journal: close: %w", err)
	}
	return nil
}

// shut ends all waiting; mu is held.
func (j *Journal) shut() {
	if j.closed {
		return
	}
	j.closed = true
	for _, s := range j.syncs {
		s <- ErrClosed
	}
	j.syncs = nil
	close(j.done)
	j.announce()
}

// Begin takes in a request. It doesn't wait for the disk. With a Key that the tenant has used before it returns
// *RunningError, *PayloadError, *FinishedError or *InterruptedError; a key whose request failed before any delivery is
// taken over. With ErrFull and ErrInvalid the request isn't journalled; a nil *Entry may be used all the same, it does
// nothing.
func (j *Journal) Begin(n New) (*Entry, error) {
	if err := n.check(); err != nil {
		return nil, err
	}
	if n.Started.IsZero() {
		n.Started = j.o.Now()
	}
	e := newEntry(j, n)
	j.mu.Lock()
	switch {
	case j.closed:
		j.mu.Unlock()
		return nil, ErrClosed
	case j.sessions[n.Session] != nil:
		j.mu.Unlock()
		return nil, fmt.Errorf("%w: session %s exists", ErrInvalid, n.Session)
	case j.live >= j.o.MaxOpen:
		j.mu.Unlock()
		return nil, fmt.Errorf("%w: %d requests are open", ErrFull, j.o.MaxOpen)
	}
	if n.Key != "" {
		k := j.keys[e.it.key]
		if k != nil && (k.outcome != outcomeFailed || k.payload != n.Payload) {
			have, it := *k, j.sessions[k.session]
			j.mu.Unlock()
			return nil, j.conflict(have, it, n.Payload)
		}
		if k == nil && len(j.keys) >= j.o.MaxKeys {
			j.mu.Unlock()
			return nil, fmt.Errorf("%w: %d idempotency keys are kept", ErrFull, j.o.MaxKeys)
		}
		j.keys[e.it.key] = &keyRecord{payload: n.Payload, session: n.Session, tenant: n.Tenant, label: n.RequestID}
	}
	j.live++
	j.add(e.it)
	j.queue(e, false)
	j.mu.Unlock()
	return e, nil
}

// conflict is the error of a used key; it may be nil.
func (j *Journal) conflict(k keyRecord, it *item, payload [32]byte) error {
	r, ok := j.view(it)
	if !ok {
		r = k.request()
	}
	switch {
	case k.payload != payload:
		return &PayloadError{r}
	case k.outcome == outcomeRunning:
		return &RunningError{r}
	case k.outcome == outcomeDone:
		return &FinishedError{r, j.answer(it)}
	}
	return &InterruptedError{r}
}

// queue puts an entry into the next batch; mu is held.
func (j *Journal) queue(e *Entry, urgent bool) {
	if !e.queued {
		e.queued = true
		j.dirty = append(j.dirty, e)
	}
	j.kick(urgent)
	j.announce()
}

// kick wakes the committer; at once if somebody waits.
func (j *Journal) kick(urgent bool) {
	poke(j.wake)
	if urgent {
		poke(j.hurry)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Healthy is nil while records become durable in time.
func (j *Journal) Healthy() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.healthy()
}

func (j *Journal) healthy() error {
	switch {
	case j.closed:
		return ErrClosed
	case j.failing != nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, j.failing)
	case j.late, !j.since.IsZero() && time.Since(j.since) > patience:
		return fmt.Errorf("%w: a commit takes more than %v", ErrUnavailable, patience)
	}
	return nil
}

// Sync waits until everything said so far is durable. It returns the error of the commit that should have made it so.
func (j *Journal) Sync(ctx context.Context) error {
	c := make(chan error, 1)
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return ErrClosed
	}
	j.syncs = append(j.syncs, c)
	j.kick(true)
	j.mu.Unlock()
	select {
	case err := <-c:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Changed returns a channel that is closed at the next change of any request other than its delivered count.
func (j *Journal) Changed() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changed == nil {
		j.changed = make(chan struct{})
		if j.closed {
			close(j.changed)
		}
	}
	return j.changed
}

// announce closes the channel of Changed; mu is held.
func (j *Journal) announce() {
	if j.changed == nil {
		return
	}
	select {
	case <-j.changed:
	default:
		close(j.changed)
	}
	if !j.closed {
		j.changed = nil
	}
}
