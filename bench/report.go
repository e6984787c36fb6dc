// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"errors"
	"fmt"
	"slices"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

// Report is the result of a kill campaign; its JSON form is a public format.
type Report struct {
	// Runs = Identical + Refused + Errors + Wrong. Continued and Retried say how killed runs went on.
	Runs      int `json:"runs"`
	Continued int `json:"continued"`
	Identical int `json:"identical"`
	Retried   int `json:"retried"`
	Refused   int `json:"refused"`
	Errors    int `json:"errors"`
	Wrong     int `json:"wrong"`
	// Redrawn counts kills that came after the primary had finished; they are not runs.
	Redrawn  int            `json:"redrawn"`
	Takeover TakeoverReport `json:"takeover"`
	// PublishedAfterFence counts tokens of fenced attempts that reached a client after the fence. LateRunsEnded counts
	// runs of hung engines that ended after they were let go on; without a hang it is 0.
	PublishedAfterFence int `json:"published_after_fence"`
	LateRunsEnded       int `json:"late_runs_ended"`
	// hung counts the streams whose engine was hung.
	hung         int
	PromptTokens Spread `json:"prompt_tokens"`
	OutputTokens Least  `json:"output_tokens"`
	KillIndex    Range  `json:"kill_index"`
	PauseMS      Times  `json:"pause_ms"`
	GapMS        Times  `json:"gap_ms"`
	DetectMS     Times  `json:"detect_ms"`
	Protection   string `json:"protection"`
	Kill         string `json:"kill"`
	Sampling     string `json:"sampling"`
}

// TakeoverReport sums the counters of the standbys' engines around the takeovers.
type TakeoverReport struct {
	// PrefillTokens and ReplayedDecodeSteps are work that a takeover should not need.
	PrefillTokens       int64 `json:"prefill_tokens"`
	ReplayedDecodeSteps int64 `json:"replayed_decode_steps"`
	// RestoredKVBytesMin is the smallest state that a takeover loaded.
	RestoredKVBytesMin int64 `json:"restored_kv_bytes_min"`
}

// Spread, Least, Range and Times are parts of a Report.
type (
	Spread struct {
		Min int `json:"min"`
		P50 int `json:"p50"`
		Max int `json:"max"`
	}
	Least struct {
		Min int `json:"min"`
	}
	Range struct {
		Min int `json:"min"`
		Max int `json:"max"`
	}
	// Times are milliseconds; P99 of fewer than 100 values is their maximum.
	Times struct {
		P50 float64 `json:"p50"`
		P99 float64 `json:"p99"`
	}
)

// tally collects the outcomes of a campaign.
type tally struct {
	groups                                                               int // one kill each
	runs, continued, identical, retried, refused, errors, wrong, redrawn int

	published, lateRuns, hung int

	takeover              TakeoverReport
	indexes               []int
	pauses, gaps, detects []float64
}

func (t *tally) add(e examined) {
	t.groups++
	if e.fired {
		t.indexes = append(t.indexes, e.index)
	}
	if e.killed != nil {
		t.lateRuns += e.lateRuns
	}
	for _, o := range e.outcomes {
		t.runs++
		t.published += afterFence(o.session)
		if o.hit {
			t.hung++
		}
		switch o.verdict.Outcome {
		case client.Identical:
			t.identical++
		case client.Refused:
			t.refused++
		case client.Errored:
			t.errors++
		default:
			t.wrong++
		}
		if o.retried {
			t.retried++
		}
		if o.continued {
			t.continued++
		}
		if o.measured {
			t.pauses = append(t.pauses, milliseconds(o.pause.Pause))
			t.gaps = append(t.gaps, milliseconds(o.pause.Gap))
			t.detects = append(t.detects, milliseconds(o.pause.Detect))
		}
	}
	if r := e.takeover; r != nil {
		t.takeover.PrefillTokens += r.prefillTokens
		t.takeover.ReplayedDecodeSteps += r.replayedSteps
		if t.takeover.RestoredKVBytesMin == 0 || r.restoredBytesMin < t.takeover.RestoredKVBytesMin {
			t.takeover.RestoredKVBytesMin = r.restoredBytesMin
		}
	}
}

func (t *tally) report(cfg CampaignConfig, refs []*reference) *Report {
	var prompts, outputs []int
	for _, r := range refs {
		prompts = append(prompts, r.transcript.Usage.PromptTokens)
		outputs = append(outputs, r.tokens())
	}
	slices.Sort(prompts)
	indexes := t.indexes
	if len(indexes) == 0 {
		indexes = []int{0}
	}
	return &Report{
		Runs: t.runs, Continued: t.continued, Identical: t.identical, Retried: t.retried,
		Refused: t.refused, Errors: t.errors, Wrong: t.wrong, Redrawn: t.redrawn,
		Takeover: t.takeover, PublishedAfterFence: t.published, LateRunsEnded: t.lateRuns, hung: t.hung,
		PromptTokens: Spread{Min: prompts[0], P50: prompts[len(prompts)/2], Max: prompts[len(prompts)-1]},
		OutputTokens: Least{Min: slices.Min(outputs)},
		KillIndex:    Range{Min: slices.Min(indexes), Max: slices.Max(indexes)},
		PauseMS:      times(t.pauses),
		GapMS:        times(t.gaps),
		DetectMS:     times(t.detects),
		Protection:   cfg.Protection,
		Kill:         string(cfg.Target),
		Sampling:     cfg.Sampling,
	}
}

func times(values []float64) Times {
	return Times{P50: round(median(values), 1), P99: round(percentile99(values), 1)}
}

// Failure tells why the outcomes are not acceptable, or nil. Synchronous protection owes an identical stream every
// time; asynchronous protection may end honestly, but never wrongly, and not in most cases.
func (r *Report) Failure() error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if r.Wrong > 0 {
		add("%d runs were wrong", r.Wrong)
	}
	if r.Errors > 0 {
		add("%d runs ended in an unexpected error", r.Errors)
	}
	if r.Protection == client.ProtectionSync && r.Identical < r.Runs {
		add("only %d of %d runs were identical", r.Identical, r.Runs)
	}
	if r.Protection == client.ProtectionAsync && 2*r.Identical < r.Runs {
		add("only %d of %d runs were identical, fewer than half", r.Identical, r.Runs)
	}
	if r.PublishedAfterFence > 0 {
		add("%d tokens of fenced attempts were published", r.PublishedAfterFence)
	}
	if r.Kill == string(cluster.TargetHang) && r.LateRunsEnded < r.hung {
		add("only %d of %d hung runs ended after their engine went on", r.LateRunsEnded, r.hung)
	}
	if r.Takeover.PrefillTokens != 0 || r.Takeover.ReplayedDecodeSteps != 0 {
		add("takeovers recomputed %d prompt tokens and %d decode steps", r.Takeover.PrefillTokens, r.Takeover.ReplayedDecodeSteps)
	}
	if r.Continued > 0 && r.Takeover.RestoredKVBytesMin <= 0 {
		add("the counters show no state that a takeover loaded")
	}
	return errors.Join(problems...)
}
