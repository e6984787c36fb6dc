// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"math"
	"math/rand/v2"
	"time"
)

// Purposes keep the random sequences that come from one seed apart.
const (
	forLengths = 1 + iota
	forPrompts
	forKills
	forIDs
	forSeconds
)

// random is the sequence for one purpose and up to three coordinates. It depends on nothing that happened before.
func random(seed, purpose uint64, at ...int) *rand.Rand {
	mixed := purpose
	for _, n := range at {
		mixed = mixed*0x9e3779b97f4a7c15 + uint64(n) + 1
	}
	return rand.New(rand.NewPCG(seed, mixed))
}

// Draw is the moment of a kill, relative to a reference.
type Draw struct {
	// Victim picks the session that triggers the kill where several run at once: uniform in 0..1.
	Victim float64
	// Index is the output index whose arrival at the client arms the kill, uniform in 10–90 % of the reference.
	Index int
	// Delay after that arrival, uniform in 0–1 step.
	Delay time.Duration
}

// drawKill draws the moment for the given try of a run. Equal arguments give an equal draw.
func drawKill(seed uint64, prompt, run, try, tokens int, step time.Duration) Draw {
	r := random(seed, forKills, prompt, run, try)
	victim := r.Float64()
	low := int(math.Ceil(0.1 * float64(tokens)))
	high := max(low, int(math.Floor(0.9*float64(tokens))))
	return Draw{
		Victim: victim,
		Index:  low + r.IntN(high-low+1),
		Delay:  time.Duration(r.Float64() * float64(step)),
	}
}

// Lengths of prompts in tokens.
const (
	shortestPrompt = 16
	longestPrompt  = 1500
	longPrompt     = 1000 // one prompt in four has at least this many
	// lengthMargin keeps drawn lengths away from the bounds, because a text is sized by an estimate.
	lengthMargin = 40
)

// drawLengths draws n lengths, log-uniform, of which every fourth, the first included, is a long one.
func drawLengths(seed uint64, n int) []int {
	lengths := make([]int, n)
	for i := range lengths {
		low, high := float64(shortestPrompt+2), float64(longestPrompt-lengthMargin)
		if i%4 == 0 {
			low = longPrompt + lengthMargin
		}
		u := random(seed, forLengths, i).Float64()
		lengths[i] = int(math.Round(low * math.Pow(high/low, u)))
	}
	return lengths
}
