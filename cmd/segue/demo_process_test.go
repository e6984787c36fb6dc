// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/seguekv/segue/bench"
)

// quick is a small, fast pseudo-model for the measuring commands.
func quick(args ...string) []string {
	return append(args, "--engine", "sim", "--step", "5ms", "--prefill-token", "100us", "--kv-bytes-per-token", "4096")
}

// measure runs a measuring command and returns its stdout; the test fails if the command does.
func measure(t *testing.T, args ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a cluster; runs without -short")
	}
	c := command(args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out.String(), errs.String())
	}
	t.Logf("%s", errs.String())
	return out.String()
}

func TestProcess_DemoPasses(t *testing.T) {
	out := measure(t, quick("demo")...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "DEMO PASS identical=true killed=node pause_ms=") || !strings.Contains(last, " tokens=") {
		t.Errorf("last line %q", last)
	}
	for _, want := range []string{"node a ready", "node b ready", "router ready", "uninterrupted run", "⟦", "--keep"} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
}

func TestProcess_DemoCampaignReportsOneObject(t *testing.T) {
	out := measure(t, quick("demo", "--json", "-", "--prompts", "4", "--kills-per-prompt", "1", "--kill", "engine", "--seed", "3")...)
	var r bench.Report
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.More() {
		t.Fatalf("%v, more: %t\n%s", err, d.More(), out)
	}
	if r.Runs != 4 || r.Identical != 4 || r.Continued != 4 || r.Takeover.PrefillTokens != 0 || r.Takeover.ReplayedDecodeSteps != 0 {
		t.Errorf("got %+v", r)
	}
	if r.Takeover.RestoredKVBytesMin <= 0 || r.PauseMS.P99 <= 0 || r.OutputTokens.Min < 64 || r.PromptTokens.Max < 1000 {
		t.Errorf("got %+v", r)
	}
}

func TestProcess_BenchOverheadReportsEveryMode(t *testing.T) {
	out := measure(t, quick("bench", "overhead", "--rounds", "2", "--contexts", "20,40", "--tokens", "12", "--json", "-")...)
	var r bench.OverheadReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Rounds != 2 || !slices.Equal(slices.Sorted(maps.Keys(r.Contexts)), []string{"20", "40"}) {
		t.Fatalf("got %+v", r)
	}
	for length, o := range r.Contexts {
		if o.TokensPerS["off"] <= 0 || o.TokensPerS["async"] <= 0 || o.TokensPerS["sync"] <= 0 || len(o.Overhead) != 2 {
			t.Errorf("context %s: %+v", length, o)
		}
	}
}

func TestProcess_DemoEndsOnInterrupt(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster; runs without -short")
	}
	c := command(quick("demo")...)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "router ready") {
	}
	if err := c.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "DEMO") {
			t.Errorf("an interrupted demo says %q", lines.Text())
		}
	}
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != exitInterrupted {
		t.Errorf("exit code %d, want %d", code, exitInterrupted)
	}
}
