// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package watch_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/health"
)

// The engine's step loop freezes while its HTTP side answers: hung within three seconds, without a probe.
func TestCase_E1_FrozenEngineIsHungInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{inFlight: 1, moves: true}
		w, stop := watched(t, e)
		pass(10 * time.Second)
		verdict(t, w, health.Busy)
		e.set(func() { e.moves = false })
		pass(3 * time.Second)
		verdict(t, w, health.Hung)
		if e.look().probes != 0 {
			t.Fatalf("%d probes", e.look().probes)
		}
		stop()
	})
}

// What is read passes through the queue that is stuck: hung after some reads, each of which ends in time.
func TestCase_E4_ReadsNeverAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{inFlight: 1, moves: true}
		w, stop := watched(t, e)
		pass(10 * time.Second)
		e.set(func() { e.blocks = true })
		reads, h := e.look().reads, health.Defaults()
		pass(h.Floor + 2*h.Interval + h.ReadTimeout)
		verdict(t, w, health.Hung)
		if n := e.look().reads - reads; n < 2 {
			t.Fatalf("hung after %d reads", n)
		}
		stop()
	})
}

// Asleep for an hour: not one request.
func TestCase_E8_NoProbeWhileAsleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{sleeping: true}
		w, stop := watched(t, e)
		pass(time.Hour)
		verdict(t, w, health.Sleeping)
		if e.look().probes != 0 || e.look().reads < 14_000 {
			t.Fatalf("%d probes, %d reads", e.look().probes, e.look().reads)
		}
		stop()
	})
}

// The loop ends, and nobody says so: what it found last is known to be stale.
func TestCase_E12_EndedLoopIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{inFlight: 1, moves: true}
		w, stop := watched(t, e)
		if !w.Stale() {
			t.Fatal("fresh before the first read")
		}
		for range 100 {
			pass(time.Second)
			if w.Stale() {
				t.Fatal("stale while it runs")
			}
		}
		// Slow reads don't make it stale.
		e.set(func() { e.blocks = true })
		for range 100 {
			pass(300 * time.Millisecond)
			if w.Stale() {
				t.Fatal("stale while reads time out")
			}
		}
		stop()
		pass(4 * time.Second)
		if !w.Stale() {
			t.Fatalf("the last word, %v, is %v old and not stale", w.Latest().Verdict, time.Since(w.Latest().At))
		}
	})
}
