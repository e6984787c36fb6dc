// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/process"
	"github.com/seguekv/segue/health/restart"
	"github.com/seguekv/segue/health/scrape"
	"github.com/seguekv/segue/health/watch"
)

const (
	// exitUndecided: nothing is known, or it works less than well.
	exitUndecided = 3
	// mostTargets bounds what one process watches.
	mostTargets = 64
	// lookFloor is how long nothing may move for a single look: it doesn't know how long the server's steps take.
	lookFloor = 10 * time.Second
	// mostKey bounds a key file, in bytes.
	mostKey = 4096
)

// healthTarget is one server to look at.
type healthTarget struct {
	url    string
	source watch.Source
	prober watch.Prober
	// kind is what the server was found to be.
	kind func() string
	// process is the server's, on this machine; nil if it isn't known.
	process *process.Process
}

// of adds what is known of the server's process.
func (t healthTarget) of(pid int) (healthTarget, error) {
	p, err := process.Open(pid)
	if err != nil {
		return t, err
	}
	t.process, t.source = p, p.Source(t.source)
	return t, nil
}

func openHealthTarget(f *healthFlags, target, key string) (healthTarget, error) {
	t, err := scrape.New(scrape.Config{URL: target, Kind: scrape.Kind(f.kind), APIKey: key, Model: f.model})
	if err != nil {
		return healthTarget{}, err
	}
	return healthTarget{url: target, source: t, prober: t, kind: func() string { return t.Kind().String() }}, nil
}

// healthFlags are the flags of `segue health`.
type healthFlags struct {
	targets      []string
	kind, model  string
	keyFile      string
	once, watch  bool
	asJSON       bool
	listen       string
	timeout      time.Duration
	interval     time.Duration
	readTimeout  time.Duration
	hangAfter    time.Duration
	idleLimit    time.Duration
	startBudget  time.Duration
	probeTimeout time.Duration
	noProbe      bool
	pid          int
	onHung       string
	onDead       bool
	policy       restart.Policy
	stateDir     string

	// open makes a target of a URL.
	open func(f *healthFlags, target, key string) (healthTarget, error)
}

const healthHelp = `Decide whether inference servers work, without using what is watched: from the counters they publish, vLLM's, SGLang's and
llama-server's. A busy server is never asked for anything but its metrics; an idle one is asked for one token, at most
once per --idle-limit, and not at all with --no-probe. Needs nothing else of Segue.

Verdicts, and exit codes of --once (the worst target counts):
  0  idle, busy, waiting, sleeping, reachable (it answers and tells nothing of its work), watch
  3  unknown, starting, degraded, evacuate
  4  hung (work in flight, and nothing moves), dead, cut_off
Other exit codes: 1 failure, 2 wrong usage, 130 interrupted. --watch runs until it is interrupted, and exits with 0 then.

--on-hung runs a command, with /bin/sh, when the server hangs. Of all watchdogs of a server on this machine that use the same
--state-dir, the one that holds the lock runs it; the others watch, and take over when that one ends. There are pauses between restarts and
a maximum, which a restart of the watchdog doesn't reset. The command gets SEGUE_TARGET, SEGUE_VERDICT and SEGUE_REASONS in
its environment; what it leaves in its process group is killed when it ends: have a service manager start the server.`

func newHealthCommand() *cobra.Command {
	f := &healthFlags{open: openHealthTarget}
	return f.command()
}

