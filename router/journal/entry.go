// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Entry is one open request. Its methods are called by the goroutine that owns the request; none but Reserve waits. All
// are no-ops on a nil Entry.
type Entry struct {
	j  *Journal
	it *item
	// durable counts reserved output tokens on disk, delivered those handed to the client.
	durable, delivered atomic.Int64
	ahead              int64 // the owner's: a Reserve above it asks for the next run
	wake               chan error
	queued             bool // guarded by Journal.mu

	mu             sync.Mutex // guards what follows; taken before Journal.mu
	s              stored
	answer         *Answer
	asked          int // output tokens to be reserved
	version, saved uint64
	waiting        bool
	ended          bool
	attempts       int
}

func newEntry(j *Journal, n New) *Entry {
	e := &Entry{j: j, wake: make(chan error, 1), version: 1}
	e.s = stored{Request: Request{
		RequestID: n.RequestID, Session: n.Session, Tenant: n.Tenant, Endpoint: n.Endpoint, Model: n.Model, Phase: PhaseQueued,
		RetryBudget: n.RetryBudget, Stream: n.Stream, Protection: n.Protection, KeyUsed: n.Key != "", StartedAt: n.Started.UTC(),
	}}
	e.it = &item{session: n.Session, tenant: n.Tenant, label: n.RequestID, started: nanos(n.Started), entry: e}
	if n.Key != "" {
		e.s.key = keyDigest(n.Tenant, n.Key)
		e.it.keyed, e.it.key = true, e.s.key
	}
	return e
}

// change applies f unless the request has ended, and has the record written with the next batch.
func (e *Entry) change(f func(*stored)) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return
	}
	f(&e.s)
	e.touch()
}

// touch has the record written; mu is held.
func (e *Entry) touch() {
	e.version++
	e.j.mu.Lock()
	defer e.j.mu.Unlock()
	e.j.queue(e, false)
}

// Attempt adds an attempt and returns its number. Too long labels are cut. Beyond MaxAttempts the second oldest is
// dropped.
func (e *Entry) Attempt(a Attempt) int {
	number := 0
	e.change(func(s *stored) {
		for _, l := range []*string{&a.Replica, &a.Kind, &a.Lease, &a.Cause, &a.Revision} {
			*l = cut(*l, MaxLabel)
		}
		a.Detail = cut(a.Detail, MaxDetail)
		if a.StartedAt.IsZero() {
			a.StartedAt = e.j.o.Now()
		}
		a.StartedAt = a.StartedAt.UTC()
		a.number, number = e.attempts, e.attempts
		e.attempts++
		if len(s.Attempts) == MaxAttempts {
			s.Attempts = append(s.Attempts[:1], s.Attempts[2:]...)
			s.AttemptsDropped++
		}
		s.Attempts = append(s.Attempts, a)
		if a.Revision != "" {
			s.ModelRevision = a.Revision
		}
	})
	return number
}

// EndAttempt says why attempt i ended; "" for a finish.
func (e *Entry) EndAttempt(i int, cause, detail string) {
	e.change(func(s *stored) {
		for k := range s.Attempts {
			if a := &s.Attempts[k]; a.number == i && a.EndedAt.IsZero() {
				a.Cause, a.Detail, a.EndedAt = cut(cause, MaxLabel), cut(detail, MaxDetail), e.j.o.Now().UTC()
			}
		}
	})
}

// Revision sets the revision of the model that answers.
func (e *Entry) Revision(revision string) {
	e.change(func(s *stored) { s.ModelRevision = cut(revision, MaxLabel) })
}

// RetryBudget sets how many retries are left.
func (e *Entry) RetryBudget(left int) {
	e.change(func(s *stored) { s.RetryBudget = max(left, 0) })
}

// Phase sets queued, prefill or decode; any other is ignored. Done and Fail set the last ones.
func (e *Entry) Phase(phase string) {
	switch phase {
	case PhaseQueued, PhasePrefill, PhaseDecode:
		e.change(func(s *stored) { s.Phase = phase })
	}
}

// Tool notes a tool call that is handed to the client. Beyond MaxTools it is left out.
func (e *Entry) Tool(call, name string, args [32]byte) {
	e.change(func(s *stored) {
		if len(s.Tools) < MaxTools {
			s.Tools = append(s.Tools, Tool{cut(call, MaxLabel), cut(name, MaxLabel), hex.EncodeToString(args[:])})
		}
	})
}

// Delivered says that the first n output tokens were handed to the client.
func (e *Entry) Delivered(n int) {
	if e != nil && int64(n) > e.delivered.Load() {
		e.delivered.Store(int64(n))
	}
}

// Reserve returns nil when the first n output tokens may be written: a crash from then on reads as at most that many
// delivered, or more. It waits only when it is called for more than the next run. An error says that the storage fails
// (ErrUnavailable), or that ctx ended; the caller may go on, and the journal may then tell too little after a crash.
func (e *Entry) Reserve(ctx context.Context, n int) error {
	if e == nil {
		return nil
	}
	if int64(n) <= e.durable.Load() {
		if int64(n) > e.ahead {
			e.ask(n, false)
		}
		return nil
	}
	return e.wait(ctx, n)
}

