// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/bench"
	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

func campaign() bench.CampaignConfig {
	return bench.CampaignConfig{
		Prompts: 2, KillsPerPrompt: 2, Streams: 1, Target: cluster.TargetNode,
		Sampling: bench.SamplingSeeded, Protection: client.ProtectionSync,
	}
}

func TestReport_JSON(t *testing.T) {
	reference := &client.Transcript{Usage: &client.Usage{PromptTokens: 40}}
	pause := func(ms int) *bench.Pause {
		d := time.Duration(ms) * time.Millisecond
		return &bench.Pause{Pause: d, Gap: d + time.Millisecond, Detect: time.Millisecond / 4}
	}
	r := bench.ReportOf(campaign(), reference, 33, 0, 0, 46080,
		bench.Outcome{Outcome: client.Identical, Continued: true, Pause: pause(100)},
		bench.Outcome{Outcome: client.Identical, Continued: true, Pause: pause(300)},
		bench.Outcome{Outcome: client.Identical, Retried: true},
		bench.Outcome{Outcome: client.Refused},
		bench.Outcome{Outcome: client.Errored},
		bench.Outcome{Outcome: client.Wrong},
	)
	got, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"runs":6,"continued":2,"identical":3,"retried":1,"refused":1,"errors":1,"wrong":1,"redrawn":0,` +
		`"takeover":{"prefill_tokens":0,"replayed_decode_steps":0,"restored_kv_bytes_min":46080},"published_after_fence":0,"late_runs_ended":0,` +
		`"prompt_tokens":{"min":40,"p50":40,"max":40},"output_tokens":{"min":0},"kill_index":{"min":33,"max":33},` +
		`"pause_ms":{"p50":200,"p99":300},"gap_ms":{"p50":201,"p99":301},"detect_ms":{"p50":0.3,"p99":0.3},` +
		`"protection":"sync","kill":"node","sampling":"seeded"}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

func TestOutcome_OnlyAnswersThatNothingHappenedToAreDrawnAgain(t *testing.T) {
	for _, c := range []struct {
		o    bench.Outcome
		want bool
	}{
		{bench.Outcome{Outcome: client.Identical}, false},
		{bench.Outcome{Outcome: client.Identical, Pause: &bench.Pause{}}, true},
		{bench.Outcome{Outcome: client.Identical, Retried: true}, true},
		{bench.Outcome{Outcome: client.Refused}, true},
		{bench.Outcome{Outcome: client.Errored}, true},
		{bench.Outcome{Outcome: client.Wrong}, true},
	} {
		if got := c.o.Counts(); got != c.want {
			t.Errorf("%+v: %t, want %t", c.o, got, c.want)
		}
	}
}

func TestReport_WithoutAnyRunIsAllZero(t *testing.T) {
	r := bench.ReportOf(campaign(), &client.Transcript{Usage: &client.Usage{PromptTokens: 40}}, 0, 0, 0, 0)
	if r.Runs != 0 || r.KillIndex != (bench.Range{}) || r.PauseMS != (bench.Times{}) {
		t.Errorf("got %+v", r)
	}
}

