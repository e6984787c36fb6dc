// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/bench"
	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

func faults() bench.FaultsConfig {
	return bench.FaultsConfig{
		Kills: 12, KillsPerPrompt: 5, Clusters: 1, Protection: client.ProtectionSync, Seed: 7, Engine: "sim",
		Logf: func(string, ...any) {},
	}
}

// killOf is a line about a run that went on.
func killOf(run int) bench.FaultRecord {
	p := faults().Params()
	p.Model = "m"
	pause := float64(10 * run)
	return bench.FaultRecord{
		Run: run, Prompt: (run-1)/5 + 1, FaultParams: p, Kind: "emoji", PromptTokens: 100 * run, OutputTokens: 90 + run,
		Sampling: "greedy", Target: cluster.TargetNode, Node: "a", KillIndex: 20 + run, D: 21, C: 22,
		Outcome: client.Identical, Continued: true, Session: "s", PauseMS: &pause, GapMS: &pause, DetectMS: &pause,
	}
}

// openLog opens a log with the parameters of faults, or fails the test.
func openLog(t *testing.T, path string) *bench.FaultLog {
	t.Helper()
	l, err := bench.OpenFaultLog(path, faults().Params())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// written is the path of a log with the given runs.
func written(t *testing.T, runs ...int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log.jsonl")
	l := openLog(t, path)
	for _, run := range runs {
		if err := l.Append(killOf(run)); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestFaultLog_GoesOnWhereItEnded(t *testing.T) {
	path := written(t, 1, 2, 6)
	l := openLog(t, path)
	if diff := cmp.Diff([]bench.FaultRecord{killOf(1), killOf(2), killOf(6)}, l.Records); diff != "" {
		t.Error(diff)
	}
	f := bench.NewFaults(faults(), l)
	if diff := cmp.Diff([][]int{{3, 4, 5}, {7, 8, 9, 10}, {11, 12}}, f.Queue()); diff != "" || f.Left() != 9 {
		t.Errorf("%d left\n%s", f.Left(), diff)
	}
	if err := l.Append(killOf(3)); err != nil {
		t.Fatal(err)
	}
	if again := openLog(t, path); len(again.Records) != 4 {
		t.Errorf("%d lines", len(again.Records))
	}
}

func TestFaultLog_EveryTornLineIsCutOff(t *testing.T) {
	whole, err := os.ReadFile(written(t, 1, 2))
	if err != nil {
		t.Fatal(err)
	}
	first := bytes.IndexByte(whole, '\n') + 1
	for size := range len(whole) {
		path := filepath.Join(t.TempDir(), "torn.jsonl")
		if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		l := openLog(t, path)
		complete := 0
		if size >= first {
			complete = 1
		}
		if len(l.Records) != complete || l.Torn != size-complete*first {
			t.Fatalf("%d of %d bytes: %d lines, %d bytes torn", size, len(whole), len(l.Records), l.Torn)
		}
		if err := l.Append(killOf(5)); err != nil {
			t.Fatal(err)
		}
		if again := openLog(t, path); len(again.Records) != complete+1 || again.Torn != 0 {
			t.Fatalf("%d bytes, then a line: %d lines, %d bytes torn", size, len(again.Records), again.Torn)
		}
	}
}

func TestFaultLog_RefusesAnotherCampaign(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*bench.FaultParams)
		want   string
	}{
		"seed":       {func(p *bench.FaultParams) { p.Seed = 8 }, "--seed is 7 there and 8 here"},
		"prompts":    {func(p *bench.FaultParams) { p.KillsPerPrompt = 6 }, "--kills-per-prompt is 5 there and 6 here"},
		"protection": {func(p *bench.FaultParams) { p.Protection = "async" }, "--protection is sync there"},
		"engine":     {func(p *bench.FaultParams) { p.Engine = "llamacpp" }, "--engine is sim there"},
		"format":     {func(p *bench.FaultParams) { p.Format = 99 }, "format is 1 there and 99 here"},
		"model":      {func(p *bench.FaultParams) { p.Model = "other" }, "model is m there and other here"},
	} {
		t.Run(name, func(t *testing.T) {
			path := written(t, 1)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			p := faults().Params()
			c.change(&p)
			if _, err := bench.OpenFaultLog(path, p); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the log was changed: %v", err)
			}
		})
	}
}

func TestFaultLog_RefusesWhatIsNoLog(t *testing.T) {
	line, err := os.ReadFile(written(t, 3))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"text":       "hello\n",
		"empty line": string(line) + "\n",
		"twice":      string(line) + string(line),
		"number":     strings.Replace(string(line), `"run":3`, `"run":0`, 1),
	} {
		path := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := bench.OpenFaultLog(path, faults().Params()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestFaultLog_WithoutAPathKeepsNothing(t *testing.T) {
	l := openLog(t, "")
	if err := l.Append(killOf(1)); err != nil || len(l.Records) != 1 {
		t.Errorf("%v, %d records", err, len(l.Records))
	}
}

func TestFaults_AHigherNumberAddsToAFinishedCampaign(t *testing.T) {
	cfg := faults()
	cfg.Kills = 5
	l := openLog(t, written(t, 1, 2, 3, 4, 5))
	if f := bench.NewFaults(cfg, l); f.Left() != 0 || len(f.Queue()) != 0 {
		t.Errorf("%d left, %v", f.Left(), f.Queue())
	}
	cfg.Kills = 7
	if diff := cmp.Diff([][]int{{6, 7}}, bench.NewFaults(cfg, l).Queue()); diff != "" {
		t.Error(diff)
	}
}

func TestFaultsConfig_ValidateReportsAllProblems(t *testing.T) {
	if err := faults().Validate(); err != nil {
		t.Error(err)
	}
	err := bench.FaultsConfig{Budget: -1}.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"--kills ", "--kills-per-prompt", "--clusters", "--protection", "--budget"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %s", err, want)
		}
	}
}
