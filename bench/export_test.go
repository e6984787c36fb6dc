// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"time"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

// Names for tests.
var (
	Median       = median
	Percentile99 = percentile99
	DrawKill     = drawKill
	DrawLengths  = drawLengths
	PauseOf      = pauseOf
	ProgressAt   = progressAt
	StateOf      = stateOf
	SplitAt      = splitAt
)

// UpperBound is upperBound.
func UpperBound(bad, n int, confidence float64) float64 { return upperBound(bad, n, confidence) }

// FaultPlan is what a kill's number decides.
func FaultPlan(run, killsPerPrompt int) (prompt int, target cluster.Target, second *SecondDraw) {
	p := planRun(run, killsPerPrompt)
	return p.prompt, p.target, p.drawSecond(1, 0, time.Second)
}

// FaultPrompt draws one prompt for a model with four bytes a token.
func FaultPrompt(seed uint64, i int) (body client.Body, sampling, kind string, target int, derives bool) {
	lib, err := openCorpus()
	if err != nil {
		panic(err)
	}
	s := scale{overhead: 10, perByte: map[string]float64{}}
	for _, kind := range kinds() {
		s.perByte[kind] = 0.25
	}
	p, sampling := faultPrompt(seed, i, "m", lib, s)
	return p.body, sampling, p.kind, p.target, p.derive != nil
}

// Derive completes a body from an answer, as stop strings or logit bias do.
func Derive(bias bool, t *client.Transcript) client.Body {
	var b client.Body
	if bias {
		deriveBias(&b, t)
	} else {
		deriveStops(&b, t)
	}
	return b
}

// FirstNew is firstNew.
func FirstNew(text string, from int) string { return firstNew(text, from) }

// Queue is the runs that a campaign has to do, by prompt, counted from 1.
func (f *Faults) Queue() [][]int {
	var out [][]int
	for _, plans := range f.queue {
		var runs []int
		for _, p := range plans {
			runs = append(runs, p.run+1)
		}
		out = append(out, runs)
	}
	return out
}

// FaultRecordOf is the log's line about a killed stream; second is nil or the kill of the standby, after the first kill.
func FaultRecordOf(got, ref *client.Transcript, o Outcome, seam *cluster.Seam, second *SecondDraw, after time.Duration, protected bool) FaultRecord {
	at := time.Now()
	e := examined{
		killed: &killed{
			fired: true, at: at, node: "a", index: 7, shot: &cluster.Shot{Node: "a", Target: cluster.TargetAgent},
			streams: []*live{{ref: &reference{transcript: ref, prompt: prompt{kind: "cjk"}}, transcript: got, session: "s"}},
		},
		outcomes: []outcome{{verdict: client.Verdict{Outcome: o.Outcome}, hit: true, continued: o.Continued, retried: o.Retried, seam: seam}},
	}
	if o.Pause != nil {
		e.outcomes[0].measured, e.outcomes[0].pause = true, *o.Pause
	}
	if second != nil {
		e.second = &secondKill{at: at.Add(after), shot: &cluster.Shot{Node: "b", Target: second.Target}, protected: protected}
	}
	return e.faultRecord(plan{run: 4, prompt: 1, target: cluster.TargetAgent, second: second}, "greedy+stop")
}

// SizedPrompts measures the scale of a server and makes a campaign's prompts for it.
func SizedPrompts(ctx context.Context, url string, seed uint64, n, streams int, sampling string) ([]client.Body, []int, error) {
	lib, err := openCorpus()
	if err != nil {
		return nil, nil, err
	}
	c := client.New(url)
	defer c.Close()
	s, err := measureScale(ctx, c, "m", lib)
	if err != nil {
		return nil, nil, err
	}
	var bodies []client.Body
	var targets []int
	for _, p := range makePrompts(seed, n, streams, sampling, "m", lib, s) {
		bodies = append(bodies, p.body)
		targets = append(targets, p.target)
	}
	return bodies, targets, nil
}

// Refit changes a prompt of the given target after its length was measured, and returns its text.
func Refit(kind string, target, bytes, measured int) (string, error) {
	lib, err := openCorpus()
	if err != nil {
		return "", err
	}
	p := prompt{kind: kind, target: target, bytes: bytes}
	p.refit(measured, lib, scale{})
	return p.body.Messages[1].Content, nil
}

// Text is a text of the corpus.
func Text(kind string, start, size int) string {
	lib, err := openCorpus()
	if err != nil {
		panic(err)
	}
	return lib.text(kind, start, size)
}

// Kinds are the kinds of text.
func Kinds() []string { return kinds() }

// Outcome describes one stream for ReportOf.
type Outcome struct {
	Outcome            client.Outcome
	Continued, Retried bool
	Pause              *Pause
}

// ReportOf tallies outcomes of single streams, each killed at the given index, against one reference.
func ReportOf(cfg CampaignConfig, ref *client.Transcript, index int, prefill, replayed, restored int64, outcomes ...Outcome) *Report {
	var t tally
	for _, o := range outcomes {
		out := outcome{verdict: client.Verdict{Outcome: o.Outcome}, continued: o.Continued, retried: o.Retried}
		if o.Pause != nil {
			out.measured, out.pause = true, *o.Pause
		}
		t.add(examined{
			killed: &killed{fired: true, index: index}, outcomes: []outcome{out},
			takeover: &recomputed{prefillTokens: prefill, replayedSteps: replayed, restoredBytesMin: restored},
		})
	}
	return t.report(cfg, []*reference{{transcript: ref}})
}

// Sample is one measured answer.
type Sample struct {
	Rate   float64
	Tokens int
	CPU    time.Duration
}

// Compare reduces samples by mode.
func Compare(samples map[string][]Sample) Overhead {
	in := make(map[string][]sample)
	for mode, list := range samples {
		for _, s := range list {
			in[mode] = append(in[mode], sample{rate: s.Rate, tokens: s.Tokens, cpu: s.CPU})
		}
	}
	return compare(in)
}

// SameCounters reports whether two pages agree in the counters that matter.
func SameCounters(a, b map[string]cluster.Counters) bool { return sameCounters(a, b) }

// Counts reports whether an outcome is one of a campaign's runs.
func (o Outcome) Counts() bool {
	return outcome{verdict: client.Verdict{Outcome: o.Outcome}, retried: o.Retried, measured: o.Pause != nil}.counts()
}

// KeepEvidence writes what is kept of a run of one stream with the given outcome.
func KeepEvidence(dir, protection string, got, ref *client.Transcript, v client.Verdict) ([]string, error) {
	at := time.Now()
	return keepEvidence(dir, 7, protection, 3, examined{
		killed: &killed{
			fired: true, at: at, node: "a", index: 1, shot: &cluster.Shot{Node: "a", Target: cluster.TargetAgent},
			streams: []*live{{ref: &reference{transcript: ref}, transcript: got}},
		},
		outcomes: []outcome{{verdict: v, session: &cluster.Session{Session: "s"}}},
	})
}

// AfterFence is how many tokens of fenced attempts a session published.
func AfterFence(s *cluster.Session) int { return afterFence(s) }
