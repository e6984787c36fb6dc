// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health_test

import (
	"testing"
	"time"

	"github.com/seguekv/segue/health"
)

// A process was stopped in the middle of its work, which was taken away meanwhile. When it speaks again it is well without a
// probe, unless it still has something to do, or nothing tells of its steps.
func TestDetector_AStoppedProcessThatSpeaksAgain(t *testing.T) {
	for name, c := range map[string]struct {
		steps    bool
		inFlight int
		want     health.Verdict
	}{
		"nothing to do":     {true, 0, health.Idle},
		"work that is left": {true, 1, health.Hung},
		"blind":             {false, 0, health.Hung},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.next.Steps = c.steps
			s.busy()
			s.next.Outcome = health.TimedOut
			s.until(health.Hung, s.cfg.BlindFloor+5*time.Second)
			s.next.Outcome, s.next.InFlight = health.Answered, c.inFlight
			want(t, s.read(), c.want)
			want(t, s.read(), c.want)
		})
	}
}
