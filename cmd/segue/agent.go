// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/seguekv/segue/agent"
	"github.com/seguekv/segue/engines/link"
	"github.com/seguekv/segue/engines/llamacpp"
	"github.com/seguekv/segue/transfer"
)

func newAgentCommand() *cobra.Command {
	var file string
	var set []string
	c := &cobra.Command{
		Use:   "agent",
		Short: "Run a node: an engine and the agent beside it",
		Long: `Run a node. The agent starts the engine's host as a child process, runs sessions on it, replicates them to
the holders that the router assigns, and holds and continues sessions of other nodes.

It prints one line with its addresses on stdout when it listens, and logs to stderr.`,
		Example: `  segue agent --id a --engine llamacpp --model model.gguf --llama-lib ./llama.cpp
  segue agent --id b --engine sim --listen 127.0.0.1:0 --admin 127.0.0.1:0
  segue agent --config segue.yaml --set agent.engine.threads=2`,
		Args: cobra.NoArgs,
	}
	flags := c.Flags()
	flags.StringVar(&file, "config", "", "configuration `file` (segue.example.yaml shows every key)")
	flags.StringArrayVar(&set, "set", nil, "override one `key=value` of the configuration; repeatable")
	insecure := flags.Bool("insecure-plaintext", false, "allow listening beyond loopback, unencrypted and unauthenticated")
	direct := newOverrides(flags, []overrideFlag{
		{"id", "agent.id", "name of the node", true},
		{"listen", "agent.listen", "gRPC address, HOST:PORT; port 0 picks one", true},
		{"admin", "agent.admin", "HTTP address for health, metrics and sessions", true},
		{"engine", "agent.engine.kind", "llamacpp or sim", true},
		{"model", "agent.engine.model", "GGUF file", true},
		{"llama-lib", "agent.engine.library", "directory with libllama.so", true},
		{"threads", "agent.engine.threads", "compute threads of the engine", false},
		{"contexts", "agent.engine.contexts", "sessions at once", false},
		{"reserved", "agent.engine.reserved_for_takeover", "contexts that only takeovers get", false},
		{"snapshot-memory", "agent.snapshot_memory", "memory for snapshots, for example 1GiB", false},
	})
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := load(file, os.Environ(), append(set, direct()...))
		if err != nil {
			return usageError(err)
		}
		cfg.Agent.InsecurePlaintext = *insecure
		if err := cfg.validateAgent(); err != nil {
			return usageError(fmt.Errorf("configuration:\n%w", err))
		}
		return runAgent(c.Context(), c, cfg)
	}
	return c
}

// engineGrace is how long runs may take to end before their engine's host is stopped under them.
const engineGrace = 5 * time.Second

// runAgent builds the agent and runs it with its engine's host until ctx ends.
//
// Order at the end: the agent first, so that sessions end with a reason while the engine still answers; then
// the host, whose link closes.
func runAgent(ctx context.Context, c *cobra.Command, cfg config) error {
	log := slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
	command, err := engineCommand(cfg.Agent.Engine)
	if err != nil {
		return err
	}
	process := link.NewProcess(link.ProcessConfig{Command: command, Stderr: c.ErrOrStderr(), Log: log})
	reg := prometheus.NewRegistry()
	deps := agent.Deps{Host: engineHost{process}, Dial: transfer.DialOptions(), Registerer: reg, Gatherer: reg, Log: log}
	if err := cfg.Agent.GPU.apply(&deps, log); err != nil {
		return err
	}
	a, err := agent.New(cfg.agent(), deps)
	if err != nil {
		return err
	}
	var l agent.Listeners
	if l.GRPC, err = listen("agent.listen", cfg.Agent.Listen); err != nil {
		return err
	}
	if l.Admin, err = listen("agent.admin", cfg.Agent.Admin); err != nil {
		_ = l.GRPC.Close()
		return err
	}
	fmt.Fprintf(c.OutOrStdout(), "segue agent: id=%s listen=%s admin=%s\n", cfg.Agent.ID, l.GRPC.Addr(), l.Admin.Addr())

	hostCtx, stopHost := context.WithCancel(context.WithoutCancel(ctx))
	defer stopHost()
	// A hung engine never ends its runs: then the host goes first.
	defer context.AfterFunc(ctx, func() { time.AfterFunc(engineGrace, stopHost) })()
	var g errgroup.Group
	g.Go(func() error { return process.Run(hostCtx) })
	g.Go(func() error {
		defer stopHost()
		return a.Run(ctx, l)
	})
	return g.Wait()
}

// engineCommand is the command line of the engine's host.
func engineCommand(e engineConfig) ([]string, error) {
	if e.Kind == "sim" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find own binary: %w", err)
		}
		return append([]string{self, "engine"}, simArgs(e.sim())...), nil
	}
	host, err := llamacpp.FindHost()
	if err != nil {
		return nil, err
	}
	if err := llamacpp.Check(e.Config); err != nil {
		return nil, err
	}
	return append([]string{host}, e.Args()...), nil
}

// engineHost is the engine's process as the agent sees it.
type engineHost struct{ *link.Process }

func (h engineHost) Current() (agent.LiveEngine, error) {
	e, err := h.Process.Current()
	if err != nil {
		return nil, err
	}
	return e, nil
}

// listen opens addr and explains a failure by the key that set it.
func listen(key, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: choose another address, or port 0 for a free port", key, err)
	}
	return l, nil
}
