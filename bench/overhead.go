// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

// OverheadConfig says what the overhead bench measures.
type OverheadConfig struct {
	// Rounds of one request per mode.
	Rounds int
	// Contexts are the prompt lengths in tokens; each is measured by itself.
	Contexts []int
	// Tokens per answer.
	Tokens int
	// ByContext selects the report with one entry per context.
	ByContext bool
	Seed      uint64
	Logf      func(format string, args ...any)
}

// Validate reports every problem in the spelling of the command line.
func (c OverheadConfig) Validate() error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Rounds < 1 || c.Rounds > 1000 {
		add("--rounds must be 1 to 1000, not %d", c.Rounds)
	}
	if c.Tokens < 2 || c.Tokens > 100_000 {
		add("--tokens must be 2 to 100000, not %d", c.Tokens)
	}
	if len(c.Contexts) == 0 {
		add("--contexts needs at least one length")
	}
	for i, n := range c.Contexts {
		if n < 1 || n > 1_000_000 {
			add("--contexts must be positive token counts, not %d", n)
		}
		if slices.Contains(c.Contexts[:i], n) {
			add("--contexts names %d twice", n)
		}
	}
	return errors.Join(problems...)
}

// modes are the ways of protection that are compared, in the order of the first round.
func modes() []string {
	return []string{client.ProtectionOff, client.ProtectionAsync, client.ProtectionSync}
}

// OverheadReport is the result of the overhead bench; its JSON form is a public format.
type OverheadReport struct {
	Rounds int `json:"rounds"`
	*Overhead
	// Contexts has one entry per context length, where several were asked for.
	Contexts map[string]Overhead `json:"contexts,omitempty"`
}

// Overhead compares the modes at one context length.
type Overhead struct {
	// TokensPerS is the median over the rounds, by mode.
	TokensPerS map[string]float64 `json:"tokens_per_s"`
	// Overhead is 1 − median/median of mode off, for the other modes.
	Overhead map[string]float64 `json:"overhead"`
	// CPUSecondsPer1K is processor time of all processes of the cluster, by mode, per 1,000 output tokens, counted
	// from the first to the last token of each answer.
	CPUSecondsPer1K map[string]float64 `json:"cpu_s_per_1k_tokens"`
}

// sample is one measured answer.
type sample struct {
	rate   float64 // tokens per second
	tokens int     // between the first and the last chunk
	cpu    time.Duration
}

// RunOverhead measures in interleaved rounds. The order of the modes rotates from round to round; all modes of a round
// are served by the same node, and the nodes take turns.
func RunOverhead(ctx context.Context, cl *cluster.Cluster, cfg OverheadConfig) (*OverheadReport, error) {
	c := client.New(cl.URL())
	defer c.Close()
	model, err := c.Model(ctx)
	if err != nil {
		return nil, err
	}
	o := &overhead{cfg: cfg, client: c, cl: cl, place: placer{client: c, cluster: cl, model: model}}
	if err := o.warmUp(ctx); err != nil {
		return nil, fmt.Errorf("warm up: %w", err)
	}
	report := &OverheadReport{Rounds: cfg.Rounds}
	if cfg.ByContext {
		report.Contexts = make(map[string]Overhead)
	}
	for _, length := range cfg.Contexts {
		samples, err := o.measure(ctx, length)
		if err != nil {
			return nil, fmt.Errorf("context %d: %w", length, err)
		}
		result := compare(samples)
		if cfg.ByContext {
			report.Contexts[strconv.Itoa(length)] = result
		} else {
			report.Overhead = &result
		}
	}
	return report, nil
}

// overhead is the work of one RunOverhead.
type overhead struct {
	cfg    OverheadConfig
	client *client.Client
	cl     *cluster.Cluster
	place  placer
}

// warmUp runs each mode once on each node, short and not counted.
func (o *overhead) warmUp(ctx context.Context) error {
	for _, mode := range modes() {
		for range o.cl.Nodes() {
			if _, err := o.request(ctx, o.body(16, 8, 0), mode); err != nil {
				return err
			}
		}
	}
	return nil
}

// body is a plain completion of exactly length prompt tokens. The ids are arbitrary; equal arguments give equal ids.
func (o *overhead) body(length, tokens, round int) client.Body {
	const lowest, span = 1000, 20_000 // plain text ids, in every vocabulary used here
	r := random(o.cfg.Seed, forIDs, length, round)
	ids := make([]int32, length)
	for i := range ids {
		ids[i] = int32(lowest + r.IntN(span))
	}
	return client.Body{
		Model: o.place.model, PromptIDs: ids, MaxTokens: tokens, MinTokens: tokens, IgnoreEOS: true,
		Seed: r.Uint64N(1 << 53), Temperature: 0.8, TopK: 40, TopP: 0.95,
	}
}

