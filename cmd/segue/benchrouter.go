// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/seguekv/segue/bench"
)

// benchRouterFlags are the flags of `segue bench router`.
type benchRouterFlags struct {
	cfg     bench.RouterConfig
	seconds float64
	quick   bool
	json    string
}

func newBenchRouterCommand() *cobra.Command {
	f := &benchRouterFlags{}
	cmd := &cobra.Command{
		Use:   "router",
		Short: "Measure what the router costs per delta",
		Long: `Starts a router as a process of its own in front of an upstream that this program plays: an agent (gRPC, protection
off) or an OpenAI-compatible server (server-sent events), each by itself. The journal is a file, the log goes to
a file. Every token is one delta, one event and one write.

added_latency_ms: one stream at 50 deltas per second, alternately straight from the upstream (gRPC or HTTP, as the router
would call it) and through the router, --rounds times each, --seconds in all for each way. A delta's latency is from just
before the upstream writes it to when the client has read it, by the same clock; the first 10 of each stream are
left out. p50 is the median of the latencies through the router minus the median of the direct ones; p99 is
the difference of the 99th percentiles.

deltas_per_cpu_s: --streams at once at --rate deltas per second each. After a warm-up, deltas that clients received in
--seconds, divided by the user and system time of the router's process in them (from /proc).

allocs_per_delta: heap objects that the router's process made in that time, by its own metrics, divided by
the deltas; null when its metrics don't tell.

streams: --idle-streams open at once, each with a delta per second, before a router process of their own. Its resident memory
some seconds after all of them are open and --idle-for later, its goroutines before, while and after, its CPU-seconds per second.

slow: --slow-clients that send a request and read nothing, while the upstream sends as fast as it may, before a router
process with client_stall 2s: the most memory it had, and how many of them it cut for that.

A stream that fails or misses a delta fails the whole. Upstream and clients run on the same machine: figures mean little
while anything else does.

Exit codes: 0 measured, 1 not possible, 2 usage, 130 interrupted.`,
		Example: `  segue bench router --json -
  segue bench router --kinds openai --streams 256 --rate 50 --json router.json`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.Float64Var(&f.seconds, "seconds", 20, "length of each measurement in seconds")
	flags.IntVar(&f.cfg.Streams, "streams", 64, "streams at once under load")
	flags.IntVar(&f.cfg.Rate, "rate", 200, "deltas per second of each of them (0 = as fast as the router takes them)")
	flags.IntVar(&f.cfg.Rounds, "rounds", 10, "streams of latency per way")
	flags.IntVar(&f.cfg.IdleStreams, "idle-streams", 1000, "streams with a delta per second that are open at once (0 = leave this out)")
	flags.DurationVar(&f.cfg.IdleFor, "idle-for", 30*time.Second, "how long they stay open once all of them are")
	flags.IntVar(&f.cfg.SlowClients, "slow-clients", 200, "clients that read nothing (0 = leave this out)")
	flags.StringSliceVar(&f.cfg.Kinds, "kinds", []string{bench.RouterAgent, bench.RouterOpenAI}, "kinds of upstream, measured one after the other")
	flags.BoolVar(&f.quick, "quick", false, "a few seconds that show that it works, instead of the lengths and numbers above")
	flags.StringVar(&f.json, "json", "-", "where the report goes: - is standard output")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return f.run(cmd) }
	return cmd
}

func (f *benchRouterFlags) run(cmd *cobra.Command) error {
	if f.quick {
		f.seconds, f.cfg.Rounds, f.cfg.Rate = 1, 2, 100
		f.cfg.IdleStreams, f.cfg.IdleFor, f.cfg.SlowClients = 50, 2*time.Second, 10
	}
	f.cfg.Seconds, f.cfg.Logf = time.Duration(f.seconds*float64(time.Second)), logTo(cmd.ErrOrStderr())
	if err := f.cfg.Validate(); err != nil {
		return usageError(err)
	}
	return withLogs(cmd, func(binary, dir string) error {
		f.cfg.Binary, f.cfg.Dir = binary, dir
		report, err := bench.RunRouter(cmd.Context(), f.cfg)
		if err != nil {
			return err
		}
		return writeJSON(cmd, f.json, report)
	})
}
