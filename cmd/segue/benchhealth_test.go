// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/seguekv/segue/bench"
)

func TestBenchHealth_UsageErrors(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"rounds":        {[]string{"--rounds", "0"}, "--rounds must be 1 to 1000, not 0"},
		"hours":         {[]string{"--hours", "0"}, "--hours must be 0.01 to 1000, not 0"},
		"hours, NaN":    {[]string{"--hours", "NaN"}, "--hours must be"},
		"warm-up":       {[]string{"--warm-up", "1h"}, "--warm-up must be 1s to 2m"},
		"step":          {[]string{"--step", "0s"}, "--step must be 1ms to 1s"},
		"ready-timeout": {[]string{"--ready-timeout", "0s"}, "--ready-timeout"},
		"argument":      {[]string{"now"}, "--help"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := run(append([]string{"bench", "health"}, c.args...), &out, &errs); code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			if !strings.Contains(errs.String(), c.want) || out.Len() > 0 {
				t.Errorf("stdout %q, stderr %q, want %q there", out.String(), errs.String(), c.want)
			}
		})
	}
}

func TestBenchHealth_HelpTellsWhatIsMeasured(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run([]string{"bench", "health", "--help"}, &out, &errs); code != exitOK {
		t.Fatalf("exit code %d, %q", code, errs.String())
	}
	for _, want := range []string{"false_alarms:", "probes_while_busy:", "naive:", "process_death", "connection_cut", "hang_decode", "hang_prefill", "Examples:", "Exit codes:"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %s", want, out.String())
		}
	}
}

// Every kind of fault gets its verdict, and nothing else does. How soon is for machines that do nothing else.
func TestProcess_BenchHealthFindsEveryFault(t *testing.T) {
	out := measure(t, "bench", "health", "--rounds", "1", "--hours", "0.05", "--json", "-")
	var r bench.HealthReport
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.More() {
		t.Fatalf("%v, more: %t\n%s", err, d.More(), out)
	}
	if r.FalseAlarms != 0 || r.ProbesWhileBusy != 0 || r.HangsPlayed != 12 || r.HangsFound != 12 || r.Hours != 0.05 || r.Reads < 1000 {
		t.Errorf("simulated: %+v", r)
	}
	v := r.VerdictMS
	for name, d := range map[string]bench.HealthDelays{
		"process_death": v.ProcessDeath, "connection_cut": v.ConnectionCut, "connection_silent": v.ConnectionSilent,
		"hang_decode": v.HangDecode, "hang_prefill": v.HangPrefill,
	} {
		if d.Faults != 1 || d.Missed != 0 || d.P50 <= 0 || d.P99 != d.P50 {
			t.Errorf("%s: %+v", name, d)
		}
	}
	// Silence takes the detector's floor to be told from a hang, less the heartbeat before it. A verdict that comes sooner wasn't
	// about the fault.
	for name, d := range map[string]bench.HealthDelays{"hang_decode": v.HangDecode, "hang_prefill": v.HangPrefill} {
		if d.P50 < 1500 {
			t.Errorf("%s: found after %v ms", name, d.P50)
		}
	}
	if r.Rounds != 1 || r.StepMS != 25 || r.WarmS != 5 || r.CPUs < 1 || r.Seconds <= 0 {
		t.Errorf("circumstances %+v", r)
	}
}
