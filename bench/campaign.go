// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

// maxRedraws bounds how often one kill is drawn again.
const maxRedraws = 8

// CampaignConfig says what a kill campaign does.
type CampaignConfig struct {
	// Prompts is the number of different requests; KillsPerPrompt is how often each is run with a kill.
	Prompts, KillsPerPrompt int
	// Streams is how many requests run at the same time, spread evenly over the nodes, with one kill among them.
	Streams    int
	Target     cluster.Target
	Sampling   string
	Protection string
	Seed       uint64
	// Logf receives progress, one line per call.
	Logf func(format string, args ...any)
}

// Validate reports every problem in the spelling of the command line.
func (c CampaignConfig) Validate() error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Prompts < 1 || c.Prompts > 1000 {
		add("--prompts must be 1 to 1000, not %d", c.Prompts)
	}
	if c.KillsPerPrompt < 1 || c.KillsPerPrompt > 1000 {
		add("--kills-per-prompt must be 1 to 1000, not %d", c.KillsPerPrompt)
	}
	if c.Streams < 1 || (c.Streams > 1 && c.Streams%2 != 0) || c.Streams > 16 {
		add("--streams must be 1 or an even number up to 16, not %d", c.Streams)
	}
	if c.Streams > 1 && c.Prompts%c.Streams != 0 {
		add("--prompts must be a multiple of --streams, not %d with %d streams", c.Prompts, c.Streams)
	}
	if _, err := cluster.ParseTarget(string(c.Target)); err != nil {
		add("--kill: %v", err)
	}
	if c.Sampling != SamplingGreedy && c.Sampling != SamplingSeeded {
		add("--sampling must be greedy or seeded, not %q", c.Sampling)
	}
	if c.Protection != client.ProtectionSync && c.Protection != client.ProtectionAsync {
		add("--protection must be sync or async, not %q", c.Protection)
	}
	return errors.Join(problems...)
}

// campaign is the work of one RunCampaign.
type campaign struct {
	lab

	cfg   CampaignConfig
	place placer
	tally tally
}

// RunCampaign takes the references, then runs every request with kills, and reports. An error means that the campaign
// could not be carried out; bad outcomes are in the report, and Report.Failure tells whether they are acceptable.
func RunCampaign(ctx context.Context, cl *cluster.Cluster, cfg CampaignConfig) (*Report, error) {
	c := client.New(cl.URL())
	defer c.Close()
	k := &campaign{
		lab:   lab{client: c, cluster: cl, protection: cfg.Protection, counting: true, logf: cfg.Logf},
		cfg:   cfg,
		place: placer{client: c, cluster: cl},
	}
	cfg.Logf("seed %d", cfg.Seed)
	refs, err := k.references(ctx)
	if err != nil {
		return nil, err
	}
	total := len(refs) * cfg.KillsPerPrompt
	for run := range cfg.KillsPerPrompt {
		for first := 0; first < len(refs); first += cfg.Streams {
			group := refs[first : first+cfg.Streams]
			if err := k.run(ctx, group, first, run); err != nil {
				return nil, fmt.Errorf("run %d of %d: %w", k.tally.runs+1, total, err)
			}
			cfg.Logf("%d of %d runs: %d identical, %d continued, %d redrawn", k.tally.runs, total, k.tally.identical, k.tally.continued, k.tally.redrawn)
		}
	}
	return k.tally.report(cfg, refs), nil
}

// references takes the reference of every prompt.
func (k *campaign) references(ctx context.Context) ([]*reference, error) {
	model, err := k.client.Model(ctx)
	if err != nil {
		return nil, err
	}
	k.place.model = model
	lib, err := openCorpus()
	if err != nil {
		return nil, err
	}
	s, err := measureScale(ctx, k.client, model, lib)
	if err != nil {
		return nil, err
	}
	var refs []*reference
	prompts := makePrompts(k.cfg.Seed, k.cfg.Prompts, k.cfg.Streams, k.cfg.Sampling, model, lib, s)
	for i, p := range prompts {
		begun := time.Now()
		ref, err := takeReference(ctx, k.client, k.cluster, p, lib, s)
		if err != nil {
			return nil, fmt.Errorf("prompt %d: %w", i+1, err)
		}
		k.cfg.Logf("%6.2f s  reference %d of %d: %s, %d prompt and %d output tokens, %.1f ms a token, equal on all nodes",
			time.Since(begun).Seconds(), i+1, len(prompts), p.kind, ref.transcript.Usage.PromptTokens, ref.tokens(), milliseconds(ref.step))
		refs = append(refs, ref)
	}
	return refs, nil
}

// run kills once in a group of streams, drawing again while the primary had already finished.
func (k *campaign) run(ctx context.Context, group []*reference, first, run int) error {
	uneven := 0
	for try := 0; try < maxRedraws; {
		// Each node is killed as often as the other.
		nodes := k.cluster.Nodes()
		victim := nodes[k.tally.groups%len(nodes)]
		if k.cfg.Streams == 1 {
			k.place.last = "" // the kill before made the router forget
			if err := k.place.steer(ctx, victim); err != nil {
				return err
			}
		}
		seen, err := k.disturb(ctx, group, killing{target: k.cfg.Target, prefer: victim, draw: func(ref *reference) Draw {
			return drawKill(k.cfg.Seed, first, run, try, ref.tokens(), ref.step)
		}})
		if errors.Is(err, errUneven) && uneven < maxRedraws {
			uneven++
			k.logf("streams were not spread evenly over the nodes: placed again")
			continue
		}
		if err != nil {
			return err
		}
		for i := range seen.outcomes {
			k.logf("%s", seen.describe(i))
		}
		if !seen.redraw {
			paths, err := keepEvidence(k.cluster.Dir(), k.cfg.Seed, k.cfg.Protection, k.tally.runs+1, seen)
			for _, path := range paths {
				k.logf("evidence: %s", path)
			}
			k.tally.add(seen)
			return err
		}
		try++
		k.tally.redrawn++
		k.logf("the primary had already finished: drawn again")
	}
	return fmt.Errorf("no kill met a running primary in %d draws", maxRedraws)
}
