// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package enginetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/engines"
)

// work is the part of Facts that only grows.
type work struct {
	Prefilled, Steps, Replayed, RestoredRows, RestoredBytes, Captured uint64
}

func workOf(f engines.Facts) work {
	return work{f.PrefillTokens, f.DecodeSteps, f.ReplayedDecodeSteps, f.RestoredRows, f.RestoredBytes, f.CapturedRows}
}

func (w work) since(o work) work {
	return work{
		w.Prefilled - o.Prefilled, w.Steps - o.Steps, w.Replayed - o.Replayed,
		w.RestoredRows - o.RestoredRows, w.RestoredBytes - o.RestoredBytes, w.Captured - o.Captured,
	}
}

// meter compares an engine's counters, which are never behind a run that has returned. The number of
// active runs may be: it is awaited.
type meter struct {
	engine   engines.Engine
	patience time.Duration
}

// read returns the counters.
func (m meter) read(t *testing.T) work {
	t.Helper()
	return workOf(m.observe(t))
}

// expect fails unless the counters differ from before by exactly want.
func (m meter) expect(t *testing.T, before, want work) {
	t.Helper()
	if d := cmp.Diff(want, m.read(t).since(before)); d != "" {
		t.Errorf("counters of the run (-want +got):\n%s", d)
	}
}

// running fails unless the number of active runs comes to be n.
func (m meter) running(t *testing.T, n int) {
	t.Helper()
	deadline := time.Now().Add(m.patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		got := m.observe(t).Running
		if got == n {
			return
		}
		if !time.Now().Before(deadline) {
			t.Errorf("%d runs are active, want %d", got, n)
			return
		}
		<-tick.C
	}
}

func (m meter) observe(t *testing.T) engines.Facts {
	t.Helper()
	f, err := m.engine.Observe(t.Context())
	if err != nil {
		t.Fatalf("Observe: %v", err)
	}
	return f
}