// maxTokens bounds a reservation.
const maxTokens = 1 << 30

// ask has runs reserved that reach runAhead beyond n.
func (e *Entry) ask(n int, wait bool) error {
	want := (n + runAhead + runLength - 1) / runLength * runLength
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return ErrFinished
	}
	if e.waiting = wait; wait {
		select {
		case <-e.wake: // of a wait that was given up
		default:
		}
	}
	if want > e.asked {
		e.asked = want
	}
	e.ahead = int64(e.asked - runAhead)
	e.j.mu.Lock()
	defer e.j.mu.Unlock()
	e.j.queue(e, wait)
	if wait {
		return e.j.healthy()
	}
	return nil
}

func (e *Entry) wait(ctx context.Context, n int) error {
	if n > maxTokens {
		return fmt.Errorf("%w: %d output tokens", ErrInvalid, n)
	}
	start := time.Now()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for int64(n) > e.durable.Load() {
		if err := e.ask(n, true); err != nil {
			return e.unjournalled(n, err)
		}
		select {
		case err := <-e.wake:
			if err != nil {
				return e.unjournalled(n, err)
			}
		case <-timer.C:
			e.j.mu.Lock()
			e.j.late = true
			err := e.j.healthy()
			e.j.mu.Unlock()
			return e.unjournalled(n, err)
		case <-e.j.done:
			return e.unjournalled(n, ErrClosed)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	e.j.m.waits.Observe(time.Since(start).Seconds())
	return nil
}

func (e *Entry) unjournalled(n int, err error) error {
	e.j.m.unjournalled.Inc()
	return fmt.Errorf("output token %d isn't reserved: %w", n, err)
}

// Done ends the request with a finish. The answer is retained for a repeat with the same Idempotency-Key if there is a
// key and it isn't larger than Options.MaxReplay; its Body belongs to the journal then. nil retains nothing.
func (e *Entry) Done(finish string, u Usage, answer *Answer) {
	e.change(func(s *stored) {
		s.Phase, s.Finish = PhaseDone, cut(finish, MaxLabel)
		s.Usage = &Usage{max(u.PromptTokens, 0), max(u.CompletionTokens, 0), max(u.TotalTokens, 0)}
		s.Delivered = int(e.delivered.Load())
		s.FirstDeltaSent = e.asked > 0 || s.Delivered > 0
		e.end(s, answer)
	})
}

// Fail ends the request with an error object, {"code": …}. delivered counts output tokens handed to the client; first
// says that content was written to it, or may have been.
func (e *Entry) Fail(errorJSON []byte, delivered int, first bool) {
	e.change(func(s *stored) {
		s.Phase, s.Delivered = PhaseFailed, max(delivered, 0)
		s.FirstDeltaSent = first || s.Delivered > 0
		switch {
		case len(errorJSON) == 0:
		case len(errorJSON) > MaxError || !json.Valid(errorJSON):
			s.Error = json.RawMessage(`{"code":"internal_error","message":"the error object was too large or not JSON"}`)
		default:
			s.Error = append(json.RawMessage(nil), errorJSON...)
		}
		e.end(s, nil)
	})
}

// end sets what all ends share; mu is held.
func (e *Entry) end(s *stored, answer *Answer) {
	e.ended, s.EndedAt = true, e.j.o.Now().UTC()
	for i := range s.Attempts {
		if a := &s.Attempts[i]; a.EndedAt.IsZero() {
			a.EndedAt = s.EndedAt
		}
	}
	e.j.mu.Lock()
	defer e.j.mu.Unlock()
	if answer != nil && s.KeyUsed && len(answer.Body) <= e.j.o.MaxReplay && answer.Status >= 0 && answer.Status <= 999 &&
		e.j.pending+int64(len(answer.Body)) <= pendingLimit {
		a := *answer
		a.ContentType = cut(a.ContentType, MaxLabel)
		e.answer, s.ReplayRetained, s.answerSize = &a, true, len(a.Body)
		e.j.pending += int64(len(a.Body))
	}
	if e.j.owns(e.it) {
		k := *e.j.keys[e.it.key]
		k.outcome, k.delivered, k.upper, k.ended = outcomeOf(&s.Request), s.Delivered, s.UpperBound, nanos(s.EndedAt)
		e.j.keys[e.it.key] = &k
	}
}

// pendingLimit bounds the answers that wait for a failing disk.
const pendingLimit = 64 << 20

// view is the request as it is now.
func (e *Entry) view() Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.s.clone()
	if !e.ended {
		r.Delivered = int(e.delivered.Load())
		r.FirstDeltaSent = e.asked > 0 || r.Delivered > 0
	}
	return r
}
