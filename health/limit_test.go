// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health_test

import (
	"testing"
	"time"

	"github.com/seguekv/segue/health"
)

// The first piece of a prompt may take a slow engine seconds: nobody knows yet what it needs.
func TestDetector_ColdEngineHasTime(t *testing.T) {
	s := newSceneOf(t, health.Defaults())
	s.next.InFlight, s.next.Ours = 1, health.Ours{InFlight: 1, Prefilling: 1}
	s.advance()
	a, took := s.until(health.Hung, s.cfg.Cold+3*s.cfg.Interval)
	if a.Limit != s.cfg.Cold || took < s.cfg.Cold {
		t.Errorf("hung after %v with limit %v", took, a.Limit)
	}
}

// Gaps of prompts and of output are remembered apart: a long output doesn't make the next prompt look hung, and slow
// prompts don't hide a hang while output is computed.
func TestDetector_PhasesHaveTheirOwnGaps(t *testing.T) {
	s := newSceneOf(t, health.Defaults())
	s.next.InFlight, s.next.Ours = 1, health.Ours{InFlight: 1, Prefilling: 1}
	for range 10 { // pieces of five seconds
		s.during(5*time.Second, nil, s.never(health.Hung))
		s.steps++
		want(t, s.read(), health.Busy)
	}
	s.next.Ours.Prefilling = 0
	for range 400 { // enough to forget everything else
		s.steps++
		s.next.Ours.Delivered++
		s.read()
	}
	s.next.Ours.Prefilling = 1
	s.during(15*time.Second, nil, s.never(health.Hung))
	s.steps++
	s.read()
	s.next.Ours.Prefilling = 0
	s.steps++
	s.read()
	s.steps++
	s.read()
	if a, took := s.until(health.Hung, 4*time.Second); a.Limit != s.cfg.Floor {
		t.Errorf("hung after %v with limit %v, want the floor", took, a.Limit)
	}
}

// What a stopped process didn't do says nothing about what its engine needs.
func TestDetector_AStoppedProcessTeachesNothing(t *testing.T) {
	s := newScene(t)
	s.next.InFlight = 1
	for range 20 {
		s.steps++
		s.read()
	}
	s.next.Outcome = health.TimedOut
	s.until(health.Hung, 4*time.Second)
	s.during(time.Minute, nil, nil)
	s.next.Outcome = health.Answered
	s.read() // the heartbeat is back, the engine has yet to move
	s.steps++
	want(t, s.read(), health.Busy)
	if a, took := s.until(health.Hung, 4*time.Second); a.Limit != s.cfg.Floor {
		t.Errorf("hung after %v with limit %v, want the floor", took, a.Limit)
	}
}

// Tokens arrive between two pages of a heartbeat that comes less often than it is read: the counters aren't stuck, and a
// hang that follows is found as soon as any other.
func TestDetector_AnOldPageIsNoStuckCounter(t *testing.T) {
	s := newScene(t)
	s.next.InFlight, s.next.Ours = 1, health.Ours{InFlight: 1}
	for i := range 60 {
		s.next.Ours.Delivered++
		if i%4 == 0 { // four reads of each page
			s.steps += 4
		}
		if a := s.read(); a.CountersStuck {
			t.Fatal("counters are stuck")
		}
	}
	s.next.Outcome = health.TimedOut
	if a, took := s.until(health.Hung, 4*time.Second); a.Limit != s.cfg.Floor {
		t.Errorf("hung after %v with limit %v, want the floor", took, a.Limit)
	}
}
