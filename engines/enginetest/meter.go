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

// meter compares an engine's counters.
type meter struct {
	engine engines.Engine
	lag    time.Duration
}

// read returns counters that cover every run which has returned.
func (m meter) read(t *testing.T) work {
	t.Helper()
	f := m.observe(t)
	if m.lag == 0 {
		return workOf(f)
	}
	old := time.NewTimer(2 * m.lag)
	defer old.Stop()
	<-old.C
	return workOf(m.observe(t))
}

// expect fails unless the counters come to differ from before by exactly want.
func (m meter) expect(t *testing.T, before, want work) {
	t.Helper()
	var got work
	ok := m.until(t, func(f engines.Facts) bool {
		got = workOf(f).since(before)
		return got == want
	})
	if !ok {
		t.Errorf("counters of the run (-want +got):\n%s", cmp.Diff(want, got))
	}
}

// running fails unless the number of active runs comes to be n.
func (m meter) running(t *testing.T, n int) {
	t.Helper()
	var got int
	ok := m.until(t, func(f engines.Facts) bool {
		got = f.Running
		return got == n
	})
	if !ok {
		t.Errorf("%d runs are active, want %d", got, n)
	}
}

// until observes until f holds, at most a few lags long, at least once.
func (m meter) until(t *testing.T, f func(engines.Facts) bool) bool {
	t.Helper()
	deadline := time.Now().Add(5 * m.lag)
	tick := time.NewTicker(time.Millisecond + m.lag/20)
	defer tick.Stop()
	for !f(m.observe(t)) {
		if !time.Now().Before(deadline) {
			return false
		}
		<-tick.C
	}
	return true
}

func (m meter) observe(t *testing.T) engines.Facts {
	t.Helper()
	f, err := m.engine.Observe(t.Context())
	if err != nil {
		t.Fatalf("Observe: %v", err)
	}
	return f
}
