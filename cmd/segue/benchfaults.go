// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/seguekv/segue/bench"
	"github.com/seguekv/segue/bench/cluster"
)

// faultsFlags are the flags of `segue bench faults`.
type faultsFlags struct {
	local     localCluster
	cfg       bench.FaultsConfig
	log, json string
}

func newBenchFaultsCommand() *cobra.Command {
	f := &faultsFlags{}
	cmd := &cobra.Command{
		Use:   "faults",
		Short: "Kill engines, agents and nodes many times and judge every answer",
		Long: `Starts clusters of three nodes and a router on this machine, all on free ports, and streams requests with a kill -9 in
each: of the engine, the agent, or both. Every answer is compared with the one that nobody interrupted, taken before
with protection off, once on each node. Prompts have 16 to 1,500 tokens, log-uniform, among them Chinese, Japanese and
emoji; they take turns through greedy and seeded sampling, penalties, stop strings and logit bias. The kill comes at
10–90 % of the answer, uniform, plus up to one step. After one kill in eleven the standby is killed too: its engine,
agent or node while it takes over, or once a third node covers the session. Each cluster has one stream at a time and
is whole before each kill.

With --log each kill becomes one JSON line, and the same command goes on after the last complete line, whatever ended
it; a higher --kills adds to a finished campaign. The summary is one JSON object; progress goes to standard error.
wrong_rate_upper95 is the one-sided 95 % confidence bound of the rate of wrong answers.

Exit codes: 0 no wrong answer, no unexpected error and, with sync, at least 95 % of the kills continued; 1 not so or
not possible, 2 usage, 130 interrupted.`,
		Example: `  segue bench faults --engine llamacpp --kills 300 --json out.json
  segue bench faults --kills 1000 --log faults.jsonl --json faults.json
  segue bench faults --engine sim --step 5ms --kills 40 --json -`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	f.local.register(flags, cluster.EngineLlamaCPP, 0, 0)
	flags.IntVar(&f.cfg.Kills, "kills", 300, "kills in the end, those in the log included")
	flags.IntVar(&f.cfg.KillsPerPrompt, "kills-per-prompt", 10, "kills per prompt and reference, at least 5")
	flags.IntVar(&f.cfg.Clusters, "clusters", 2, "clusters at work at the same time")
	flags.StringVar(&f.cfg.Protection, "protection", "sync", "sync or async")
	flags.Uint64Var(&f.cfg.Seed, "seed", 1, "seed of prompts, kill moments and everything else that is drawn")
	flags.DurationVar(&f.cfg.Budget, "budget", 0, "end after this time with what there is (0 = never)")
	flags.StringVar(&f.log, "log", "", "`file` with one JSON line per kill, gone on with if it exists")
	flags.StringVar(&f.json, "json", "-", "where the summary goes: - is standard output")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return f.run(cmd) }
	return cmd
}

func (f *faultsFlags) run(cmd *cobra.Command) error {
	f.cfg.Logf, f.cfg.Engine = logTo(cmd.ErrOrStderr()), f.local.engine.Kind
	if f.log != "" {
		f.cfg.Evidence = f.log + ".evidence"
	}
	if err := errors.Join(f.cfg.Validate(), f.local.validate()); err != nil {
		return usageError(err)
	}
	log, err := bench.OpenFaultLog(f.log, f.cfg.Params())
	if err != nil {
		return usageError(err)
	}
	defer log.Close()
	if log.Torn > 0 {
		f.cfg.Logf("cut off a torn last line of %d bytes", log.Torn)
	}
	work := bench.NewFaults(f.cfg, log)
	f.cfg.Logf("seed %d, %d of %d kills to do", f.cfg.Seed, work.Left(), f.cfg.Kills)
	if work.Left() > 0 {
		if err := f.work(cmd, work); err != nil {
			f.cfg.Logf("stopped with %d of %d kills to do; %s", work.Left(), f.cfg.Kills, f.howToGoOn())
			return err
		}
	}
	report := work.Report()
	if err := writeJSON(cmd, f.json, report); err != nil {
		return err
	}
	if left := work.Left(); left > 0 {
		f.cfg.Logf("the budget is used up with %d of %d kills to do; %s", left, f.cfg.Kills, f.howToGoOn())
	}
	return report.Failure()
}

func (f *faultsFlags) howToGoOn() string {
	if f.log == "" {
		return "without --log the next run begins anew"
	}
	return "the same command goes on from " + f.log
}

// work runs the clusters until no kill is left.
func (f *faultsFlags) work(cmd *cobra.Command, work *bench.Faults) error {
	return withLogs(cmd, func(binary, dir string) error {
		all, ctx := errgroup.WithContext(cmd.Context())
		for i := range f.cfg.Clusters {
			name := strconv.Itoa(i + 1)
			all.Go(func() error {
				own := filepath.Join(dir, name)
				if err := os.Mkdir(own, 0o700); err != nil {
					return fmt.Errorf("make directory for logs: %w", err)
				}
				return cluster.Run(ctx, cluster.Config{
					Binary: binary, Dir: own, Nodes: bench.FaultNodes(), Engine: f.local.engine, ReadyTimeout: f.local.readyTimeout,
					OnStep: func(s cluster.Step) { f.cfg.Logf("cluster %s: %v", name, s) },
					Logf:   func(format string, args ...any) { f.cfg.Logf("cluster "+name+": "+format, args...) },
				}, work.Work)
			})
		}
		return all.Wait()
	})
}
