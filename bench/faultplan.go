// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

const (
	// secondEvery: one kill in so many is followed by a kill of the standby. It has no common divisor with the number of
	// targets or the usual number of kills per prompt, so that second kills meet all of them.
	secondEvery = 11
	// duringSteps bounds the delay of a second kill during a takeover, in steps of the reference; a takeover takes about as
	// long. protectedSteps is the same for a standby that is protected again.
	duringSteps, protectedSteps = 5, 10
)

// plan is what a kill's number decides together with the seed; nothing else does.
type plan struct {
	run    int // counted from 0, as are prompts
	prompt int
	target cluster.Target
	second *SecondDraw // the delay is drawn against a reference
}

// planRun makes the plan of one kill.
func planRun(run, killsPerPrompt int) plan {
	targets := []cluster.Target{cluster.TargetNode, cluster.TargetEngine, cluster.TargetAgent}
	p := plan{run: run, prompt: run / killsPerPrompt, target: targets[run%len(targets)]}
	if run%secondEvery != secondEvery-4 {
		return p
	}
	seconds := []SecondDraw{
		{Target: cluster.TargetEngine, When: SecondDuring},
		{Target: cluster.TargetNode, When: SecondProtected},
		{Target: cluster.TargetNode, When: SecondDuring},
		{Target: cluster.TargetEngine, When: SecondProtected},
		{Target: cluster.TargetEngine, When: SecondDuring},
		{Target: cluster.TargetAgent, When: SecondProtected},
		{Target: cluster.TargetAgent, When: SecondDuring},
		{Target: cluster.TargetNode, When: SecondProtected},
	}
	second := seconds[run/secondEvery%len(seconds)]
	p.second = &second
	return p
}

// drawSecond draws the delay of a second kill.
func (p plan) drawSecond(seed uint64, try int, step time.Duration) *SecondDraw {
	if p.second == nil {
		return nil
	}
	d := *p.second
	most := duringSteps * step
	if d.When == SecondProtected {
		most = protectedSteps * step
	}
	d.Delay = time.Duration(random(seed, forSeconds, p.run, try).Float64() * float64(most))
	return &d
}

// faultSamplings name the ways of sampling that prompts take turns through.
func faultSamplings() []string {
	return []string{
		"greedy", "seeded", "greedy+penalties", "seeded+penalties",
		"greedy+stop", "seeded+stop", "greedy+bias", "seeded+bias",
	}
}

// faultPrompt draws prompt number i of a campaign and names its sampling. Lengths are log-uniform; they follow an additive
// sequence, so that few prompts cover the range already.
func faultPrompt(seed uint64, i int, model string, lib library, s scale) (prompt, string) {
	const golden = 0.6180339887498949
	_, u := math.Modf(random(seed, forLengths).Float64() + golden*float64(i))
	low, high := float64(shortestPrompt+2), float64(longestPrompt-lengthMargin)
	target := int(math.Round(low * math.Pow(high/low, u)))

	samplings := faultSamplings()
	sampling := samplings[i%len(samplings)]
	all := kinds()
	p := newPrompt(random(seed, forPrompts, i), all[(i+i/len(samplings))%len(all)], target, model, lib, s)
	base, extra, _ := strings.Cut(sampling, "+")
	if base == SamplingSeeded {
		p.seeded()
	}
	switch extra {
	case "penalties":
		p.body.RepetitionPenalty, p.body.PresencePenalty, p.body.FrequencyPenalty = 1.1, 0.3, 0.2
	case "stop":
		p.derive = deriveStops
	case "bias":
		p.derive = deriveBias
		if base == SamplingSeeded {
			p.body.MinP = 0.02
		}
	}
	return p, sampling
}

// deriveStops gives a request two stop strings: one that ends the answer behind its required length, if its text has
// anything new there, and one that its text begins again and again but never completes, so that text is held back.
func deriveStops(b *client.Body, t *client.Transcript) {
	const never = "\u2603\u2603"
	text := t.Text()
	before, _ := splitAt(t.Chunks, minOutput+4)
	if stop := firstNew(text, len(before)); stop != "" {
		b.Stop = append(b.Stop, stop)
	}
	at := len(before) / 2
	for at > 0 && !utf8.RuneStart(text[at]) {
		at--
	}
	if start, size := utf8.DecodeRuneInString(text[at:]); size > 0 {
		b.Stop = append(b.Stop, string(start)+never)
	}
}

// firstNew is a short piece of text from the given byte on that doesn't occur earlier; empty when there is none.
func firstNew(text string, from int) string {
	const shortest, longest = 2, 12 // characters
	for at := from; at < len(text); at++ {
		if !utf8.RuneStart(text[at]) {
			continue
		}
		end := at
		for n := 1; n <= longest && end < len(text); n++ {
			_, size := utf8.DecodeRuneInString(text[end:])
			end += size
			piece := text[at:end]
			if n >= shortest && !strings.ContainsRune(piece, utf8.RuneError) && strings.Index(text, piece) == at {
				return piece
			}
		}
	}
	return ""
}

// deriveBias bans two of the tokens that the answer had and favours another.
func deriveBias(b *client.Body, t *client.Transcript) {
	var distinct []int32
	for _, id := range t.Tokens() {
		if !slices.Contains(distinct, id) {
			distinct = append(distinct, id)
		}
	}
	b.LogitBias = make(map[string]float64)
	for i, bias := range []float64{-100, -100, 1.5} {
		if at := (i + 1) * len(distinct) / 4; at < len(distinct) {
			b.LogitBias[strconv.Itoa(int(distinct[at]))] = bias
		}
	}
}
