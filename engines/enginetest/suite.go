// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package enginetest

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seguekv/segue/engines"
)

// Run tests engines that f makes, which ends them by t.Cleanup. It calls f twice.
func Run(t *testing.T, f func(t *testing.T) engines.Engine, o Options) {
	s := &suite{o: o.withDefaults(), first: f(t), second: f(t)}
	s.describe(t)
	if t.Failed() {
		return // every other test builds on the description
	}
	t.Run("Fresh", s.fresh)
	t.Run("Restore", s.restore)
	t.Run("RestoreChain", s.chain)
	t.Run("FinishInState", s.finishInState)
	t.Run("Twins", s.twins)
	t.Run("Concurrent", s.concurrent)
	t.Run("FullContext", s.fullContext)
	t.Run("Cancel", s.cancel)
	t.Run("SinkError", s.sinkError)
	t.Run("Capacity", s.capacity)
	t.Run("RefusedRequests", s.refusedRequests)
	t.Run("RefusedStates", s.refusedStates)
}

// suite is two engines of one build and model, and what the first says of itself.
type suite struct {
	o             Options
	first, second engines.Engine
	d             *engines.Description
}

func (s *suite) meter(e engines.Engine) meter { return meter{engine: e, patience: s.o.Patience} }

// describe tests Describe.
func (s *suite) describe(t *testing.T) {
	d := description(t, s.first)
	s.d = d
	if d.Kind == "" || d.Model == "" {
		t.Errorf("kind is %q and model %q, want names", d.Kind, d.Model)
	}
	if err := d.Geometry.Validate(); err != nil {
		t.Errorf("geometry: %v", err)
	}
	if d.ContextLength < 2 || d.Contexts < 1 || d.Vocabulary < 2 {
		t.Errorf("context length %d, contexts %d, vocabulary %d", d.ContextLength, d.Contexts, d.Vocabulary)
	}
	if d.Boot == [16]byte{} {
		t.Error("boot id is zero")
	}
	if again := description(t, s.first); !reflect.DeepEqual(again, d) {
		t.Errorf("second description differs: %+v, first was %+v", again, d)
	}
	other := description(t, s.second)
	if other.Boot == d.Boot {
		t.Error("two engines have one boot id")
	}
	if !reflect.DeepEqual(other.Fingerprint, d.Fingerprint) {
		t.Errorf("two engines of one build and model have fingerprints %+v and %+v", d.Fingerprint, other.Fingerprint)
	}
	if other.Geometry.Digest() != d.Geometry.Digest() {
		t.Error("two engines of one build and model have different geometries")
	}
}

func description(t *testing.T, e engines.Engine) *engines.Description {
	t.Helper()
	d, err := e.Describe(t.Context())
	if err != nil {
		t.Fatalf("Describe: %v", err)
	}
	return d
}

// run runs a job within the suite's patience.
func (s *suite) run(t *testing.T, e engines.Engine, job engines.Job, sink engines.Sink) error {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), s.o.Patience, errors.New("enginetest: the run took longer than Options.Patience"))
	defer cancel()
	return e.Run(ctx, job, sink)
}

// record runs a job to its end and checks what every complete run must satisfy.
func (s *suite) record(t *testing.T, e engines.Engine, job engines.Job) *Recorder {
	t.Helper()
	r := s.recorder(job)
	if err := s.run(t, e, job, r); err != nil {
		t.Fatalf("Run: %v", err)
	}
	checkComplete(t, job.Request, r)
	return r
}

func (s *suite) recorder(job engines.Job) *Recorder {
	if job.From != nil {
		return NewRestoredRecorder(job.From, job.Capture)
	}
	return NewRecorder(s.d.Geometry, job.Capture)
}

func checkComplete(t *testing.T, q engines.Request, r *Recorder) {
	t.Helper()
	n := len(r.IDs())
	switch {
	case r.Finish() == engines.FinishNone:
		t.Errorf("Run returned nil after %d tokens without a finish", n)
	case q.MaxTokens > 0 && n > q.MaxTokens:
		t.Errorf("%d tokens, limit %d", n, q.MaxTokens)
	case q.MaxTokens > 0 && n < q.MaxTokens && r.Finish() == engines.FinishLength:
		t.Errorf("finish %q after %d of %d tokens", r.Finish(), n, q.MaxTokens)
	}
	for _, k := range r.Tokens() {
		if k.Sampler.Seed != q.Sampling.Seed {
			t.Fatalf("token %d has seed %d, request %d", k.Index, k.Sampler.Seed, q.Sampling.Seed)
		}
	}
}

// same fails unless got has the tokens of want, whichever of them were restored.
func same(t *testing.T, want, got *Recorder) {
	t.Helper()
	d := cmp.Diff(want.Tokens(), got.Tokens(), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(engines.Token{}, "Restored"))
	if d != "" {
		t.Errorf("tokens differ (-want +got):\n%s", d)
	}
	sameRows(t, want, got)
}

// sameRows compares the rows of all positions that both recorded.
func sameRows(t *testing.T, want, got *Recorder) {
	t.Helper()
	for i := range min(want.Rows(), got.Rows()) {
		if string(want.Row(i)) != string(got.Row(i)) {
			t.Errorf("row of position %d differs", i)
			return
		}
	}
}
