// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"encoding/json"
	"testing"

	"github.com/seguekv/segue/bench"
)

// routerCost runs the router bench before one kind of upstream, with as little as possible beside what flags ask for.
func routerCost(t *testing.T, kind string, flags ...string) *bench.RouterCost {
	t.Helper()
	args := append([]string{"bench", "router", "--kinds", kind, "--seconds", "1", "--rounds", "1", "--streams", "64", "--json", "-"}, flags...)
	out := measure(t, args...)
	var r bench.RouterReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cost := r.OpenAI
	if kind == bench.RouterAgent {
		cost = r.Agent
	}
	if cost == nil {
		t.Fatalf("no figures of %s: %s", kind, out)
	}
	return cost
}

// Streams that are nearly idle cost a router memory when they begin and no more while they last, and give back what they
// began.
func TestProcess_ManyIdleStreamsTakeFlatMemory(t *testing.T) {
	const open, grows, perStream, spare = 200, 10.0, 6, 8
	for _, kind := range []string{bench.RouterAgent, bench.RouterOpenAI} {
		t.Run(kind, func(t *testing.T) {
			s := routerCost(t, kind, "--idle-streams", "200", "--idle-for", "8s", "--slow-clients", "0").Streams
			if s == nil {
				t.Fatal("nothing was measured")
			}
			// Every stream was open: each has goroutines, and a delta per second.
			if s.Open != open || s.Goroutines < s.GoroutinesBefore+2*open || s.Deltas < 4*open || s.Seconds < 8 {
				t.Fatalf("%d streams weren't open: %+v", open, s)
			}
			if s.GrowthPercent > grows {
				t.Errorf("memory grew by %.1f %% in %.0f s, from %.1f to %.1f MiB", s.GrowthPercent, s.Seconds, s.RSSStartMiB, s.RSSEndMiB)
			}
			if s.HeapGoalEndMiB > s.HeapGoalStartMiB*(1+2*grows/100) {
				t.Errorf("the heap in use grew in %.0f s: garbage is collected at %.1f and then at %.1f MiB", s.Seconds, s.HeapGoalStartMiB, s.HeapGoalEndMiB)
			}
			if s.Goroutines > s.GoroutinesBefore+perStream*open || s.GoroutinesAfter > s.GoroutinesBefore+spare {
				t.Errorf("%d goroutines before, %d with %d streams, %d after", s.GoroutinesBefore, s.Goroutines, open, s.GoroutinesAfter)
			}
			if s.CPUPerS <= 0 || s.CPUPerS > 1 {
				t.Errorf("%d deltas a second cost %.3f CPU-seconds a second", open, s.CPUPerS)
			}
		})
	}
}

// Clients that read nothing cost a router a bounded amount of memory each, however fast the upstream is, and are cut after
// client_stall.
func TestProcess_ClientsThatReadNothingAreCut(t *testing.T) {
	const clients, mostMiB = 200, 150
	for _, kind := range []string{bench.RouterAgent, bench.RouterOpenAI} {
		t.Run(kind, func(t *testing.T) {
			s := routerCost(t, kind, "--idle-streams", "0", "--slow-clients", "200").Slow
			if s == nil {
				t.Fatal("nothing was measured")
			}
			// The upstream had more to say than connections hold.
			if s.Clients != clients || s.EmittedMiB < 2*mostMiB || s.Seconds < s.StallS-0.5 {
				t.Fatalf("the clients weren't slow: %+v", s)
			}
			if s.Cut != clients {
				t.Errorf("%d of %d clients were cut after client_stall", s.Cut, clients)
			}
			if grown := s.RSSPeakMiB - s.RSSBeforeMiB; grown > mostMiB {
				t.Errorf("%d clients cost %.1f MiB, at most %d are theirs", clients, grown, mostMiB)
			}
			if s.GoroutinesAfter > s.GoroutinesBefore+8 {
				t.Errorf("%d goroutines before, %d after", s.GoroutinesBefore, s.GoroutinesAfter)
			}
		})
	}
}
