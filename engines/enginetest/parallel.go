// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package enginetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/seguekv/segue/engines"
)

// twins restores one state twice, at once where there is room: both go on equally and the state stays as it
// was.
func (s *suite) twins(t *testing.T) {
	v := s.seeded()
	ref := s.record(t, s.first, v.job())
	from := state(t, ref, s.o.Tokens/2)
	before := Clone(from)
	job := engines.Job{Request: v.request, Capture: true, From: from}
	got := s.parallel(t, s.second, min(2, s.d.Contexts), func(int) engines.Job { return job })
	got = append(got, s.record(t, s.second, job))
	sameState(t, before, from)
	if s.o.Deterministic {
		for _, r := range got {
			same(t, ref, r)
		}
	}
}

// concurrent compares runs beside each other with the same runs alone, fresh and restored mixed.
func (s *suite) concurrent(t *testing.T) {
	n := min(3, s.d.Contexts)
	if n < 2 {
		t.Skip("the engine has one context")
	}
	jobs, solo := make([]engines.Job, n), make([]*Recorder, n)
	for i := range jobs {
		v := s.seeded()
		v.request.Prompt = s.prompt(i)
		v.request.Sampling.Seed += uint64(i)
		jobs[i] = v.job()
		solo[i] = s.record(t, s.first, jobs[i])
	}
	jobs[n-1].From = state(t, solo[n-1], 3)
	for i, r := range s.parallel(t, s.first, n, func(i int) engines.Job { return jobs[i] }) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			checkComplete(t, jobs[i].Request, r)
			if s.o.Deterministic {
				same(t, solo[i], r)
			}
		})
	}
}

// parallel runs n jobs at once, to their ends.
func (s *suite) parallel(t *testing.T, e engines.Engine, n int, job func(i int) engines.Job) []*Recorder {
	t.Helper()
	recorders, errs := make([]*Recorder, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		recorders[i] = s.recorder(job(i))
		wg.Go(func() { errs[i] = s.run(t, e, job(i), recorders[i]) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("Run %d of %d at once: %v", i, n, err)
		}
	}
	return recorders
}
