// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/seguekv/segue/engines/link"
	"github.com/seguekv/segue/engines/sim"
)

func newEngineCommand() *cobra.Command {
	cfg := sim.DefaultConfig()
	c := &cobra.Command{
		Use:   "engine",
		Short: "Host the sim engine for an agent (agents start it)",
		Long: `Host the sim engine: a deterministic pseudo-model with real bytes, for tests of faults and scale. An agent
with engine kind "sim" starts it with the engine link on file descriptor 3.`,
		Example: "  segue agent --engine sim",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			e, err := sim.New(cfg)
			if err != nil {
				return usageError(err)
			}
			// The terminal interrupts the whole process group: the agent decides when its engine ends.
			return link.ServeInherited(context.WithoutCancel(c.Context()), e)
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Model, "model", cfg.Model, "name for clients")
	f.Uint64Var(&cfg.SeedOfWeights, "seed-of-weights", cfg.SeedOfWeights, "stands for the weights")
	f.DurationVar(&cfg.Step, "step", cfg.Step, "time of a decode step")
	f.DurationVar(&cfg.PrefillToken, "prefill-token", cfg.PrefillToken, "time per prompt token")
	f.IntVar(&cfg.KVBytesPerToken, "kv-bytes-per-token", cfg.KVBytesPerToken, "size of a token row")
	f.IntVar(&cfg.Layers, "layers", cfg.Layers, "layers")
	f.IntVar(&cfg.ContextLength, "context-length", cfg.ContextLength, "tokens of prompt and output together")
	f.IntVar(&cfg.Contexts, "contexts", cfg.Contexts, "runs at once")
	f.IntVar(&cfg.Chunk, "chunk", cfg.Chunk, "prompt tokens per prefill chunk")
	f.IntVar(&cfg.Threads, "threads", cfg.Threads, "threads in the fingerprint")
	f.BoolVar(&cfg.Verify, "verify", cfg.Verify, "read the whole cache at every step")
	f.IntVar(&cfg.EOGEvery, "eog-every", cfg.EOGEvery, "about one in so many tokens ends a generation; 0 = never")
	return c
}

// simArgs are the flags that make newEngineCommand's configuration c.
func simArgs(c sim.Config) []string {
	return []string{
		"--model=" + c.Model,
		"--seed-of-weights=" + strconv.FormatUint(c.SeedOfWeights, 10),
		"--step=" + c.Step.String(),
		"--prefill-token=" + c.PrefillToken.String(),
		"--kv-bytes-per-token=" + strconv.Itoa(c.KVBytesPerToken),
		"--layers=" + strconv.Itoa(c.Layers),
		"--context-length=" + strconv.Itoa(c.ContextLength),
		"--contexts=" + strconv.Itoa(c.Contexts),
		"--chunk=" + strconv.Itoa(c.Chunk),
		"--threads=" + strconv.Itoa(c.Threads),
		"--verify=" + strconv.FormatBool(c.Verify),
		"--eog-every=" + strconv.Itoa(c.EOGEvery),
	}
}
