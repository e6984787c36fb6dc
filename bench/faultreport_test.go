// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/bench"
	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

func TestSummarize_JSON(t *testing.T) {
	refused := killOf(3)
	refused.Outcome, refused.Continued, refused.NotContinued = client.Refused, false, "refused: reset"
	refused.Second = &bench.SecondRecord{Target: cluster.TargetNode, Node: "b", During: true}
	refused.Target, refused.Node, refused.PauseMS = cluster.TargetEngine, "b", nil
	data, err := json.Marshal(bench.Summarize([]bench.FaultRecord{killOf(1), killOf(2), refused}))
	if err != nil {
		t.Fatal(err)
	}
	counts := func(kills, good, refused int) string {
		b, err := json.Marshal(bench.FaultCounts{Kills: kills, Continued: good, Identical: good, Refused: refused})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	want := `{"kills":3,"continued":2,"identical":2,"retried":0,"refused":1,"errors":0,"wrong":0,` +
		`"not_continued":{"refused: reset":1},` +
		`"pause_ms":{"p50":15,"p99":20},"gap_ms":{"p50":15,"p99":20},"detect_ms":{"p50":15,"p99":20},` +
		`"wrong_rate_upper95":0.6316,"failed_rate_upper95":0.6316,"not_continued_rate_upper95":0.86465,` +
		`"single":` + counts(2, 2, 0) + `,"standby_killed":{"node during the takeover":` + counts(1, 0, 1) + `},` +
		`"by_target":{"engine":` + counts(1, 0, 1) + `,"node":` + counts(2, 2, 0) + `},` +
		`"by_sampling":{"greedy":` + counts(3, 2, 1) + `},"by_kind":{"emoji":` + counts(3, 2, 1) + `},"by_node":{"a":2,"b":1},` +
		`"redrawn":0,"disturbed":0,"prompts":1,"prompt_tokens":{"min":300,"p50":300,"max":300},"output_tokens":{"min":91},"kill_index":{"min":21,"max":23},` +
		`"seed":7,"protection":"sync","engine":"sim","model":"m","here":{"kills":0,"seconds":0,"seconds_per_kill":0,"clusters":0}}`
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Error(diff)
	}
}

func TestFaultReport_Failure(t *testing.T) {
	for _, c := range []struct {
		name, protection string
		counts           bench.FaultCounts
		want             string
	}{
		{"all continued", "sync", bench.FaultCounts{Kills: 100, Continued: 100, Identical: 100}, ""},
		{"some refused", "sync", bench.FaultCounts{Kills: 100, Continued: 95, Identical: 95, Refused: 5}, ""},
		{"too many refused", "sync", bench.FaultCounts{Kills: 100, Continued: 94, Identical: 94, Refused: 6}, "only 94 of 100"},
		{"retries are not continued", "sync", bench.FaultCounts{Kills: 100, Continued: 94, Identical: 100, Retried: 6}, "only 94 of 100"},
		{"async may refuse", "async", bench.FaultCounts{Kills: 100, Continued: 50, Identical: 50, Refused: 50}, ""},
		{"wrong", "async", bench.FaultCounts{Kills: 100, Continued: 99, Identical: 99, Wrong: 1}, "1 answers were wrong"},
		{"error", "sync", bench.FaultCounts{Kills: 100, Continued: 99, Identical: 99, Errors: 1}, "1 answers ended in an unexpected error"},
	} {
		r := bench.FaultReport{FaultCounts: c.counts, Protection: c.protection}
		if err := r.Failure(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestFaultRecord_SaysWhyAnAnswerWasNotContinued(t *testing.T) {
	ref := &client.Transcript{Status: 200, Usage: &client.Usage{PromptTokens: 50}}
	broken := &client.Transcript{Status: 200, Err: &client.APIError{Code: client.CodeInterrupted, Cause: "not_covered"}}
	seam := &cluster.Seam{Index: 9, Delivered: 8}
	pause := &bench.Pause{Pause: 100 * time.Millisecond, Gap: 110 * time.Millisecond, Detect: 3 * time.Millisecond}
	during := &bench.SecondDraw{Target: cluster.TargetNode, When: bench.SecondDuring}
	for _, c := range []struct {
		name      string
		got       *client.Transcript
		o         bench.Outcome
		second    *bench.SecondDraw
		after     time.Duration
		protected bool
		want      string
	}{
		{"continued", ref, bench.Outcome{Outcome: client.Identical, Continued: true, Pause: pause}, nil, 0, false, ""},
		{"retried", ref, bench.Outcome{Outcome: client.Identical, Retried: true}, nil, 0, false, "retried"},
		{"refused", broken, bench.Outcome{Outcome: client.Refused}, nil, 0, false, "refused: not_covered"},
		{"wrong", ref, bench.Outcome{Outcome: client.Wrong}, nil, 0, false, "wrong"},
		{"wrong with an error", broken, bench.Outcome{Outcome: client.Wrong}, nil, 0, false, "wrong"},
		{"errored", broken, bench.Outcome{Outcome: client.Errored}, nil, 0, false, "error: " + client.CodeInterrupted},
		{"standby never spoke", broken, bench.Outcome{Outcome: client.Refused}, during, time.Second, true, "refused: not_covered, standby's node during the takeover"},
		{"standby's first token had not come", broken, bench.Outcome{Outcome: client.Refused, Pause: pause}, during, 99 * time.Millisecond, true, "refused: not_covered, standby's node during the takeover"},
		{"before it was covered", broken, bench.Outcome{Outcome: client.Refused, Pause: pause}, during, time.Second, false, "refused: not_covered, standby's node while not protected yet"},
		{"although it was covered", broken, bench.Outcome{Outcome: client.Refused, Pause: pause}, during, time.Second, true, "refused: not_covered, standby's node while protected again"},
	} {
		r := bench.FaultRecordOf(c.got, ref, c.o, seam, c.second, c.after, c.protected)
		if r.NotContinued != c.want {
			t.Errorf("%s: got %q, want %q", c.name, r.NotContinued, c.want)
		}
		if r.Run != 5 || r.Prompt != 2 || r.PromptTokens != 50 || r.Node != "a" || r.KillIndex != 7 || r.D != 8 || r.C != 9 || (r.PauseMS != nil) != (c.o.Pause != nil) {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
}
