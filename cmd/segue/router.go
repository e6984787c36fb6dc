// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/fleet"
)

func newRouterCommand() *cobra.Command {
	var file string
	var set, agents []string
	c := &cobra.Command{
		Use:   "router",
		Short: "Serve clients from a fleet of nodes",
		Long: `Serve OpenAI-compatible clients from a fleet of nodes. The router places requests, publishes tokens through
one gate per session, and when a node fails lets the session's holder continue.

It prints one line with its addresses on stdout when it listens, and logs to stderr.`,
		Example: `  segue router --agent a=127.0.0.1:7070 --agent b=127.0.0.1:7080
  segue router --config segue.yaml --protection async
  curl -N http://127.0.0.1:8080/v1/chat/completions -d '{"model":"…","stream":true,"messages":[{"role":"user","content":"Hi"}]}'`,
		Args: cobra.NoArgs,
	}
	flags := c.Flags()
	flags.StringVar(&file, "config", "", "configuration `file` (segue.example.yaml shows every key)")
	flags.StringArrayVar(&set, "set", nil, "override one `key=value` of the configuration; repeatable")
	flags.StringArrayVar(&agents, "agent", nil, "an agent as `ID=ADDR`, instead of router.agents; repeatable")
	direct := newOverrides(flags, []overrideFlag{
		{"listen", "router.listen", "address for clients, HOST:PORT; port 0 picks one", true},
		{"admin", "router.admin", "address for health, metrics and sessions", true},
		{"protection", "router.protection", "sync, async or off", true},
	})
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := load(file, os.Environ(), append(set, direct()...))
		if err != nil {
			return usageError(err)
		}
		if len(agents) > 0 {
			if cfg.Router.Agents, err = members(agents); err != nil {
				return usageError(err)
			}
		}
		if err := cfg.Router.Validate(); err != nil {
			return usageError(fmt.Errorf("configuration:\n%w", err))
		}
		return runRouter(c.Context(), c, cfg.Router)
	}
	return c
}

func runRouter(ctx context.Context, c *cobra.Command, cfg router.Config) error {
	reg := prometheus.NewRegistry()
	r, err := router.New(cfg, router.Deps{
		Log:        slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil)),
		Registerer: reg, Gatherer: reg,
		Listening: func(client, admin net.Addr) {
			fmt.Fprintf(c.OutOrStdout(), "segue router: listen=%s admin=%s\n", client, admin)
		},
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// members reads agents given as ID=ADDR.
func members(list []string) ([]fleet.Member, error) {
	var out []fleet.Member
	for _, a := range list {
		id, addr, ok := strings.Cut(a, "=")
		if !ok || id == "" || addr == "" {
			return nil, fmt.Errorf("--agent %q: want ID=ADDR, for example a=127.0.0.1:7070", a)
		}
		out = append(out, fleet.Member{ID: id, Addr: addr})
	}
	return out, nil
}
