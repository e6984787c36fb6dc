// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/seguekv/segue/bench"
)

func TestBenchRouter_UsageErrors(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"seconds":  {[]string{"--seconds", "0.5"}, "--seconds must be 1 to 600, not 0.5"},
		"streams":  {[]string{"--streams", "0"}, "--streams"},
		"rounds":   {[]string{"--rounds", "-1"}, "--rounds"},
		"rate":     {[]string{"--rate", "-1"}, "--rate"},
		"kinds":    {[]string{"--kinds", "agent,vllm"}, `--kinds knows agent and openai, not "vllm"`},
		"no kinds": {[]string{"--kinds", ""}, "--kinds needs at least one"},
		"argument": {[]string{"now"}, "--help"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := run(append([]string{"bench", "router"}, c.args...), &out, &errs); code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			if !strings.Contains(errs.String(), c.want) || out.Len() > 0 {
				t.Errorf("stdout %q, stderr %q, want %q there", out.String(), errs.String(), c.want)
			}
		})
	}
}

func TestBenchRouter_HelpTellsWhatIsMeasured(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run([]string{"bench", "router", "--help"}, &out, &errs); code != exitOK {
		t.Fatalf("exit code %d, %q", code, errs.String())
	}
	for _, want := range []string{"added_latency_ms:", "deltas_per_cpu_s:", "allocs_per_delta:", "Examples:", "Exit codes:"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %s", want, out.String())
		}
	}
}

func TestProcess_BenchRouterMeasuresBothKinds(t *testing.T) {
	out := measure(t, "bench", "router", "--quick", "--json", "-")
	var r bench.RouterReport
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.More() {
		t.Fatalf("%v, more: %t\n%s", err, d.More(), out)
	}
	if r.Streams != 64 || r.Rounds != 2 || r.Seconds != 1 || r.Journal != "file" || r.Protection != "off" {
		t.Errorf("circumstances %+v", r)
	}
	for kind, cost := range map[string]*bench.RouterCost{bench.RouterAgent: r.Agent, bench.RouterOpenAI: r.OpenAI} {
		if cost == nil {
			t.Errorf("%s is missing in %s", kind, out)
			continue
		}
		l := cost.Latency
		// Each way takes time; which of them takes less in a short run on a busy machine isn't certain.
		if l.Samples != 50 || l.Direct.P50 <= 0 || l.Router.P50 <= 0 || l.Direct.P99 < l.Direct.P50 || l.Router.P99 < l.Router.P50 {
			t.Errorf("%s: latency %+v", kind, l)
		}
		if diff := cost.AddedLatencyMS.P50 - (l.Router.P50 - l.Direct.P50); diff < -0.001 || diff > 0.001 {
			t.Errorf("%s: added %+v of %+v", kind, cost.AddedLatencyMS, l)
		}
		if cost.DeltasPerCPUSecond <= 0 || cost.Load.Deltas < 64 || cost.Load.CPUS <= 0 || cost.Load.Seconds < 1 {
			t.Errorf("%s: %+v", kind, cost)
		}
		if cost.AllocsPerDelta != nil && *cost.AllocsPerDelta <= 0 {
			t.Errorf("%s: %v allocations per delta", kind, *cost.AllocsPerDelta)
		}
	}
	var fields map[string]map[string]json.RawMessage
	_ = json.Unmarshal([]byte(out), &fields) // the numbers beside the objects are no maps
	for _, kind := range []string{bench.RouterAgent, bench.RouterOpenAI} {
		for _, name := range []string{"added_latency_ms", "deltas_per_cpu_s", "allocs_per_delta"} {
			if fields[kind][name] == nil {
				t.Errorf("%s has no %s in %s", kind, name, out)
			}
		}
	}
}

func TestProcess_BenchRouterEndsItsRouterWhenInterrupted(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a router; runs without -short")
	}
	c := command("bench", "router", "--seconds", "300", "--rounds", "1", "--json", "-")
	errs, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	addr := ""
	for lines := bufio.NewScanner(errs); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if _, rest, ok := strings.Cut(lines.Text(), "router listens on "); ok && addr == "" {
			addr, _, _ = strings.Cut(rest, ",")
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Errorf("the router doesn't listen on %q: %v", addr, err)
			} else {
				conn.Close()
			}
			_ = c.Process.Signal(syscall.SIGINT) // the first time asks, the second time ends at once
		}
	}
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != exitInterrupted || addr == "" {
		t.Fatalf("exit code %d\n%s", code, said.String())
	}
	if conn, err := net.Dial("tcp", addr); err == nil {
		conn.Close()
		t.Errorf("something still listens on %s", addr)
	}
}