func (o *overhead) measure(ctx context.Context, length int) (map[string][]sample, error) {
	samples := make(map[string][]sample)
	nodes := o.cl.Nodes()
	for round := range o.cfg.Rounds {
		node := nodes[round%len(nodes)]
		body := o.body(length, o.cfg.Tokens, round)
		var line strings.Builder
		line.WriteString(fmt.Sprintf("context %d, round %d of %d on node %s:", length, round+1, o.cfg.Rounds, node))
		for i := range modes() {
			mode := modes()[(round+i)%len(modes())]
			s, err := o.sampleOn(ctx, node, body, mode)
			if err != nil {
				return nil, fmt.Errorf("round %d, protection %s: %w", round+1, mode, err)
			}
			samples[mode] = append(samples[mode], s)
			line.WriteString(fmt.Sprintf("  %s %.1f tokens/s", mode, s.rate))
		}
		o.cfg.Logf("%s", line.String())
	}
	return samples, nil
}

// sampleOn measures one request on a certain node.
func (o *overhead) sampleOn(ctx context.Context, node string, body client.Body, mode string) (sample, error) {
	for range placementTries {
		if err := o.place.steer(ctx, node); err != nil {
			return sample{}, err
		}
		s, err := o.request(ctx, body, mode)
		if err != nil || o.place.last == node {
			return s, err
		}
	}
	return sample{}, fmt.Errorf("%d requests in a row were not placed on node %s", placementTries, node)
}

// request runs one request, checks that it got the protection it asked for, and notes its node.
func (o *overhead) request(ctx context.Context, body client.Body, mode string) (sample, error) {
	var used [2]time.Duration
	var failed error
	count := 0
	t, record, err := undisturbed(ctx, o.client, o.cl.Router(), client.Call{Body: body, Protection: mode, OnChunk: func(c client.Chunk) {
		first := count == 0
		count += len(c.IDs)
		switch {
		case first:
			used[0], failed = o.cl.CPU()
		case count >= body.MaxTokens && failed == nil:
			used[1], failed = o.cl.CPU()
		}
	}})
	if err == nil {
		err = failed
	}
	if err != nil {
		return sample{}, err
	}
	o.place.last = record.Attempts[0].Node
	if t.Granted != mode {
		return sample{}, fmt.Errorf("asked for protection %s, got %q", mode, t.Granted)
	}
	for _, change := range record.ProtectionLog {
		if mode != client.ProtectionOff && !change.Protected {
			return sample{}, fmt.Errorf("protection %s was lost at token %d: %s", mode, change.FromIndex, change.Cause)
		}
	}
	if got, want := t.Usage.PromptTokens, len(body.PromptIDs); got != want {
		return sample{}, fmt.Errorf("prompt of %d ids was counted as %d tokens", want, got)
	}
	if len(t.Tokens()) != body.MaxTokens {
		return sample{}, fmt.Errorf("%d tokens instead of %d", len(t.Tokens()), body.MaxTokens)
	}
	return sample{rate: t.TokensPerSecond(), tokens: len(t.Tokens()) - len(t.Chunks[0].IDs), cpu: used[1] - used[0]}, nil
}

// compare reduces the samples of one context length.
func compare(samples map[string][]sample) Overhead {
	o := Overhead{TokensPerS: map[string]float64{}, Overhead: map[string]float64{}, CPUSecondsPer1K: map[string]float64{}}
	medians := make(map[string]float64)
	for mode, list := range samples {
		var rates []float64
		var cpu time.Duration
		tokens := 0
		for _, s := range list {
			rates = append(rates, s.rate)
			cpu += s.cpu
			tokens += s.tokens
		}
		medians[mode] = median(rates)
		o.TokensPerS[mode] = round(medians[mode], 2)
		if tokens > 0 {
			o.CPUSecondsPer1K[mode] = round(cpu.Seconds()/float64(tokens)*1000, 2)
		}
	}
	off := medians[client.ProtectionOff]
	for mode := range samples {
		if mode != client.ProtectionOff && off > 0 {
			o.Overhead[mode] = round(1-medians[mode]/off, 4)
		}
	}
	return o
}
