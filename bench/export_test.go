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
