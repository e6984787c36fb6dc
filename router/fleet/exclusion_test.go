// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet_test

import (
	"testing"
	"time"

	"github.com/seguekv/segue/router/fleet"
)

// exclusionOf is how long the node stays excluded, in virtual time.
func (w *world) exclusionOf(id string) time.Duration {
	w.t.Helper()
	return time.Duration(w.status(id).ExcludedFor * float64(time.Second))
}

func TestNode_FailuresExcludeLongerEachTime(t *testing.T) {
	bubble(t, "a:m b:m", nil, func(t *testing.T, w *world) {
		n := w.Node("a")
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30} {
			n.Fail("502")
			want *= time.Second
			if s := w.status("a"); w.exclusionOf("a") != want || s.Failures != i+1 || s.Failure != "502" {
				t.Fatalf("failure %d: %+v", i+1, s)
			}
			pass(want - time.Millisecond)
			for range 3 {
				if c := w.claim(server(nil)); c.Node == n {
					t.Fatalf("failure %d: chosen 1 ms before the end", i+1)
				}
			}
			pass(time.Millisecond)
			if w.exclusionOf("a") != 0 {
				t.Fatalf("failure %d: not over: %+v", i+1, w.status("a"))
			}
		}
		n.Succeed()
		if s := w.status("a"); s.Failures != 0 || s.Failure != "" {
			t.Errorf("after a success: %+v", s)
		}
		n.Fail("502")
		if w.exclusionOf("a") != time.Second {
			t.Errorf("first failure after a success: %+v", w.status("a"))
		}
	})
}

// While nothing tries the node, what comes late from sessions of before says nothing new.
func TestNode_FailureDuringExclusionCountsOnlyOnTrial(t *testing.T) {
	bubble(t, "a:m", nil, func(t *testing.T, w *world) {
		n := w.Node("a")
		n.Fail("reset")
		n.Fail("reset")
		if s := w.status("a"); s.Failures != 1 {
			t.Errorf("two at once: %+v", s)
		}
		w.claim(server(nil)) // all are excluded: the trial
		n.Fail("reset")
		if s := w.status("a"); s.Failures != 2 || w.exclusionOf("a") != 2*time.Second {
			t.Errorf("the trial's: %+v", s)
		}
	})
}

func TestClaim_SessionsThatFailTogetherAreOneFailure(t *testing.T) {
	bubble(t, "a:m", nil, func(t *testing.T, w *world) {
		var claims []*fleet.Claim
		for range 5 {
			claims = append(claims, w.claim(server(nil)))
		}
		for _, c := range claims {
			c.Fail("reset")
			c.Release()
			pass(400 * time.Millisecond)
		}
		if s := w.status("a"); s.Failures != 1 {
			t.Errorf("%+v", s)
		}
		trial := w.claim(server(nil))
		trial.Fail("reset")
		trial.Fail("reset")
		if s := w.status("a"); s.Failures != 2 {
			t.Errorf("after the trial: %+v", s)
		}
	})
}

func TestNode_OneTrialAfterExclusion(t *testing.T) {
	type ending struct {
		name string
		end  func(*fleet.Claim)
		// next tells whether one more trial, or any number of sessions, or none may begin then.
		next, second bool
	}
	for _, tt := range []ending{
		{"runs", func(*fleet.Claim) {}, false, false},
		{"succeeds", func(c *fleet.Claim) { c.Succeed() }, true, true},
		{"ends without a verdict", func(c *fleet.Claim) { c.Release() }, true, false},
		{"fails", func(c *fleet.Claim) { c.Fail("502"); c.Release() }, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// b is busy for good: it is healthy, so that a isn't tried early.
			bubble(t, "a:m b:m", func(c *fleet.Config) { c.Servers[1].Contexts = 1 }, func(t *testing.T, w *world) {
				busy := w.claim(server(func(x *fleet.Want) { x.Avoid = []string{"a"} }))
				defer busy.Release()
				w.Node("a").Fail("502")
				if w.try(server(nil)) != nil {
					t.Fatal("tried before the exclusion was over")
				}
				pass(time.Second)
				trial := w.claim(server(nil))
				if w.try(server(nil)) != nil {
					t.Fatal("two trials at once")
				}
				tt.end(trial)
				if got := w.try(server(nil)) != nil; got != tt.next {
					t.Errorf("next: %v, want %v", got, tt.next)
				}
				if got := w.try(server(nil)) != nil; got != tt.second {
					t.Errorf("second: %v, want %v", got, tt.second)
				}
			})
		})
	}
}

// The end of an exclusion serves the queue to the moment, whatever probes do.
func TestFleet_EndOfExclusionServesTheQueue(t *testing.T) {
	bubble(t, "a:m b:m", func(c *fleet.Config) { c.Servers[1].Contexts = 1 }, func(t *testing.T, w *world) {
		w.claim(server(func(x *fleet.Want) { x.Avoid = []string{"a"} }))
		w.Node("a").Fail("502")
		ticket := w.enqueue(server(nil))
		defer ticket.Close()
		start := time.Now()
		c := <-ticket.C
		if waited := time.Since(start); waited != time.Second || c.Node.ID() != "a" {
			t.Errorf("%s after %v", c.Node.ID(), waited)
		}
		// A success makes room for all that wait.
		var waiting []*fleet.Ticket
		for range 3 {
			waiting = append(waiting, w.enqueue(server(nil)))
		}
		c.Succeed()
		for i, ticket := range waiting {
			if received(ticket) == nil {
				t.Errorf("%d waits on after the success", i)
			}
		}
	})
}

