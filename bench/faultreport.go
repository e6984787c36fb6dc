// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/seguekv/segue/bench/client"
)

// continuedLeast is the part of all kills that synchronous protection has to continue. Kills of the standby's node while
// it takes over are among them, and can't be continued.
const continuedLeast = 0.95

// FaultCounts count kills. Kills = Identical + Refused + Errors + Wrong.
type FaultCounts struct {
	Kills     int `json:"kills"`
	Continued int `json:"continued"`
	Identical int `json:"identical"`
	Retried   int `json:"retried"`
	Refused   int `json:"refused"`
	Errors    int `json:"errors"`
	Wrong     int `json:"wrong"`
}

func (c *FaultCounts) add(r FaultRecord) {
	c.Kills++
	switch r.Outcome {
	case client.Identical:
		c.Identical++
	case client.Refused:
		c.Refused++
	case client.Errored:
		c.Errors++
	default:
		c.Wrong++
	}
	if r.Continued {
		c.Continued++
	}
	if r.Retried {
		c.Retried++
	}
}

// FaultReport is the summary of a campaign; its JSON form is a public format.
type FaultReport struct {
	FaultCounts
	// NotContinued counts the other kills by reason.
	NotContinued map[string]int `json:"not_continued"`
	// PauseMS, GapMS and DetectMS are of kills after which the standby was left alone.
	PauseMS  Times `json:"pause_ms"`
	GapMS    Times `json:"gap_ms"`
	DetectMS Times `json:"detect_ms"`
	// WrongRateUpper95 is the one-sided 95 % upper bound of the rate of wrong answers, FailedRateUpper95 that of wrong
	// answers and unexpected errors together, NotContinuedRateUpper95 that of kills that were not continued.
	WrongRateUpper95        float64 `json:"wrong_rate_upper95"`
	FailedRateUpper95       float64 `json:"failed_rate_upper95"`
	NotContinuedRateUpper95 float64 `json:"not_continued_rate_upper95"`
	// Single are the kills after which the standby was left alone. StandbyKilled are the others by what was killed when.
	Single        FaultCounts            `json:"single"`
	StandbyKilled map[string]FaultCounts `json:"standby_killed"`
	ByTarget      map[string]FaultCounts `json:"by_target"`
	BySampling    map[string]FaultCounts `json:"by_sampling"`
	ByKind        map[string]FaultCounts `json:"by_kind"`
	ByNode        map[string]int         `json:"by_node"`
	// Redrawn counts kills that met no running primary, Disturbed tries that ended in an explicit error before the kill.
	// They are not among the kills.
	Redrawn      int    `json:"redrawn"`
	Disturbed    int    `json:"disturbed"`
	Prompts      int    `json:"prompts"`
	PromptTokens Spread `json:"prompt_tokens"`
	OutputTokens Least  `json:"output_tokens"`
	KillIndex    Range  `json:"kill_index"`
	Seed         uint64 `json:"seed"`
	Protection   string `json:"protection"`
	Engine       string `json:"engine"`
	Model        string `json:"model"`
	// Here tells of this run of the program alone: how many of the kills it did, in what time, in how many clusters at
	// once.
	Here FaultEffort `json:"here"`
}

// FaultEffort is the cost of a part of a campaign.
type FaultEffort struct {
	Kills          int     `json:"kills"`
	Seconds        float64 `json:"seconds"`
	SecondsPerKill float64 `json:"seconds_per_kill"`
	Clusters       int     `json:"clusters"`
}

// Summarize reduces the lines of one log.
func Summarize(records []FaultRecord) *FaultReport {
	r := &FaultReport{
		NotContinued: map[string]int{}, StandbyKilled: map[string]FaultCounts{}, ByTarget: map[string]FaultCounts{},
		BySampling: map[string]FaultCounts{}, ByKind: map[string]FaultCounts{}, ByNode: map[string]int{},
	}
	var pauses, gaps, detects []float64
	prompts := make(map[int]int)
	var outputs, indexes []int
	for _, k := range records {
		r.add(k)
		count(r.ByTarget, string(k.Target), k)
		count(r.BySampling, k.Sampling, k)
		count(r.ByKind, k.Kind, k)
		r.ByNode[k.Node]++
		r.Redrawn += k.Redrawn
		r.Disturbed += k.Disturbed
		if k.NotContinued != "" {
			r.NotContinued[k.NotContinued]++
		}
		prompts[k.Prompt] = k.PromptTokens
		outputs = append(outputs, k.OutputTokens)
		indexes = append(indexes, k.KillIndex)
		r.Seed, r.Protection, r.Engine, r.Model = k.Seed, k.Protection, k.Engine, k.Model
		if k.Second != nil {
			count(r.StandbyKilled, k.Second.name(), k)
			continue
		}
		r.Single.add(k)
		if k.PauseMS != nil {
			pauses, gaps, detects = append(pauses, *k.PauseMS), append(gaps, *k.GapMS), append(detects, *k.DetectMS)
		}
	}
	r.PauseMS, r.GapMS, r.DetectMS = times(pauses), times(gaps), times(detects)
	r.WrongRateUpper95 = round(upperBound(r.Wrong, r.Kills, 0.95), 5)
	r.FailedRateUpper95 = round(upperBound(r.Wrong+r.Errors, r.Kills, 0.95), 5)
	r.NotContinuedRateUpper95 = round(upperBound(r.Kills-r.Continued, r.Kills, 0.95), 5)
	if r.Prompts = len(prompts); r.Prompts > 0 {
		lengths := slices.Sorted(maps.Values(prompts))
		r.PromptTokens = Spread{Min: lengths[0], P50: lengths[len(lengths)/2], Max: lengths[len(lengths)-1]}
		r.OutputTokens = Least{Min: slices.Min(outputs)}
		r.KillIndex = Range{Min: slices.Min(indexes), Max: slices.Max(indexes)}
	}
	return r
}

func count(into map[string]FaultCounts, key string, k FaultRecord) {
	c := into[key]
	c.add(k)
	into[key] = c
}

// name says what was killed when.
func (s SecondRecord) name() string {
	switch {
	case s.During:
		return string(s.Target) + " during the takeover"
	case s.Protected:
		return string(s.Target) + " while protected again"
	default:
		return string(s.Target) + " while not protected yet"
	}
}

// Failure tells why the outcomes are not acceptable, or nil.
func (r *FaultReport) Failure() error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if r.Wrong > 0 {
		add("%d answers were wrong", r.Wrong)
	}
	if r.Errors > 0 {
		add("%d answers ended in an unexpected error", r.Errors)
	}
	if r.Protection == client.ProtectionSync && float64(r.Continued) < continuedLeast*float64(r.Kills) {
		add("only %d of %d kills were continued, fewer than %.0f %%", r.Continued, r.Kills, 100*continuedLeast)
	}
	return errors.Join(problems...)
}
