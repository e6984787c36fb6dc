// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/engines/sampling"
)

// treadmill runs one request again and again until its context ends, and lends the recorder of the present run.
type treadmill struct {
	mu  sync.Mutex
	now *enginetest.Recorder
}

func (m *treadmill) recorder() *enginetest.Recorder {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

func (m *treadmill) run(ctx context.Context, e *engine, q engines.Request) error {
	for {
		r := enginetest.NewRecorder(e.config.Geometry, true)
		m.mu.Lock()
		m.now = r
		m.mu.Unlock()
		if err := e.Run(ctx, engines.Job{Request: q, Capture: true}, r); err != nil {
			return err
		}
	}
}

// Snapshots are taken while the engine decodes at full speed, and restored while it goes on: each continues as the run
// that nobody disturbed.
func TestCase_A5_SnapshotsAtFullSpeed(t *testing.T) {
	const rounds, ahead = 200, 3
	first, second := testEngine(t), testEngine(t)
	q := engines.Request{
		Model: "m", MaxTokens: 80, MinTokens: 80,
		Prompt: engines.Prompt{Messages: []engines.Message{{Role: "user", Content: "Tell me about the harbour, the lighthouse and the sea."}}},
	}
	ref := enginetest.NewRecorder(second.config.Geometry, false)
	if err := second.Run(t.Context(), engines.Job{Request: q}, ref); err != nil {
		t.Fatal(err)
	}
	var mill treadmill
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- mill.run(ctx, first, q) }() // ends with cancel
	defer func() {
		cancel()
		if err := <-stopped; !errors.Is(err, engines.ErrCanceled) {
			t.Errorf("the first engine ended with %v", err)
		}
	}()
	steps := func() uint64 {
		f, err := first.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return f.DecodeSteps
	}
	moving, boundaries := 0, map[int]bool{}
	began := time.Now()
	for round := range rounds {
		r, n := newest(t, &mill, q.MaxTokens-ahead)
		before := steps()
		s, err := r.State(n)
		if err != nil {
			t.Fatal(err)
		}
		boundaries[n] = true
		job := engines.Job{Request: q, From: s}
		job.Request.MaxTokens, job.Request.MinTokens = n+ahead, n+ahead
		got := enginetest.NewRestoredRecorder(s, false)
		if err := second.Run(t.Context(), job, got); err != nil {
			t.Fatal(err)
		}
		if steps() > before {
			moving++
		}
		if want := ref.IDs()[:n+ahead]; !slices.Equal(got.IDs(), want) {
			t.Fatalf("round %d, boundary %d: got %d, want %d", round, n, got.IDs(), want)
		}
	}
	t.Logf("%d rounds at %d boundaries in %v, the engine moved on in %d", rounds, len(boundaries), time.Since(began), moving)
	if moving < rounds/2 || len(boundaries) < 20 {
		t.Fatalf("the engine moved on in %d rounds, at %d boundaries: nothing is shown", moving, len(boundaries))
	}
}

// newest waits for a run with a boundary, at most limit, and returns its newest.
func newest(t *testing.T, m *treadmill, limit int) (*enginetest.Recorder, int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) { // a poll
		if r := m.recorder(); r != nil {
			if n := len(r.IDs()); n > 0 && n <= limit {
				return r, n
			}
		}
	}
	t.Fatal("no boundary within a minute")
	return nil, 0
}

// A continuation goes on inside the assistant's message: nothing is rendered again, no end of the message is put in, and
// the ids at the seam are those of the run that nobody disturbed. A resume from the text would get other ids.
func TestCase_C17_SeamIsInTheIDs(t *testing.T) {
	m, e := testModel(t), testEngine(t)
	chat := []engines.Message{{Role: "system", Content: "You are terse."}, {Role: "user", Content: "Why do ships need lighthouses?"}}
	const tokens = 14
	q := engines.Request{
		Model: "m", Prompt: engines.Prompt{Messages: chat}, MaxTokens: tokens, MinTokens: tokens,
		Sampling: sampling.Params{Temperature: 0.7, TopP: 0.9, Seed: 21},
	}
	ref := enginetest.NewRecorder(e.config.Geometry, true)
	if err := e.Run(t.Context(), engines.Job{Request: q, Capture: true}, ref); err != nil {
		t.Fatal(err)
	}
	before, err := e.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n < tokens; n++ {
		s, err := ref.State(n)
		if err != nil {
			t.Fatal(err)
		}
		got := enginetest.NewRestoredRecorder(s, true)
		if err := e.Run(t.Context(), engines.Job{Request: q, Capture: true, From: s}, got); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.PromptIDs(), ref.PromptIDs()) || !slices.Equal(got.IDs(), ref.IDs()) || got.Text() != ref.Text() {
			t.Errorf("at %d: got %d, %q", n, got.IDs(), got.Text())
		}
		if i := slices.IndexFunc(got.IDs(), m.EOG); i >= 0 {
			t.Errorf("at %d: token %d ends the message", n, i)
		}
		// The hazard: the answer so far, rendered as a message, isn't what was computed.
		seen := append(ref.PromptIDs(), ref.IDs()[:n]...)
		again, err := m.render(engines.Prompt{Messages: append(slices.Clone(chat), engines.Message{Role: "assistant", Content: ref.Text()})}, 512)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Equal(again, seen) {
			t.Errorf("at %d: a rendered answer is what was computed: nothing is shown", n)
		}
	}
	after, err := e.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after.PrefillTokens != before.PrefillTokens || after.ReplayedDecodeSteps != 0 || after.RestoredRows == before.RestoredRows {
		t.Errorf("continuations computed again: %+v, before %+v", after, before)
	}
}
