// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/seguekv/segue/bench"
)

// faultLines are the complete lines of a campaign's log.
func faultLines(t *testing.T, path string) []bench.FaultRecord {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []bench.FaultRecord
	for line := range bytes.Lines(data) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			continue
		}
		var r bench.FaultRecord
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		out = append(out, r)
	}
	return out
}

func TestProcess_BenchFaultsGoesOnAfterAnInterrupt(t *testing.T) {
	if testing.Short() {
		t.Skip("starts clusters; runs without -short")
	}
	path := filepath.Join(t.TempDir(), "faults.jsonl")
	args := quick("bench", "faults", "--kills", "12", "--kills-per-prompt", "6", "--seed", "4", "--log", path, "--json", "-")

	first := command(args...)
	errs, err := first.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for lines := bufio.NewScanner(errs); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "#") && strings.Contains(lines.Text(), "identical") {
			_ = first.Process.Signal(syscall.SIGINT) // the first time asks, the second time ends at once
			break
		}
	}
	for lines := bufio.NewScanner(errs); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
	}
	_ = first.Wait()
	if code := first.ProcessState.ExitCode(); code != exitInterrupted || !strings.Contains(said.String(), "the same command goes on from "+path) {
		t.Fatalf("exit code %d\n%s", code, said.String())
	}
	before := faultLines(t, path)
	if len(before) == 0 || len(before) >= 12 {
		t.Fatalf("%d kills before the interrupt: it proves nothing\n%s", len(before), said.String())
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"run":11,"pro`); err != nil {
		t.Fatal(err)
	}
	f.Close()

	out := measure(t, args...)
	var r bench.FaultReport
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.More() {
		t.Fatalf("%v, more: %t\n%s", err, d.More(), out)
	}
	after := faultLines(t, path)
	if len(after) != 12 || r.Kills != 12 || r.Here.Kills != 12-len(before) {
		t.Fatalf("%d lines, %d kills, %d of them new", len(after), r.Kills, r.Here.Kills)
	}
	for i := range before {
		if before[i].Session != after[i].Session {
			t.Errorf("line %d changed", i+1)
		}
	}
	var runs []int
	for _, k := range after {
		runs = append(runs, k.Run)
	}
	slices.Sort(runs)
	if !slices.Equal(runs, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}) {
		t.Errorf("kills %v", runs)
	}
	if r.Wrong != 0 || r.Errors != 0 || r.Continued != r.Identical || r.Continued < 11 || r.PauseMS.P50 <= 0 || len(r.ByTarget) != 3 {
		t.Errorf("got %+v", r)
	}
	if r.OutputTokens.Min < 64 || r.WrongRateUpper95 <= 0.2 || r.WrongRateUpper95 >= 0.23 {
		t.Errorf("got %+v", r)
	}
	second := 0
	for _, k := range after {
		if k.Second != nil {
			second++
		}
	}
	if second != 1 {
		t.Errorf("%d kills of a standby, want that of kill 8", second)
	}

	again := measure(t, args...)
	var same bench.FaultReport
	if err := json.Unmarshal([]byte(again), &same); err != nil || same.Kills != 12 || same.Here.Kills != 0 {
		t.Errorf("a finished campaign gives %v, %+v", err, same)
	}
}
