// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/seguekv/segue/bench"
	"github.com/seguekv/segue/bench/cluster"
)

// demoFlags are the flags of `segue demo`.
type demoFlags struct {
	local                        localCluster
	json                         string
	prompts, kills, streams      int
	kill, sampling, prot, prompt string
	seed                         uint64
	keep                         bool
}

func newDemoCommand() *cobra.Command {
	f := &demoFlags{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Kill a node in mid-stream and see the stream go on",
		Long: `Starts two nodes and a router on this machine, all on free ports, streams one chat request, and kills the node
that serves it with kill -9 in mid-stream. It shows the stream as the client receives it, where the seam is, how long
the pause was, and whether the answer equals the one that nobody interrupted. Everything it started has ended when it
ends.

With --json, --prompts, --kills-per-prompt or --streams it runs a kill campaign instead: many prompts of 16 to 1,500
tokens, each killed several times at random moments, every answer compared with its uninterrupted reference. The report
is one JSON object; progress goes to standard error.

Exit codes: 0 identical (async: never wrong, mostly identical), 1 not so or not possible, 2 usage, 130 interrupted.`,
		Example: `  segue demo
  segue demo --keep                 # afterwards the cluster keeps running for your own requests
  segue demo --engine sim           # without a model
  segue demo --json - --prompts 8 --kills-per-prompt 5 --kill node --sampling seeded
  segue demo --json - --prompts 8 --kills-per-prompt 2 --streams 4 --kill engine --seed 42
  segue demo --json - --kill hang`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	f.local.register(flags, cluster.EngineLlamaCPP, 0, 0)
	flags.StringVar(&f.json, "json", "-", "where the report of a campaign goes: - is standard output")
	flags.IntVar(&f.prompts, "prompts", 4, "campaign: number of different prompts")
	flags.IntVar(&f.kills, "kills-per-prompt", 2, "campaign: kills per prompt")
	flags.IntVar(&f.streams, "streams", 1, "campaign: streams at the same time, spread evenly over the nodes, one kill among them")
	flags.StringVar(&f.kill, "kill", string(cluster.TargetNode), "what gets SIGKILL: node (agent and engine), engine or agent; hang: the engine gets SIGSTOP, and SIGCONT after the takeover")
	flags.StringVar(&f.sampling, "sampling", bench.SamplingSeeded, "greedy or seeded")
	flags.StringVar(&f.prot, "protection", "sync", "sync or async")
	flags.Uint64Var(&f.seed, "seed", 0, "seed of prompts and kill moments (0 = a new one for a campaign; it is printed)")
	flags.StringVar(&f.prompt, "prompt", "", "demo: your own question")
	flags.BoolVar(&f.keep, "keep", false, "demo: keep the cluster running until Ctrl-C")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		campaign := false
		for _, name := range []string{"json", "prompts", "kills-per-prompt", "streams"} {
			campaign = campaign || cmd.Flags().Changed(name)
		}
		if campaign {
			return f.campaign(cmd)
		}
		return f.demo(cmd)
	}
	return cmd
}

func (f *demoFlags) campaign(cmd *cobra.Command) error {
	if f.keep || f.prompt != "" {
		return usageError(errors.New("--keep and --prompt are for the demonstration, not for a campaign"))
	}
	if f.seed == 0 {
		f.seed = drawSeed()
	}
	cfg := bench.CampaignConfig{
		Prompts: f.prompts, KillsPerPrompt: f.kills, Streams: f.streams, Target: cluster.Target(f.kill),
		Sampling: f.sampling, Protection: f.prot, Seed: f.seed, Logf: logTo(cmd.ErrOrStderr()),
	}
	if err := errors.Join(cfg.Validate(), f.local.validate()); err != nil {
		return usageError(err)
	}
	return f.local.run(cmd, cmd.ErrOrStderr(), func(ctx context.Context, cl *cluster.Cluster) error {
		report, err := bench.RunCampaign(ctx, cl, cfg)
		if err != nil {
			return err
		}
		if err := writeJSON(cmd, f.json, report); err != nil {
			return err
		}
		return report.Failure()
	})
}

func (f *demoFlags) demo(cmd *cobra.Command) error {
	out := cmd.OutOrStdout()
	if f.seed == 0 {
		f.seed = 5 // a story worth reading, killed in its middle
	}
	cfg := bench.DemoConfig{
		Target: cluster.Target(f.kill), Sampling: f.sampling, Protection: f.prot, Seed: f.seed, Prompt: f.prompt,
		Out: out, Color: wantsColor(),
	}
	if err := errors.Join(cfg.Validate(), f.local.validate()); err != nil {
		return usageError(err)
	}
	fmt.Fprintf(out, "Two nodes and a router on this machine, engine %s:\n\n", f.local.engine.Kind)
	return f.local.run(cmd, out, func(ctx context.Context, cl *cluster.Cluster) error {
		result, err := bench.RunDemo(ctx, cl, cfg)
		if err != nil {
			if ctx.Err() == nil {
				fmt.Fprintf(out, "\nDEMO FAIL %v\n", err)
			}
			return err
		}
		if !f.keep {
			fmt.Fprint(out, `
Try next:
  segue demo --keep                                     the cluster keeps running, with a curl line for it
  segue demo --kill engine                              or agent: other ways to die
  segue demo --json - --prompts 8 --kills-per-prompt 5  forty kills at random moments, as JSON

`)
		}
		fmt.Fprintln(out, result)
		if !result.Identical {
			return errors.New("the continued stream differs from the uninterrupted one")
		}
		if f.keep {
			return bench.Linger(ctx, cl, out)
		}
		return nil
	})
}

// wantsColor reports whether standard output is a terminal that may be coloured.
func wantsColor() bool {
	info, err := os.Stdout.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""
}
