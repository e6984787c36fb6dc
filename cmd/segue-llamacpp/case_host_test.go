// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/engines/sampling"
)

// The host's fingerprint is the same in every process and after every restart; only its boot id differs.
func TestCase_D4_FingerprintsOfRealHostsAreEqual(t *testing.T) {
	requireParts(t)
	p := startHost(t, buildHost(t))
	want, err := fingerprint(testModel(t), partsConfig())
	if err != nil {
		t.Fatal(err)
	}
	boots := map[[16]byte]bool{}
	c := ready(t, p, nil)
	for i := range 2 {
		if i > 0 {
			if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			c = ready(t, p, c)
		}
		d, err := c.Describe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, d.Fingerprint); diff != "" || d.Fingerprint.Digest() != want.Digest() {
			t.Errorf("process %d (-this process +host):\n%s", i, diff)
		}
		boots[d.Boot] = true
	}
	if len(boots) != 2 {
		t.Errorf("%d boot ids of two processes", len(boots))
	}
}

// leaver goes away at token at.
type leaver struct {
	*enginetest.Recorder
	at int
}

func (l leaver) Token(t engines.Token) error {
	if t.Index == l.at {
		return errLeft
	}
	return l.Recorder.Token(t)
}

var errLeft = errors.New("the client left")

// More sessions than contexts, begun, left in the middle and restored in all orders: contexts are reused under pressure
// and every answer still equals its own reference.
func TestCase_D9_ContextsReusedUnderPressureStayExact(t *testing.T) {
	e := testEngine(t)
	const sessions = 6
	jobs, wants := make([]engines.Job, sessions), make([]*enginetest.Recorder, sessions)
	for i := range jobs {
		jobs[i] = engines.Job{Capture: true, Request: engines.Request{
			Model: e.description.Model, Prompt: engines.Prompt{Text: fmt.Sprintf("Letter %d of the keeper: the sea", i)}, MaxTokens: 12, MinTokens: 12,
			Sampling: sampling.Params{Temperature: 0.8, TopP: 0.95, Seed: uint64(i)},
		}}
		wants[i] = recorded(t, e, jobs[i])
	}
	var all sync.WaitGroup
	turn := make(chan struct{}, cap(e.free))
	exact, left := make(chan int, 3*sessions), make(chan int, 3*sessions)
	for round := range 3 {
		for i := range sessions {
			all.Go(func() {
				turn <- struct{}{}
				defer func() { <-turn }()
				job, sink := jobs[i], enginetest.NewRecorder(e.description.Geometry, true)
				switch (i + round) % 3 {
				case 0: // leaves, and never comes back
					if err := e.Run(t.Context(), job, leaver{sink, 3 + round}); !errors.Is(err, errLeft) {
						t.Errorf("session %d: %v", i, err)
					}
					left <- i
					return
				case 1: // is restored
					from, err := wants[i].State(1 + i + round)
					if err != nil {
						t.Error(err)
						return
					}
					job.From, sink = from, enginetest.NewRestoredRecorder(from, true)
				}
				if err := e.Run(t.Context(), job, sink); err != nil {
					t.Errorf("session %d: %v", i, err)
					return
				}
				if diff := cmp.Diff(wants[i].IDs(), sink.IDs()); diff != "" {
					t.Errorf("round %d, session %d (-reference +got):\n%s", round, i, diff)
				}
				exact <- i
			})
		}
	}
	all.Wait()
	if len(exact) != 2*sessions || len(left) != sessions {
		t.Errorf("%d runs were compared, %d left", len(exact), len(left))
	}
}
