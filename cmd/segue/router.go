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
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/fleet"
)

func newRouterCommand() *cobra.Command {
	var file string
	var set, agents, upstreams []string
	c := &cobra.Command{
		Use:   "router",
		Short: "Serve clients from a fleet of nodes",
		Long: `Serve OpenAI-compatible clients from a fleet of nodes. The router places requests, publishes tokens through
one gate per session, and when a node fails lets the session's holder continue.

Any OpenAI-compatible server can be an upstream, too. What runs there can't be continued elsewhere: before the first
content a failed request is repeated on another replica, after it the answer ends with an honest error.

It prints one line with its addresses on stdout when it listens, and logs to stderr.`,
		Example: `  segue router --agent a=127.0.0.1:7070 --agent b=127.0.0.1:7080
  segue router --config segue.yaml --protection async
  segue router --upstream v1=http://127.0.0.1:8000 --upstream v2=http://127.0.0.1:8001 --journal /var/lib/segue/journal.db
  curl -N http://127.0.0.1:8080/v1/chat/completions -d '{"model":"…","stream":true,"messages":[{"role":"user","content":"Hi"}]}'`,
		Args: cobra.NoArgs,
	}
	flags := c.Flags()
	flags.StringVar(&file, "config", "", "configuration `file` (segue.example.yaml shows every key)")
	flags.StringArrayVar(&set, "set", nil, "override one `key=value` of the configuration; repeatable")
	flags.StringArrayVar(&agents, "agent", nil, "an agent as `ID=ADDR`, instead of router.agents; repeatable")
	flags.StringArrayVar(&upstreams, "upstream", nil, "an OpenAI-compatible server as `ID=URL`, instead of router.upstreams; repeatable")
	insecure := flags.Bool("insecure-plaintext", false, "allow listening and dialling beyond loopback, unencrypted and unauthenticated")
	direct := newOverrides(flags, []overrideFlag{
		{"listen", "router.listen", "address for clients, HOST:PORT; port 0 picks one", true},
		{"admin", "router.admin", "address for health, metrics and sessions", true},
		{"protection", "router.protection", "sync, async or off", true},
		{"journal", "router.journal.path", "file of the request journal; without it the journal is kept in memory", true},
		{"keys", "router.keys", "file with clients' API keys (segue key new makes them)", true},
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
		if len(upstreams) > 0 {
			if cfg.Router.Upstreams, err = servers(upstreams); err != nil {
				return usageError(err)
			}
		}
		cfg.Router.InsecurePlaintext = *insecure
		if err := cfg.Router.Validate(); err != nil {
			return usageError(fmt.Errorf("configuration:\n%w", err))
		}
		return runRouter(c.Context(), c, cfg.Router)
	}
	return c
}

func runRouter(ctx context.Context, c *cobra.Command, cfg router.Config) error {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	log := slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
	if cfg.InsecurePlaintext {
		log.Warn("INSECURE: connections may be neither encrypted nor authenticated (--insecure-plaintext)")
	}
	if cfg.Journal.Path == "" {
		log.Warn("the journal is kept in memory: what becomes of requests is forgotten with this process; set router.journal.path to keep it")
	}
	r, err := router.New(cfg, router.Deps{
		Log:        log,
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

// servers reads upstreams given as ID=URL.
func servers(list []string) ([]router.Upstream, error) {
	var out []router.Upstream
	for _, u := range list {
		id, url, ok := strings.Cut(u, "=")
		if !ok || id == "" || url == "" {
			return nil, fmt.Errorf("--upstream %q: want ID=URL, for example v1=http://127.0.0.1:8000", u)
		}
		out = append(out, router.Upstream{ID: id, URL: url})
	}
	return out, nil
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