func (f *healthFlags) command() *cobra.Command {
	p := restart.Defaults()
	d := health.Defaults()
	c := &cobra.Command{
		Use: "health", Short: "Decide whether inference servers work, and restart one that hangs", Args: cobra.NoArgs,
		Long: healthHelp,
		Example: `  segue health --target http://127.0.0.1:8000
  segue health --target http://gpu1:8000,http://gpu2:30000 --watch --json
  segue health --target http://gpu1:8000 --listen 127.0.0.1:9464
  segue health --target http://127.0.0.1:8000 --on-hung "systemctl restart vllm.service"
  segue health --target http://127.0.0.1:8000 --watch --pid 4711
  segue health --target http://proxy:4000 --kind proxy`,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	flags := c.Flags()
	flags.StringSliceVar(&f.targets, "target", nil, "`URL` of a server, with scheme and port; several separated by commas")
	flags.StringVar(&f.kind, "kind", "auto", "what the servers are: auto, vllm, sglang, llamacpp, openai or proxy")
	flags.StringVar(&f.model, "model", "", "model that a probe names (default: the first one that the server lists)")
	flags.StringVar(&f.keyFile, "api-key-file", "", "`file` with the servers' API key, sent as a bearer token")
	flags.BoolVar(&f.once, "once", false, "look until each target can be judged, print one line for each, and end (the default)")
	flags.BoolVar(&f.watch, "watch", false, "watch until interrupted, and print a line at every change")
	flags.BoolVar(&f.asJSON, "json", false, "print one JSON object per line")
	flags.StringVar(&f.listen, "listen", "", "serve Prometheus metrics at this `address`, below /metrics; implies --watch")
	flags.DurationVar(&f.timeout, "timeout", 40*time.Second, "how long --once may take")
	flags.DurationVar(&f.interval, "interval", d.Interval, "pause between two reads")
	flags.DurationVar(&f.readTimeout, "read-timeout", d.ReadTimeout, "how long one read may take")
	flags.DurationVar(&f.hangAfter, "hang-after", 0, "least time that nothing may move with work in flight (default 2s, 10s until it is known how long steps take and with --once; at least 30s where a long prompt looks like silence, as with vLLM)")
	flags.DurationVar(&f.idleLimit, "idle-limit", d.IdleLimit, "how long after its last token an idle server is trusted without a probe; --once doesn't wait for it")
	flags.DurationVar(&f.startBudget, "start-budget", d.StartBudget, "how long a server may load, and how long after a restart nothing is judged")
	flags.DurationVar(&f.probeTimeout, "probe-timeout", 10*time.Second, "how long a probe may take")
	flags.BoolVar(&f.noProbe, "no-probe", false, "never ask a server for anything")
	flags.IntVar(&f.pid, "pid", 0, "the server's process on this machine, whose end is then known at once; of one target")
	flags.StringVar(&f.onHung, "on-hung", "", "`command` that restarts the server when it hangs; of one target, implies --watch")
	flags.BoolVar(&f.onDead, "on-dead", false, "run the command of --on-hung also for a dead server, which by default is left to what started it")
	flags.IntVar(&f.policy.Max, "restart-max", p.Max, "restarts within --restart-window after which there are none any more")
	flags.DurationVar(&f.policy.Window, "restart-window", p.Window, "see --restart-max")
	flags.DurationVar(&f.policy.Backoff, "restart-backoff", p.Backoff, "least time between two restarts; it doubles with each within --restart-window")
	flags.DurationVar(&f.policy.Timeout, "restart-timeout", p.Timeout, "how long the command may take")
	flags.StringVar(&f.stateDir, "state-dir", "", "`folder` of lock and record of restarts (default /var/lib/segue/health for root, else segue/health in $XDG_STATE_HOME)")
	return c
}

func (f *healthFlags) run(c *cobra.Command) error {
	if err := f.check(); err != nil {
		return usageError(err)
	}
	key, err := f.key()
	if err != nil {
		return err
	}
	targets := make([]healthTarget, len(f.targets))
	for i, u := range f.targets {
		if targets[i], err = f.open(f, u, key); err != nil {
			return usageError(err)
		}
		if f.noProbe {
			targets[i].prober = nil
		}
	}
	if f.pid != 0 {
		if targets[0], err = targets[0].of(f.pid); err != nil {
			return usageError(fmt.Errorf("--pid: %w", err))
		}
		defer targets[0].process.Close()
	}
	out := &healthOutput{w: c.OutOrStdout(), asJSON: f.asJSON}
	if f.watch {
		return f.runWatch(c.Context(), c.ErrOrStderr(), out, targets)
	}
	return f.runOnce(c.Context(), out, targets)
}

// check completes the flags, and names the first one that can't be meant.
func (f *healthFlags) check() error {
	if len(f.targets) == 0 {
		return errors.New("--target is missing: which server, like http://127.0.0.1:8000?")
	}
	if len(f.targets) > mostTargets {
		return fmt.Errorf("--target names %d servers, more than %d: start several processes", len(f.targets), mostTargets)
	}
	for i, t := range f.targets {
		u, err := url.Parse(t)
		if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("--target: number %d isn't a URL like http://127.0.0.1:8000", i+1)
		}
		if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return fmt.Errorf("--target: number %d has more than scheme, host, port and path; a key belongs into --api-key-file", i+1)
		}
		if slices.Contains(f.targets[:i], t) {
			return fmt.Errorf("--target names %s twice", t)
		}
	}
	if f.listen != "" || f.onHung != "" {
		if f.once {
			return errors.New("--once ends after one look: leave it out with --listen and --on-hung")
		}
		f.watch = true
	}
	switch {
	case f.once && f.watch:
		return errors.New("--once and --watch exclude each other")
	case f.pid < 0:
		return fmt.Errorf("--pid is %d: want the number of a process", f.pid)
	case f.pid != 0 && len(f.targets) > 1:
		return errors.New("--pid is the process of one server: start one watchdog per target")
	case f.pid != 0 && f.onHung != "":
		return errors.New("--pid: the server that --on-hung starts has another one: leave it out")
	case f.onDead && f.onHung == "":
		return errors.New("--on-dead needs the command of --on-hung")
	case f.onHung != "" && len(f.targets) > 1:
		return errors.New("--on-hung restarts one server: start one process per target")
	case f.onHung != "" && f.kind == string(scrape.Proxy):
		return errors.New("--on-hung: what is behind a proxy can't be judged through it: name the server itself")
	case f.onHung != "" && f.kind == string(scrape.OpenAI):
		return errors.New("--on-hung: without metrics nothing proves that a server hangs: it takes vllm, sglang or llamacpp")
	case f.hangAfter < 0 || f.hangAfter > 0 && f.hangAfter < 2*f.interval:
		return fmt.Errorf("--hang-after is %v: want at least two pauses of --interval, %v", f.hangAfter, 2*f.interval)
	case f.timeout <= 0:
		return fmt.Errorf("--timeout is %v: want more than 0", f.timeout)
	case f.probeTimeout <= 0:
		return fmt.Errorf("--probe-timeout is %v: want more than 0", f.probeTimeout)
	}
	if _, err := scrape.ParseKind(f.kind); err != nil {
		return fmt.Errorf("--kind: %w", err)
	}
	return f.config().Validate()
}

