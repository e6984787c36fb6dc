// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Kinds of upstream that the router bench knows.
const (
	RouterAgent  = "agent"
	RouterOpenAI = "openai"
)

// Bounds of the router bench.
const (
	// routerLatencyRate is the pace of the one stream whose latency is measured, in deltas per second.
	routerLatencyRate = 50
	// routerSettling is how many deltas at the beginning of such a stream are left out: they pay for its set-up.
	routerSettling = 10
	routerLongest  = 10 * time.Minute
	// routerMostSlow is how many ended sessions a router lists.
	routerMostSlow = 1024
)

// RouterConfig says what the router bench measures.
type RouterConfig struct {
	// Kinds of upstream, each measured by itself.
	Kinds []string
	// Seconds is how long deltas are counted under load, and how long the streams of latency last in all, for each of the
	// two ways.
	Seconds time.Duration
	// Streams at once under load.
	Streams int
	// Rate of each of them in deltas per second; 0 is as fast as the router takes them.
	Rate int
	// Rounds of one stream straight from the upstream and one through the router.
	Rounds int
	// IdleStreams are open at once for IdleFor, each with a delta per second; 0 leaves them out.
	IdleStreams int
	IdleFor     time.Duration
	// SlowClients read nothing of streams whose upstream never rests; 0 leaves them out.
	SlowClients int
	// Binary is the segue program, Dir an existing directory for journals and logs.
	Binary, Dir string
	Logf        func(format string, args ...any)
}

// Validate reports every problem in the spelling of the command line.
func (c RouterConfig) Validate() error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Seconds < time.Second || c.Seconds > routerLongest {
		add("--seconds must be 1 to %d, not %v", int(routerLongest.Seconds()), c.Seconds.Seconds())
	}
	if c.Streams < 1 || c.Streams > 4096 {
		add("--streams must be 1 to 4096, not %d", c.Streams)
	}
	if c.Rate < 0 || c.Rate > 100_000 {
		add("--rate must be 0 to 100000 deltas per second, not %d", c.Rate)
	}
	if c.Rounds < 1 || c.Rounds > 1000 {
		add("--rounds must be 1 to 1000, not %d", c.Rounds)
	}
	if c.IdleStreams < 0 || c.IdleStreams > 4096 {
		add("--idle-streams must be 0 to 4096, not %d", c.IdleStreams)
	}
	if c.IdleStreams > 0 && (c.IdleFor < time.Second || c.IdleFor > routerLongest) {
		add("--idle-for must be 1s to %v, not %v", routerLongest, c.IdleFor)
	}
	if c.SlowClients < 0 || c.SlowClients > routerMostSlow {
		add("--slow-clients must be 0 to %d, not %d", routerMostSlow, c.SlowClients)
	}
	if len(c.Kinds) == 0 {
		add("--kinds needs at least one of %s and %s", RouterAgent, RouterOpenAI)
	}
	for i, k := range c.Kinds {
		if k != RouterAgent && k != RouterOpenAI {
			add("--kinds knows %s and %s, not %q", RouterAgent, RouterOpenAI, k)
		}
		if slices.Contains(c.Kinds[:i], k) {
			add("--kinds names %s twice", k)
		}
	}
	return errors.Join(problems...)
}

// deltasPerRound is how many deltas a stream of one round has, those left out included.
func (c RouterConfig) deltasPerRound() int {
	return max(int(c.Seconds.Seconds()*routerLatencyRate)/c.Rounds, 1) + routerSettling
}

// RouterReport is the result of the router bench; its JSON form is a public format.
type RouterReport struct {
	Agent  *RouterCost `json:"agent,omitempty"`
	OpenAI *RouterCost `json:"openai,omitempty"`
	// Seconds, Streams, Rate and Rounds are those of the configuration.
	Seconds float64 `json:"seconds"`
	Streams int     `json:"streams"`
	Rate    int     `json:"rate"`
	Rounds  int     `json:"rounds"`
	// Journal and Protection tell how the routers ran.
	Journal    string `json:"journal"`
	Protection string `json:"protection"`
	CPUs       int    `json:"cpus"`
}

// RouterCost is what a router costs in front of one kind of upstream.
type RouterCost struct {
	// AddedLatencyMS has the differences of the quantiles in Latency.
	AddedLatencyMS Times `json:"added_latency_ms"`
	// DeltasPerCPUSecond counts deltas that clients received per second of processor time of the router's process.
	DeltasPerCPUSecond float64 `json:"deltas_per_cpu_s"`
	// AllocsPerDelta counts heap objects of the router's process; nil when its metrics don't tell them.
	AllocsPerDelta *float64      `json:"allocs_per_delta"`
	Latency        RouterLatency `json:"latency"`
	Load           RouterLoad    `json:"load"`
	// Streams and Slow are nil where they are left out.
	Streams *RouterStreams `json:"streams,omitempty"`
	Slow    *RouterSlow    `json:"slow,omitempty"`
}

