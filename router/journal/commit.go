// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"context"
	"fmt"
	"time"
)

// batch is what one commit makes durable.
type batch struct {
	ops     []Op
	entries []built
	actions []builtAction
	syncs   []chan error
	plan    plan
}

// built is an entry's state in a batch.
type built struct {
	e       *Entry
	version uint64
	reserve int
	ended   bool
}

type builtAction struct {
	a       *action
	version uint64
}

// Run commits until ctx ends, then commits what is left and returns. It is called once; nothing becomes durable without
// it.
func (j *Journal) Run(ctx context.Context) error {
	j.mu.Lock()
	if j.started || j.closed {
		j.mu.Unlock()
		return fmt.Errorf("%w: Run is called once", ErrClosed)
	}
	j.started = true
	j.mu.Unlock()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	timer := time.NewTimer(0) // of linger and retry
	defer timer.Stop()
	poke(j.wake)
	sweeping := true
	for ; ctx.Err() == nil; sweeping = false {
		select {
		case <-ctx.Done():
			continue
		case <-sweep.C:
			sweeping = true
		case <-j.wake:
			timer.Reset(linger)
			select {
			case <-timer.C:
			case <-j.hurry:
			case <-ctx.Done():
			}
		}
		if j.commit(sweeping) != nil {
			timer.Reset(retryEvery)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
	}
	return j.flush()
}

// flush commits until nothing is left, or the storage has failed three times.
func (j *Journal) flush() error {
	var err error
	for tries := 0; tries < 3; {
		if err = j.commit(false); err != nil {
			tries++
			continue
		}
		j.mu.Lock()
		if len(j.dirty)+len(j.dirtyActions)+len(j.syncs) == 0 {
			j.shut()
			j.mu.Unlock()
			return nil
		}
		j.mu.Unlock()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	lost := len(j.dirty) + len(j.dirtyActions)
	j.shut()
	return fmt.Errorf("journal: %d records are not durable: %w", lost, err)
}

// commit makes one batch durable.
func (j *Journal) commit(sweep bool) error {
	b := j.collect(sweep)
	var err error
	if len(b.ops) > 0 {
		start := time.Now()
		j.mu.Lock()
		j.since = start
		j.mu.Unlock()
		err = j.store.Commit(b.ops)
		j.m.commit(len(b.ops), time.Since(start), err)
	}
	for _, d := range b.entries {
		d.e.settle(d, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(b.ops) > 0 {
		j.turn(err)
	}
	j.since = time.Time{}
	if err != nil {
		j.again(&b)
	} else {
		j.apply(&b)
	}
	for _, c := range b.syncs {
		if err != nil {
			c <- fmt.Errorf("%w: %w", ErrUnavailable, err)
		} else {
			c <- nil
		}
	}
	return err
}

// turn notes the result of a commit; mu is held.
func (j *Journal) turn(err error) {
	switch {
	case err != nil && j.failing == nil:
		j.o.Log.Error("journal: commit failed; requests go on unjournalled until it works again", "err", err)
	case err == nil && j.failing != nil:
		j.o.Log.Info("journal: storage works again")
	}
	j.failing, j.late = err, false
}

// collect builds the next batch.
func (j *Journal) collect(sweep bool) batch {
	var b batch
	j.mu.Lock()
	// What wakes from here on is for the next batch.
	drain(j.wake)
	drain(j.hurry)
	entries := take(&j.dirty)
	for _, e := range entries {
		e.queued = false
	}
	for _, a := range take(&j.dirtyActions) {
		a.queued = false
		b.actions = append(b.actions, builtAction{a, a.version})
		b.ops = a.ops(b.ops)
	}
	if len(j.dirty)+len(j.dirtyActions) > 0 {
		j.kick(true)
	} else {
		b.syncs, j.syncs = j.syncs, nil
	}
	b.plan = j.retire(sweep)
	j.mu.Unlock()

	// First, so that a key which is taken over in this batch stays.
	b.ops = j.planned(&b.plan, b.ops)
	for _, e := range entries {
		var d built
		b.ops, d = e.build(b.ops)
		b.entries = append(b.entries, d)
	}
	return b
}

func drain(c chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// take removes up to batchLimit of the oldest.
func take[T any](list *[]T) []T {
	n := min(len(*list), batchLimit)
	out := (*list)[:n:n]
	if n == len(*list) {
		*list = nil
	} else {
		*list = append([]T(nil), (*list)[n:]...)
	}
	return out
}

// build adds what of the entry isn't durable.
func (e *Entry) build(ops []Op) ([]Op, built) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := built{e, e.version, e.asked, e.ended}
	id := []byte(e.s.Session)
	if e.version != e.saved {
		ops = append(ops, Op{TableRequests, id, e.s.encode()})
		if e.answer != nil {
			ops = append(ops, Op{TableAnswers, id, encodeAnswer(e.answer)})
		}
		e.j.mu.Lock()
		if e.j.owns(e.it) {
			ops = append(ops, Op{TableKeys, e.it.key[:], e.j.keys[e.it.key].encode()})
		}
		e.j.mu.Unlock()
	}
	switch {
	case e.ended:
		ops = append(ops, Op{TableReservations, id, nil})
	case int64(e.asked) > e.durable.Load():
		ops = append(ops, Op{TableReservations, id, putInt(nil, e.asked)})
	}
	return ops, d
}

// settle takes in a commit's result and wakes the owner.
func (e *Entry) settle(d built, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.saved = d.version
		if int64(d.reserve) > e.durable.Load() {
			e.durable.Store(int64(d.reserve))
		}
	}
	if e.waiting {
		e.waiting = false
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		select {
		case e.wake <- err:
		default:
		}
	}
}

// again puts a failed batch back; mu is held.
func (j *Journal) again(b *batch) {
	for _, d := range b.entries {
		if !d.e.queued {
			d.e.queued = true
			j.dirty = append(j.dirty, d.e)
		}
	}
	for _, d := range b.actions {
		j.queueAction(d.a)
	}
	j.kick(false)
}

// apply takes a durable batch into the index; mu is held.
func (j *Journal) apply(b *batch) {
	j.retired(&b.plan)
	for _, d := range b.entries {
		// An end is the last change of an entry, so it is durable as a whole.
		if d.ended && d.e.it.entry != nil {
			s := &d.e.s // doesn't change any more
			j.live--
			j.pending -= int64(s.answerSize)
			j.finish(d.e.it, s)
		}
	}
	for _, d := range b.actions {
		d.a.committed(d.version)
	}
	if j.finished.len() > j.o.MaxRequests || j.answerBytes > j.o.MaxStored {
		poke(j.wake)
	}
}