func TestReport_Failure(t *testing.T) {
	base := bench.Report{
		Runs: 10, Identical: 10, Continued: 10, Protection: client.ProtectionSync, Takeover: bench.TakeoverReport{RestoredKVBytesMin: 1},
	}
	for name, c := range map[string]struct {
		change func(*bench.Report)
		want   string // empty: acceptable
	}{
		"all identical":         {func(*bench.Report) {}, ""},
		"wrong":                 {func(r *bench.Report) { r.Wrong = 1 }, "1 runs were wrong"},
		"errors":                {func(r *bench.Report) { r.Errors = 2 }, "2 runs ended"},
		"sync, refused":         {func(r *bench.Report) { r.Identical, r.Refused = 9, 1 }, "9 of 10"},
		"async, refused":        {func(r *bench.Report) { r.Identical, r.Refused, r.Protection = 5, 5, client.ProtectionAsync }, ""},
		"async, mostly refused": {func(r *bench.Report) { r.Identical, r.Refused, r.Protection = 4, 6, client.ProtectionAsync }, "fewer than half"},
		"prefilled":             {func(r *bench.Report) { r.Takeover.PrefillTokens = 3 }, "recomputed 3 prompt tokens"},
		"nothing restored":      {func(r *bench.Report) { r.Takeover.RestoredKVBytesMin = 0 }, "no state"},
		"replayed":              {func(r *bench.Report) { r.Takeover.ReplayedDecodeSteps = 4 }, "4 decode steps"},
	} {
		t.Run(name, func(t *testing.T) {
			r := base
			c.change(&r)
			err := r.Failure()
			if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestCampaignConfig_ValidateNamesTheFlags(t *testing.T) {
	good := campaign()
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	bad := bench.CampaignConfig{Prompts: 0, KillsPerPrompt: -1, Streams: 3, Target: "router", Sampling: "beam", Protection: "off"}
	err := bad.Validate()
	if err == nil {
		t.Fatal("passed")
	}
	for _, flag := range []string{"--prompts", "--kills-per-prompt", "--streams", "--kill:", "--sampling", "--protection"} {
		if !strings.Contains(err.Error(), flag) {
			t.Errorf("%q lacks %s", err, flag)
		}
	}
	good.Streams = 4
	if err := good.Validate(); err == nil {
		t.Error("2 prompts for 4 streams passed")
	}
}

func TestOverhead_JSON(t *testing.T) {
	s := func(rates ...float64) []bench.Sample {
		var list []bench.Sample
		for _, r := range rates {
			list = append(list, bench.Sample{Rate: r, Tokens: 250, CPU: 100 * time.Millisecond})
		}
		return list
	}
	o := bench.Compare(map[string][]bench.Sample{"off": s(100, 90, 110), "async": s(99, 200, 1), "sync": s(98, 98, 98)})
	got, err := json.Marshal(bench.OverheadReport{Rounds: 3, Overhead: &o})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"rounds":3,"tokens_per_s":{"async":99,"off":100,"sync":98},"overhead":{"async":0.01,"sync":0.02},"cpu_s_per_1k_tokens":{"async":0.4,"off":0.4,"sync":0.4}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	got, err = json.Marshal(bench.OverheadReport{Rounds: 3, Contexts: map[string]bench.Overhead{"100": o}})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(got), `{"rounds":3,"contexts":{"100":{"tokens_per_s":{`) {
		t.Errorf("got %s", got)
	}
}

func TestOverheadConfig_ValidateNamesTheFlags(t *testing.T) {
	err := bench.OverheadConfig{Rounds: -1, Tokens: 1, Contexts: []int{0, 5, 5}}.Validate()
	if err == nil {
		t.Fatal("passed")
	}
	for _, want := range []string{"--rounds", "--tokens", "positive", "twice"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}

func TestDemoResult_String(t *testing.T) {
	r := bench.DemoResult{Identical: true, Killed: cluster.TargetNode, Tokens: 96, Pause: bench.Pause{
		Pause: 181400 * time.Microsecond, Gap: 190 * time.Millisecond, Detect: 3210 * time.Microsecond,
	}}
	if got, want := r.String(), "DEMO PASS identical=true killed=node pause_ms=181 gap_ms=190 detect_ms=3.2 tokens=96"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	r.Identical = false
	if got := r.String(); !strings.HasPrefix(got, "DEMO FAIL identical=false ") {
		t.Errorf("got %q", got)
	}
}

func TestSameCounters(t *testing.T) {
	a := map[string]cluster.Counters{"a": {cluster.MetricDecodeSteps: 1, "other": 5}}
	b := map[string]cluster.Counters{"a": {cluster.MetricDecodeSteps: 1, "other": 9}}
	if !bench.SameCounters(a, b) || bench.SameCounters(a, nil) {
		t.Error("counters that don't matter decide")
	}
	b["a"][cluster.MetricDecodeSteps] = 2
	if bench.SameCounters(a, b) {
		t.Error("a moved counter was missed")
	}
}

func TestKeepEvidence_OnlyOfUnacceptableRuns(t *testing.T) {
	dir := t.TempDir()
	got, ref := &client.Transcript{Status: 200, Finish: "stop"}, &client.Transcript{Status: 200, Finish: "length"}
	for protection, outcome := range map[string]client.Outcome{"sync": client.Identical, "async": client.Refused} {
		if paths, err := bench.KeepEvidence(dir, protection, got, ref, client.Verdict{Outcome: outcome}); err != nil || len(paths) > 0 {
			t.Errorf("%s with %s: %v, %v", outcome, protection, paths, err)
		}
	}
	if paths, err := bench.KeepEvidence(t.TempDir(), "sync", got, ref, client.Verdict{Outcome: client.Refused}); err != nil || len(paths) != 1 {
		t.Errorf("refused with sync: %v, %v", paths, err)
	}
	paths, err := bench.KeepEvidence(dir, "async", got, ref, client.Verdict{Outcome: client.Wrong, Reasons: []string{"why"}})
	if err != nil || len(paths) != 1 {
		t.Fatalf("%v, %v", paths, err)
	}
	data, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	var kept struct {
		Seed              uint64
		Outcome           string
		Kill              struct{ Node, Target string }
		Reference, Answer struct{ Finish string }
		Session           struct{ Session string }
	}
	if err := json.Unmarshal(data, &kept); err != nil {
		t.Fatal(err)
	}
	if kept.Seed != 7 || kept.Outcome != "wrong" || kept.Kill.Target != "agent" || kept.Answer.Finish != "stop" || kept.Reference.Finish != "length" || kept.Session.Session != "s" {
		t.Errorf("kept %+v", kept)
	}
}

// What a fenced attempt published is a failure, and so is a hung run that never ended.
func TestReport_LateRunsFail(t *testing.T) {
	session := func(second string, from int) *cluster.Session {
		return &cluster.Session{Attempts: []cluster.Attempt{
			{Node: "a", Kind: cluster.AttemptGenerate, Accepted: 12}, {Node: "b", Kind: second, FromIndex: from, Accepted: 20},
		}}
	}
	for name, tt := range map[string]struct {
		s    *cluster.Session
		want int
	}{
		"as many as were delivered": {session(cluster.AttemptTakeover, 12), 0},
		"two after the fence":       {session(cluster.AttemptTakeover, 10), 2},
		"started over":              {session(cluster.AttemptRetry, 0), 0},
		"never known":               {nil, 0},
	} {
		if got := bench.AfterFence(tt.s); got != tt.want {
			t.Errorf("%s: %d tokens after the fence, want %d", name, got, tt.want)
		}
	}
	ok := bench.Report{Runs: 1, Identical: 1, Protection: client.ProtectionSync, Kill: "hang"}
	if err := ok.Failure(); err != nil {
		t.Error(err)
	}
	ok.PublishedAfterFence = 1
	if ok.Failure() == nil {
		t.Error("a token of a fenced attempt is no failure")
	}
}
