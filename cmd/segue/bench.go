// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/seguekv/segue/bench"
	"github.com/seguekv/segue/bench/cluster"
)

func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what protection costs and what it is worth",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBenchOverheadCommand(), newBenchFaultsCommand(), newBenchRouterCommand(), newBenchHealthCommand())
	return cmd
}

// overheadFlags are the flags of `segue bench overhead`.
type overheadFlags struct {
	local          localCluster
	json           string
	rounds, tokens int
	contexts       []int
	seed           uint64
}

// Defaults per engine, used where a flag is not given.
const (
	simRounds, simTokens, simPrompt = 7, 256, 512
	llamaRounds, llamaTokens        = 5, 64
)

func newBenchOverheadCommand() *cobra.Command {
	f := &overheadFlags{}
	cmd := &cobra.Command{
		Use:   "overhead",
		Short: "Compare tokens per second with protection off, async and sync",
		Long: `Starts two nodes and a router on this machine, all on free ports, and streams one request at a time. Each round has one
request per mode of protection, in rotating order, all served by the same node; nodes take turns. Tokens are counted at
the HTTP client, between the first and the last. Figures are medians over the rounds; overhead is 1 − ratio to mode off.
cpu_s_per_1k_tokens is the processor time of all processes while tokens flow.

Unless told otherwise: with sim, 7 rounds of 512 prompt and 256 output tokens; with llamacpp, 5 rounds of 64 output
tokens at each of 100, 1000 and 3000 prompt tokens. --contexts gives one result per length.

Exit codes: 0 measured, 1 not possible, 2 usage, 130 interrupted.`,
		Example: `  segue bench overhead --engine sim --step 7ms --kv-bytes-per-token 131072 --json -
  segue bench overhead --engine llamacpp --contexts 100,1000,3000 --json overhead.json`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	f.local.register(flags, cluster.EngineSim, 7*time.Millisecond, 128<<10)
	flags.StringVar(&f.json, "json", "-", "where the report goes: - is standard output")
	flags.IntVar(&f.rounds, "rounds", 0, "rounds (0 = the engine's default)")
	flags.IntVar(&f.tokens, "tokens", 0, "output tokens per request (0 = the engine's default)")
	flags.IntSliceVar(&f.contexts, "contexts", nil, "prompt lengths in tokens, measured one after the other")
	flags.Uint64Var(&f.seed, "seed", 1, "seed of the prompts")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return f.run(cmd) }
	return cmd
}

// config fills in the engine's defaults.
func (f *overheadFlags) config(logf func(string, ...any)) bench.OverheadConfig {
	cfg := bench.OverheadConfig{
		Rounds: f.rounds, Tokens: f.tokens, Contexts: f.contexts, ByContext: len(f.contexts) > 0, Seed: f.seed, Logf: logf,
	}
	rounds, tokens, contexts := simRounds, simTokens, []int{simPrompt}
	if f.local.engine.Kind == cluster.EngineLlamaCPP {
		rounds, tokens, contexts = llamaRounds, llamaTokens, []int{100, 1000, 3000}
		cfg.ByContext = true
	}
	if cfg.Rounds == 0 {
		cfg.Rounds = rounds
	}
	if cfg.Tokens == 0 {
		cfg.Tokens = tokens
	}
	if len(cfg.Contexts) == 0 {
		cfg.Contexts = contexts
	}
	return cfg
}

func (f *overheadFlags) run(cmd *cobra.Command) error {
	cfg := f.config(logTo(cmd.ErrOrStderr()))
	if err := errors.Join(cfg.Validate(), f.local.validate()); err != nil {
		return usageError(err)
	}
	const usual, slack, unit = 4096, 16, 256 // the agents' usual context holds shorter requests
	if need := slices.Max(cfg.Contexts) + cfg.Tokens + slack; need > usual {
		f.local.engine.ContextLength = (need + unit - 1) / unit * unit
	}
	return f.local.run(cmd, cmd.ErrOrStderr(), func(ctx context.Context, cl *cluster.Cluster) error {
		report, err := bench.RunOverhead(ctx, cl, cfg)
		if err != nil {
			return err
		}
		return writeJSON(cmd, f.json, report)
	})
}
