// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package enginetest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/seguekv/segue/engines"
)

// event is a kind of sink call.
type event int

const (
	onPrompt event = iota
	onPrefilled
	onToken
)

// tap is a recorder with a hook before each call, which may fail it.
type tap struct {
	*Recorder
	hook func(e event, index int) error
}

func (k tap) Prompt(ids []int32) error {
	if err := k.hook(onPrompt, 0); err != nil {
		return err
	}
	return k.Recorder.Prompt(ids)
}

func (k tap) Prefilled(first, count int, rows []byte) error {
	if err := k.hook(onPrefilled, first); err != nil {
		return err
	}
	return k.Recorder.Prefilled(first, count, rows)
}

func (k tap) Token(n engines.Token) error {
	if err := k.hook(onToken, n.Index); err != nil {
		return err
	}
	return k.Recorder.Token(n)
}

// cancel ends runs' contexts in each phase.
func (s *suite) cancel(t *testing.T) {
	cause := errors.New("the client went away")
	long := s.greedy()
	long.request.Prompt = s.o.LongPrompt
	short := s.greedy()
	ref := s.record(t, s.first, short.job())
	restored := short.job()
	restored.From = state(t, ref, 4)

	for _, c := range []struct {
		name  string
		job   engines.Job
		event event
		index int
		// after bounds the events that may still come.
		chunks, tokens int
	}{
		{"Prefill", long.job(), onPrefilled, 0, 1, 0},
		{"Decode", short.job(), onToken, 2, 1 << 20, 3},
		{"Recorded", restored, onToken, 2, 0, 3},
		{"Restored", restored, onToken, 5, 0, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			r := s.recorder(c.job)
			err := s.withPatience(t, func() error {
				return s.first.Run(ctx, c.job, tap{r, func(e event, index int) error {
					if e == c.event && index == c.index {
						cancel(cause)
					}
					return nil
				}})
			})
			if !errors.Is(err, engines.ErrCanceled) || !errors.Is(err, cause) {
				t.Fatalf("Run: %v, want an error that is %v and %v", err, engines.ErrCanceled, cause)
			}
			if r.Chunks() > c.chunks || len(r.IDs()) > c.tokens {
				t.Errorf("%d chunks and %d tokens, want at most %d and %d", r.Chunks(), len(r.IDs()), c.chunks, c.tokens)
			}
			if c.event == onPrefilled && r.Rows() == len(r.PromptIDs()) {
				t.Errorf("all %d positions were computed: the prompt fits one chunk, make Options.LongPrompt longer", r.Rows())
			}
			s.meter(s.first).running(t, 0)
		})
	}
	t.Run("Before", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		m := s.meter(s.first)
		before := m.read(t)
		err := s.first.Run(ctx, short.job(), s.recorder(short.job()))
		if !errors.Is(err, engines.ErrCanceled) || !errors.Is(err, cause) {
			t.Errorf("Run: %v, want an error that is %v and %v", err, engines.ErrCanceled, cause)
		}
		m.expect(t, before, work{})
	})
	t.Run("Again", func(t *testing.T) {
		r := s.record(t, s.first, short.job())
		if s.o.Deterministic {
			same(t, ref, r)
		}
	})
}

// withPatience fails the test when f takes longer than Options.Patience.
func (s *suite) withPatience(t *testing.T, f func() error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.o.Patience)
	defer cancel()
	end := make(chan error, 1)
	go func() { end <- f() }() // ends with f; this function waits for it unless f is stuck
	select {
	case err := <-end:
		return err
	case <-ctx.Done():
		t.Fatalf("no end after %v", s.o.Patience)
		return nil
	}
}

// sinkError fails each kind of sink call: Run returns that error, calls the sink no more and frees the context.
func (s *suite) sinkError(t *testing.T) {
	boom := errors.New("the sink is closed")
	v := s.greedy()
	ref := s.record(t, s.first, v.job())
	restored := v.job()
	restored.From = state(t, ref, 4)
	for _, c := range []struct {
		name  string
		job   engines.Job
		event event
		index int
	}{
		{"Prompt", v.job(), onPrompt, 0},
		{"Prefilled", v.job(), onPrefilled, 0},
		{"FirstToken", v.job(), onToken, 0},
		{"Token", v.job(), onToken, 3},
		{"Recorded", restored, onToken, 1},
		{"Restored", restored, onToken, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			failed := false
			err := s.run(t, s.first, c.job, tap{s.recorder(c.job), func(e event, index int) error {
				if failed {
					t.Errorf("sink call %d, index %d after an error", e, index)
				}
				if failed = e == c.event && index == c.index; failed {
					return boom
				}
				return nil
			}})
			if !errors.Is(err, boom) {
				t.Errorf("Run: %v, want the sink's %v", err, boom)
			}
			s.meter(s.first).running(t, 0)
		})
	}
}

// capacity fills every context with a run whose sink blocks.
func (s *suite) capacity(t *testing.T) {
	v := s.greedy()
	enough := errors.New("the test has seen enough")
	release := make(chan struct{})
	var wg, entered sync.WaitGroup
	errs := make([]error, s.d.Contexts)
	for i := range errs {
		entered.Add(1)
		wg.Go(func() {
			once := sync.OnceFunc(entered.Done)
			defer once() // also when Run ends early
			errs[i] = s.run(t, s.first, v.job(), tap{s.recorder(v.job()), func(event, int) error {
				once()
				<-release
				return enough
			}})
		})
	}
	entered.Wait()
	m := s.meter(s.first)
	m.running(t, s.d.Contexts)
	err := s.run(t, s.first, v.job(), tap{s.recorder(v.job()), func(e event, _ int) error {
		t.Errorf("sink call %d of a run without a context", e)
		return enough
	}})
	if !errors.Is(err, engines.ErrNoCapacity) {
		t.Errorf("Run %d: %v, want %v", s.d.Contexts+1, err, engines.ErrNoCapacity)
	}
	close(release)
	wg.Wait()
	for i, err := range errs {
		if !errors.Is(err, enough) {
			t.Errorf("Run %d: %v, want the sink's error", i, err)
		}
	}
	m.running(t, 0)
	s.record(t, s.first, v.job())
}
