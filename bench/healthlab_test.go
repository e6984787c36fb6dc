// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seguekv/segue/bench"
	"github.com/seguekv/segue/health/lab"
	"github.com/seguekv/segue/health/scrape"
)

func TestHealthScripts_AreTheWorkThatIsAskedFor(t *testing.T) {
	for _, hours := range []float64{0.05, 1, 10, 30} {
		var work time.Duration
		kinds := make(map[scrape.Kind]int)
		states := make(map[lab.State]int)
		queued, hangs := 0, 0
		for _, s := range bench.HealthScripts(7, hours) {
			work += s.Work
			kinds[s.Kind]++
			for i, p := range s.Phases {
				states[p.State]++
				if p.State == lab.Decode && p.Streams == lab.DefaultPlaces && p.Queue > 0 {
					queued++
				}
				if p.Sick() {
					hangs++
				}
				if p.Sick() != (i == len(s.Phases)-1) {
					t.Errorf("phase %d of %d is %s", i, len(s.Phases), p.State)
				}
				if p.State == lab.PrefillWhole && (!s.Whole || !s.Insider && p.For >= 30*time.Second || p.For >= 10*time.Minute) {
					t.Errorf("a prompt in one step of %v: whole %t, insider %t", p.For, s.Whole, s.Insider)
				}
			}
			if s.Work > time.Hour || s.Busy > s.Work || hours >= 1 && s.Busy < s.Work/2 {
				t.Errorf("%v of work, %v busy", s.Work, s.Busy)
			}
		}
		if off := work.Hours() - hours; off < -0.001 || off > 0.001 {
			t.Errorf("%v hours of work instead of %v", work.Hours(), hours)
		}
		if len(kinds) != 3 || kinds[scrape.VLLM] != kinds[scrape.SGLang] || kinds[scrape.VLLM] != kinds[scrape.LlamaCPP] {
			t.Errorf("kinds %v", kinds)
		}
		if queued < hangs || hangs < 12 || hours >= 1 && (states[lab.Idle] == 0 || states[lab.PrefillChunked] == 0 || states[lab.PrefillWhole] == 0) {
			t.Errorf("%v hours: %v, %d of them with a queue, %d hangs", hours, states, queued, hangs)
		}
	}
}

func TestSimulateHealth_NoFalseAlarmNoProbeAndEveryHangIsFound(t *testing.T) {
	r, err := bench.SimulateHealth(t.Context(), healthConfig())
	if err != nil {
		t.Fatal(err)
	}
	if r.FalseAlarms != 0 || r.ProbesWhileBusy != 0 || r.HangsPlayed != 12 || r.HangsFound != 12 {
		t.Errorf("%+v", r)
	}
	// A read takes place about every 250 ms of the hours and of the hangs.
	if r.Hours != 0.6 || r.Busy < 0.5 || r.Busy > 1 || float64(r.Reads) < r.Hours*3600 {
		t.Errorf("%v hours, busy %v, %d reads", r.Hours, r.Busy, r.Reads)
	}
	for kind, d := range r.HangVerdictS {
		if d.Faults != 4 || d.Missed != 0 || d.P50 <= 0 || d.P99 < d.P50 {
			t.Errorf("%s: %+v", kind, d)
		}
	}
	if len(r.HangVerdictS) != 3 {
		t.Errorf("hangs of %v", r.HangVerdictS)
	}
}

// A detector that allows next to no silence calls busy engines sick on that work: the count of false alarms can fail.
func TestSimulateHealth_ADetectorWithATinyFloorGivesFalseAlarms(t *testing.T) {
	cfg := healthConfig()
	cfg.Detector.Interval, cfg.Detector.Floor, cfg.Detector.Cold = 50*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
	cfg.Detector.Ceiling, cfg.Detector.Factor = 100*time.Millisecond, 1
	cfg.Detector.BlindFloor, cfg.Detector.BlindPrefill = 50*time.Millisecond, 50*time.Millisecond
	cfg.Hours = 0.2
	r, err := bench.SimulateHealth(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.FalseAlarms == 0 || r.Failure() == nil {
		t.Errorf("%d false alarms", r.FalseAlarms)
	}
}

// One that never says anything finds no hang: the count of hangs can fail.
func TestSimulateHealth_ADetectorWithoutALimitFindsNoHang(t *testing.T) {
	cfg := healthConfig()
	const never = 24 * time.Hour
	cfg.Detector.Floor, cfg.Detector.Ceiling, cfg.Detector.BlindFloor, cfg.Detector.BlindPrefill = never, never, never, never
	cfg.Hours = 0.05
	r, err := bench.SimulateHealth(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.FalseAlarms != 0 || r.HangsPlayed != 12 || r.HangsFound != 0 || r.Failure() == nil {
		t.Errorf("%+v", r)
	}
}

// An engine that shows nothing of its work is probed while it is busy with that of others: the count of such probes can fail.
func TestSimulateHealth_ProbesThatMeetWorkAreCounted(t *testing.T) {
	cfg := healthConfig()
	cfg.Detector.IdleLimit = time.Second
	cfg.Hours = 0.2
	r, err := bench.SimulateHealthWithoutMetrics(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.ProbesWhileBusy == 0 || r.ProbesWhileBusy > r.Probes || r.Failure() == nil {
		t.Errorf("%d of %d probes met work", r.ProbesWhileBusy, r.Probes)
	}
}

func TestNaiveHealth_TakesAFullQueueForAHang(t *testing.T) {
	n, err := bench.NaiveHealth(1, 10)
	if err != nil {
		t.Fatal(err)
	}
	if n.FalseAlarms < 5 || n.ProbesWhileBusy < n.Probes/2 || n.Unanswered < 5*n.FalseAlarms || n.Probes < 100 {
		t.Errorf("%+v", n)
	}
}

func TestSimulateHealth_DependsOnTheSeedAlone(t *testing.T) {
	cfg := healthConfig()
	cfg.Hours = 0.1
	run := func(seed uint64) int {
		cfg.Seed = seed
		r, err := bench.SimulateHealth(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return r.Reads
	}
	if a, b, c := run(3), run(3), run(4); a != b || a == c {
		t.Errorf("%d reads, then %d; with another seed %d", a, b, c)
	}
}

func TestSimulateHealth_EndsWithItsContext(t *testing.T) {
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := bench.SimulateHealth(ctx, healthConfig()); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
}