// When all have failed, policy alone makes no outage: the one whose exclusion ends first is tried at once.
func TestFleet_AllExcludedIsNoOutage(t *testing.T) {
	bubble(t, "a:m b:m", nil, func(t *testing.T, w *world) {
		a := w.claim(server(func(x *fleet.Want) { x.Avoid = []string{"b"} }))
		b := w.claim(server(func(x *fleet.Want) { x.Avoid = []string{"a"} }))
		a.Fail("502")
		pass(100 * time.Millisecond)
		waiting := w.enqueue(server(func(x *fleet.Want) { x.Avoid = []string{"nobody"} }))
		defer waiting.Close()
		if c := received(waiting); c == nil || c.Node.ID() != "b" {
			t.Fatalf("claim %v while b is healthy", c)
		}
		b.Fail("502")
		first, second := w.claim(server(nil)), w.claim(server(nil))
		if first.Node.ID() != "a" || second.Node.ID() != "b" {
			t.Errorf("tried %s, then %s", first.Node.ID(), second.Node.ID())
		}
		if c := w.try(server(nil)); c == nil {
			t.Error("a third session waits for the end of a trial, with no healthy node to wait for")
		} else {
			c.Release()
		}
		second.Succeed()
		if c := w.claim(server(nil)); c.Node.ID() != "b" {
			t.Errorf("after b's success: %s", c.Node.ID())
		}
	})
}

// A ticket that waits for the last healthy node's context needn't wait when that node is excluded too.
func TestFleet_LastFailureServesTheQueue(t *testing.T) {
	bubble(t, "a:m b:m", func(c *fleet.Config) { c.Servers[1].Contexts = 1 }, func(t *testing.T, w *world) {
		busy := w.claim(server(func(x *fleet.Want) { x.Avoid = []string{"a"} }))
		w.Node("a").Fail("502")
		ticket := w.enqueue(server(nil))
		defer ticket.Close()
		if pass(0); received(ticket) != nil {
			t.Fatal("a was tried although b is healthy")
		}
		busy.Fail("502")
		if pass(0); received(ticket) == nil {
			t.Error("nobody is tried")
		}
	})
}

// Agents are excluded alike; Suspect alone excludes nobody, and a takeover goes where the state is.
func TestAgent_Exclusion(t *testing.T) {
	bubble(t, "A:m B:m", nil, func(t *testing.T, w *world) {
		n := w.Node("A")
		n.Suspect(false, "refused")
		n.Suspect(true, "reset")
		if s := w.status("A"); s.Failures != 0 || s.ExcludedFor != 0 {
			t.Errorf("after Suspect: %+v", s)
		}
		pass(time.Second)
		n.Fail("engine error")
		for range 2 {
			if c := w.claim(fleet.Want{Model: "m"}); c.Node == n {
				t.Error("an excluded agent was chosen")
			}
		}
		c := w.Occupy(n)
		if c.Release(); w.status("A").Failures != 1 {
			t.Error("a takeover's end changed the exclusion")
		}
		if h := w.PickHolder(w.Node("B"), nil); h == nil || h.Node != n {
			t.Errorf("holder %v: exclusion is about new sessions", h)
		}
	})
}

// Each exclusion ends at its own time.
func TestFleet_ExclusionsEndOneByOne(t *testing.T) {
	bubble(t, "a:m b:m c:m", func(c *fleet.Config) { c.Servers[2].Contexts = 1 }, func(t *testing.T, w *world) {
		w.claim(server(func(x *fleet.Want) { x.Avoid = []string{"a", "b"} }))
		pass(300 * time.Millisecond) // so that no probe coincides with an end
		w.Node("a").Fail("502")
		pass(time.Second)
		w.Node("a").Fail("502") // for 2 s
		w.Node("b").Fail("502") // for 1 s
		start := time.Now()
		first, second := w.enqueue(server(nil)), w.enqueue(server(nil))
		defer first.Close()
		defer second.Close()
		if c := <-first.C; c.Node.ID() != "b" || time.Since(start) != time.Second {
			t.Errorf("first: %s after %v", c.Node.ID(), time.Since(start))
		}
		if c := <-second.C; c.Node.ID() != "a" || time.Since(start) != 2*time.Second {
			t.Errorf("second: %s after %v", c.Node.ID(), time.Since(start))
		}
	})
}

// A verdict ends a trial, even if its claim is still held; another session's end doesn't.
func TestNode_TrialEndsByItsVerdict(t *testing.T) {
	bubble(t, "a:m b:m", func(c *fleet.Config) { c.Servers[1].Contexts = 1 }, func(t *testing.T, w *world) {
		w.claim(server(func(x *fleet.Want) { x.Avoid = []string{"a"} })) // b is healthy and full
		old := w.claim(server(nil))
		old.Fail("502")
		pass(time.Second)
		trial := w.claim(server(nil))
		old.Release()
		if w.try(server(nil)) != nil {
			t.Error("a second trial when an older session ended")
		}
		trial.Fail("502")
		pass(2 * time.Second)
		if next := w.claim(server(nil)); next == trial {
			t.Error("the same claim again")
		}
		trial.Release()
		if w.try(server(nil)) != nil {
			t.Error("a second trial when the first one's claim was released")
		}
	})
}
