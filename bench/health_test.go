// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/bench"
	"github.com/seguekv/segue/health"
)

func healthConfig() bench.HealthConfig {
	return bench.HealthConfig{
		Rounds: 3, Hours: 0.6, Warm: 5 * time.Second, Step: 25 * time.Millisecond, Seed: 1,
		Detector: health.Defaults(), Logf: func(string, ...any) {},
	}
}

// healthy is a report that nothing is wrong with.
func healthy() *bench.HealthReport {
	d := bench.Delays([]float64{100, 200, 110}, 3)
	return &bench.HealthReport{
		VerdictMS: bench.HealthVerdicts{ProcessDeath: d, ConnectionCut: d, ConnectionSilent: d, HangDecode: d, HangPrefill: d},
		Hours:     10, Reads: 1000, HangsPlayed: 12, HangsFound: 12,
	}
}

func TestHealthConfig_Validate(t *testing.T) {
	if err := healthConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	bad := bench.HealthConfig{Warm: time.Hour, Step: 0, Rounds: 0, Hours: 0}
	err := bad.Validate()
	for _, want := range []string{"--rounds must be 1 to 1000, not 0", "--hours must be 0.01 to 1000, not 0", "--warm-up must be 1s to 2m", "--step must be 1ms to 1s", "health: interval"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

// A request outlives the warm-up, whatever the step: what isn't at work any more can't be made to hang.
func TestHealthConfig_EngineHoldsItsRequests(t *testing.T) {
	for _, step := range []time.Duration{10 * time.Millisecond, 50 * time.Millisecond} {
		for _, warm := range []time.Duration{time.Second, time.Minute} {
			cfg := healthConfig()
			cfg.Step, cfg.Warm = step, warm
			e := cfg.Engine()
			if err := e.Validate(); err != nil {
				t.Fatal(err)
			}
			if decode := time.Duration(e.ContextLength) * step; decode < warm+20*time.Second {
				t.Errorf("step %v, warm-up %v: a context of %d lasts %v", step, warm, e.ContextLength, decode)
			}
			if prefill := time.Duration(e.ContextLength) * e.PrefillToken; prefill < warm+5*time.Second {
				t.Errorf("step %v, warm-up %v: a prompt of %d takes %v", step, warm, e.ContextLength, prefill)
			}
		}
	}
}

func TestHealthReport_Failure(t *testing.T) {
	if err := healthy().Failure(); err != nil {
		t.Errorf("nothing is wrong, and yet: %v", err)
	}
	slow := healthy()
	slow.VerdictMS.HangDecode = bench.Delays([]float64{9000}, 1)
	if err := slow.Failure(); err != nil {
		t.Errorf("slow verdicts are no failure: %v", err)
	}
	for want, change := range map[string]func(*bench.HealthReport){
		"2 false alarms in 10 simulated hours":  func(r *bench.HealthReport) { r.FalseAlarms = 2 },
		"1 probes met a busy engine":            func(r *bench.HealthReport) { r.ProbesWhileBusy = 1 },
		"only 11 of 12 simulated hangs":         func(r *bench.HealthReport) { r.HangsFound = 11 },
		"nothing was simulated":                 func(r *bench.HealthReport) { r.HangsPlayed, r.HangsFound = 0, 0 },
		"hang_prefill: 1 of 3 faults":           func(r *bench.HealthReport) { r.VerdictMS.HangPrefill = bench.Delays([]float64{1, 2}, 3) },
		"process_death: 2 of 2 faults":          func(r *bench.HealthReport) { r.VerdictMS.ProcessDeath = bench.Delays(nil, 2) },
		"connection_silent: there was no fault": func(r *bench.HealthReport) { r.VerdictMS.ConnectionSilent = bench.HealthDelays{} },
	} {
		r := healthy()
		change(r)
		if err := r.Failure(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

func TestHealthReport_Targets(t *testing.T) {
	lines, met := healthy().Targets()
	if !met || len(lines) != 4 || strings.Contains(strings.Join(lines, "\n"), "MISSED") {
		t.Errorf("met %t: %q", met, lines)
	}
	for name, change := range map[string]func(*bench.HealthVerdicts){
		"process_death":  func(v *bench.HealthVerdicts) { v.ProcessDeath = bench.Delays([]float64{10, 301}, 2) },
		"connection_cut": func(v *bench.HealthVerdicts) { v.ConnectionCut = bench.Delays([]float64{10}, 2) },
		"hang_decode":    func(v *bench.HealthVerdicts) { v.HangDecode = bench.Delays([]float64{3001}, 1) },
		"hang_prefill":   func(v *bench.HealthVerdicts) { v.HangPrefill = bench.HealthDelays{} },
	} {
		r := healthy()
		change(&r.VerdictMS)
		lines, met := r.Targets()
		missed := 0
		for _, line := range lines {
			if strings.HasSuffix(line, "MISSED") {
				missed++
				if !strings.HasPrefix(line, name) {
					t.Errorf("%s: %q", name, line)
				}
			}
		}
		if met || missed != 1 {
			t.Errorf("%s: met %t, %q", name, met, lines)
		}
	}
}

func TestHealthDelays_LeaveOutWhatWasMissed(t *testing.T) {
	got := bench.Delays([]float64{2, 1, 30.06}, 5)
	if want := (bench.HealthDelays{P50: 2, P99: 30.1, Faults: 5, Missed: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestHealthReport_JSONHasThePublicNames(t *testing.T) {
	data, err := json.Marshal(healthy())
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	for path, names := range map[string][]string{
		"verdict_ms": {"process_death", "connection_cut", "hang_decode", "hang_prefill"},
		"naive":      {"false_alarms", "probes_while_busy"},
	} {
		var inner map[string]json.RawMessage
		if err := json.Unmarshal(fields[path], &inner); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, name := range names {
			if inner[name] == nil {
				t.Errorf("no %s.%s in %s", path, name, data)
			}
		}
	}
	for _, name := range []string{"false_alarms", "probes_while_busy", "hangs_played", "hangs_found"} {
		if fields[name] == nil {
			t.Errorf("no %s in %s", name, data)
		}
	}
}