// RouterLatency is from emission by the upstream to receipt by the client, in milliseconds.
type RouterLatency struct {
	Direct Times `json:"direct_ms"`
	Router Times `json:"router_ms"`
	// Samples are deltas per way; Rate is that of the one stream per second.
	Samples int `json:"samples"`
	Rate    int `json:"rate"`
}

// RouterLoad is the interval of many streams in which deltas were counted.
type RouterLoad struct {
	Seconds float64 `json:"seconds"`
	// Deltas that clients received in it, and per second. Emitted are those that upstreams wrote: far from Deltas, the
	// interval has work of before it, or left some for later.
	Deltas  int64   `json:"deltas"`
	Emitted int64   `json:"emitted"`
	PerS    float64 `json:"deltas_per_s"`
	CPUS    float64 `json:"router_cpu_s"`
	Streams int     `json:"streams"`
	// Unjournalled reservations of the journal, which took longer than it may: with any, the figures are not those of
	// a router with a journal.
	Unjournalled int64 `json:"unjournalled"`
}

// RunRouter measures each kind with a router process of its own, and ends what it started before it returns. A stream
// that fails or misses a delta is an error.
func RunRouter(ctx context.Context, cfg RouterConfig) (*RouterReport, error) {
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("bench router reads processor times from /proc, which %s doesn't have: run it on Linux", runtime.GOOS)
	}
	report := &RouterReport{
		Seconds: cfg.Seconds.Seconds(), Streams: cfg.Streams, Rate: cfg.Rate, Rounds: cfg.Rounds,
		Journal: "file", Protection: "off", CPUs: runtime.NumCPU(),
	}
	for _, kind := range cfg.Kinds {
		cost, err := routerCost(ctx, cfg, kind)
		if err != nil {
			return nil, fmt.Errorf("upstream of kind %s: %w", kind, err)
		}
		if kind == RouterAgent {
			report.Agent = cost
		} else {
			report.OpenAI = cost
		}
	}
	return report, nil
}

// routerSource is an upstream in this process. Its streams play the script that is current when they begin.
type routerSource interface {
	// flags make a router use it.
	flags() []string
	play(*routerScript)
	// direct streams once without a router and calls received for each delta.
	direct(ctx context.Context, received func()) (int, error)
	close()
}

// routerBench is the work on one kind.
type routerBench struct {
	cfg    RouterConfig
	kind   string
	source routerSource
	router *routerProcess
}

func routerCost(ctx context.Context, cfg RouterConfig, kind string) (*RouterCost, error) {
	b := &routerBench{cfg: cfg, kind: kind}
	var err error
	if kind == RouterAgent {
		b.source, err = newRouterAgent(max(cfg.Streams, cfg.IdleStreams, cfg.SlowClients))
	} else {
		b.source, err = newRouterOpenAI()
	}
	if err != nil {
		return nil, fmt.Errorf("start upstream: %w", err)
	}
	defer b.source.close()
	cost := &RouterCost{}
	parts := []struct {
		name    string
		measure func(context.Context, *RouterCost) error
		flags   []string
		wanted  bool
	}{
		{"deltas", func(ctx context.Context, cost *RouterCost) error {
			if err := b.latency(ctx, cost); err != nil {
				return fmt.Errorf("latency: %w", err)
			}
			return b.load(ctx, cost)
		}, nil, true},
		{"streams", b.streams, nil, cfg.IdleStreams > 0},
		{"slow", b.slow, []string{"--set", "router.client_stall=" + routerStall.String()}, cfg.SlowClients > 0},
	}
	for _, p := range parts {
		if !p.wanted {
			continue
		}
		if err := b.with(ctx, p.name, p.flags, func() error { return p.measure(ctx, cost) }); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return cost, nil
}

// with runs f before a router process of its own.
func (b *routerBench) with(ctx context.Context, name string, flags []string, f func() error) error {
	args := slices.Concat([]string{
		"router", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--protection", "off",
		"--journal", filepath.Join(b.cfg.Dir, b.kind+"-"+name+".journal"),
		// A machine that is too busy for the upstream's part makes no failed streams.
		"--set", "router.stall_timeout=30s", "--set", "router.lease.ttl=60s",
	}, b.source.flags(), flags)
	var err error
	if b.router, err = startRouter(b.cfg.Binary, filepath.Join(b.cfg.Dir, "router-"+b.kind+"-"+name+".log"), args); err != nil {
		return err
	}
	defer b.router.stop()
	if err := b.router.awaitReady(ctx); err != nil {
		return err
	}
	b.cfg.Logf("%s, %s: router listens on %s, journal in a file, protection off", b.kind, name, b.router.listen)
	return f()
}

// routerText is the text of every delta; nothing else in an answer looks like it.
const routerText = "delta "

// routerModel is what the upstreams serve.
const routerModel = "bench"

// routerRequest is the body of every request.
func routerRequest() string {
	return `{"model":"` + routerModel + `","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 16) + `"}]}`
}
