// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/seguekv/segue/bench"
	"github.com/seguekv/segue/bench/cluster"
	"github.com/seguekv/segue/health"
)

// benchHealthFlags are the flags of `segue bench health`.
type benchHealthFlags struct {
	cfg          bench.HealthConfig
	readyTimeout time.Duration
	json         string
}

func newBenchHealthCommand() *cobra.Command {
	f := &benchHealthFlags{}
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Measure how soon a fault is known, and that a busy engine is never called sick",
		Long: `First --hours of work are simulated, on engines that show what vLLM, SGLang and llama-server show, and watched with the
default settings: decoding, a queue that is full for a long time, long prompts in pieces, and long prompts in one step (the longest of them
known as the watcher's own). Each engine hangs in the end.

false_alarms: how often an engine that worked was held for hung, dead, cut off or degraded.
probes_while_busy: probes that met somebody's work.
naive: the same of a check that sends a chat request every 5 minutes, waits for 45 s, and takes 5 failures in a row for a hang.
hangs_found: of hangs_played; hang_verdict_s is how long they took, in seconds.

Then two nodes and a router are started on this machine, with the sim engine and the default settings, and faults are made,
--rounds of each kind, one at a time.

verdict_ms: from the fault until the router's GET /v1/agents has the verdict.
  process_death      kill -9 of an engine host that decodes                          dead
  connection_cut     all connections between a second router and an agent are reset  cut_off
  connection_silent  they stay open and carry nothing                                cut_off
  hang_decode        SIGSTOP of an engine host that decodes, after --warm-up         hung
  hang_prefill       the same while it computes a prompt                             hung

Targets are 300 ms for death and cut, 3 s for hangs, of p99. Whether they are met is told and depends on how busy the machine is.

Exit codes: 0 measured, 1 false alarms, probes while busy, faults without a verdict, or not possible, 2 usage, 130 interrupted.`,
		Example: `  segue bench health --json -
  segue bench health --rounds 30 --hours 100 --json health.json`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.IntVar(&f.cfg.Rounds, "rounds", 6, "faults of each kind")
	flags.Float64Var(&f.cfg.Hours, "hours", 10, "hours of work that are simulated")
	flags.DurationVar(&f.cfg.Warm, "warm-up", 5*time.Second, "how long an engine works before it hangs")
	flags.DurationVar(&f.cfg.Step, "step", 25*time.Millisecond, "time of one decode step of sim")
	flags.Uint64Var(&f.cfg.Seed, "seed", 1, "seed of the simulated work")
	flags.DurationVar(&f.readyTimeout, "ready-timeout", 60*time.Second, "how long each start or restart may take")
	flags.StringVar(&f.json, "json", "-", "where the report goes: - is standard output")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return f.run(cmd) }
	return cmd
}

func (f *benchHealthFlags) run(cmd *cobra.Command) error {
	cfg := f.cfg
	cfg.Detector, cfg.Logf = health.Defaults(), logTo(cmd.ErrOrStderr())
	if err := cfg.Validate(); err != nil {
		return usageError(err)
	}
	local := localCluster{engine: cfg.Engine(), readyTimeout: f.readyTimeout}
	if err := local.validate(); err != nil {
		return usageError(err)
	}
	var err error
	if cfg.Binary, err = os.Executable(); err != nil {
		return fmt.Errorf("find own program file: %w", err)
	}
	report, err := bench.SimulateHealth(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	return local.run(cmd, cmd.ErrOrStderr(), func(ctx context.Context, cl *cluster.Cluster) error {
		if err := bench.MeasureHealth(ctx, cl, cfg, report); err != nil {
			return err
		}
		if err := writeJSON(cmd, f.json, report); err != nil {
			return err
		}
		return report.Failure()
	})
}