// config is the detector's.
func (f *healthFlags) config() health.Config {
	cfg := health.Defaults()
	cfg.Interval, cfg.ReadTimeout, cfg.IdleLimit, cfg.StartBudget = f.interval, f.readTimeout, f.idleLimit, f.startBudget
	switch {
	case f.hangAfter > 0:
		cfg.Floor, cfg.Cold = f.hangAfter, f.hangAfter
	case f.watch:
		cfg.Floor = max(cfg.Floor, 2*f.interval)
	default:
		cfg.Floor = max(lookFloor, 2*f.interval)
	}
	if f.hangAfter == 0 {
		cfg.Cold = max(cfg.Cold, cfg.Floor)
	}
	cfg.Ceiling = max(cfg.Ceiling, cfg.Floor)
	if !f.watch { // one look has no past: what is idle is asked at once
		cfg.IdleLimit = f.interval
	}
	return cfg
}

// watcher is the configuration for one target; assessed is called by the watcher's goroutine.
func (f *healthFlags) watcher(t healthTarget, assessed func(health.Assessment)) watch.Config {
	o := &outsider{Source: t.source}
	cfg := watch.Config{
		Health: f.config(), Source: o, ProbeTimeout: f.probeTimeout,
		Assessed: func(a health.Assessment) { assessed(o.temper(a)) },
	}
	if t.prober != nil {
		cfg.Prober = &o.probes
		o.probes.Prober = t.prober
	}
	return cfg
}

// key reads the key file: what is in it is never part of a message.
func (f *healthFlags) key() (string, error) {
	if f.keyFile == "" {
		return "", nil
	}
	file, err := os.Open(f.keyFile)
	if err != nil {
		return "", usageError(fmt.Errorf("--api-key-file: %w", err))
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, mostKey+1))
	if err != nil {
		return "", fmt.Errorf("--api-key-file: %w", err)
	}
	key := strings.TrimSpace(string(b))
	if key == "" || len(b) > mostKey || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", usageError(fmt.Errorf("--api-key-file %s: want one key of printable ASCII characters, at most %d bytes", f.keyFile, mostKey))
	}
	return key, nil
}

// folder is where lock and record are.
func (f *healthFlags) folder() (string, error) {
	if f.stateDir != "" {
		return f.stateDir, nil
	}
	if os.Geteuid() == 0 {
		return "/var/lib/segue/health", nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "segue", "health"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", usageError(fmt.Errorf("--state-dir is needed: %w", err))
	}
	return filepath.Join(home, ".local", "state", "segue", "health"), nil
}
