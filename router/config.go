// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"errors"
	"fmt"
	"net"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/internal/certs"
	"github.com/seguekv/segue/router/fleet"
)

// Protection is the configured or requested protection mode.
type Protection string

// Protection modes.
const (
	ProtectionOff   Protection = "off"
	ProtectionAsync Protection = "async"
	ProtectionSync  Protection = "sync"
)

// protectionModes is a read-only table.
var protectionModes = map[Protection]seguev1.ProtectionMode{
	ProtectionOff:   seguev1.ProtectionMode_PROTECTION_MODE_OFF,
	ProtectionAsync: seguev1.ProtectionMode_PROTECTION_MODE_ASYNC,
	ProtectionSync:  seguev1.ProtectionMode_PROTECTION_MODE_SYNC,
}

// Unprotected says what becomes of a session that can't be protected.
type Unprotected string

// Policies for unprotected sessions.
const (
	UnprotectedContinue Unprotected = "continue"
	UnprotectedFail     Unprotected = "fail"
)

// Source says what a session does about a failed attempt that nobody knows to have ended: its connection broke, or it
// fell silent.
type Source string

// Policies for uncertain sources.
const (
	// SourceFence goes on at once: what the old attempt still does can't be published.
	SourceFence Source = "fence"
	// SourceWait first waits until the old attempt's agent has acknowledged its end, or its lease is over.
	SourceWait Source = "wait"
)

// Lease bounds how long an agent goes on with a run without hearing from this router.
type Lease struct {
	TTL     time.Duration `yaml:"ttl"`
	Renewal time.Duration `yaml:"renewal"`
	// Margin is taken off the TTL by the agent and added to it by the router; it absorbs what their clocks differ in
	// rate.
	Margin time.Duration `yaml:"margin"`
}

func (l Lease) lease() fence.Lease { return fence.Lease{TTL: l.TTL, Margin: l.Margin} }

// Queue is where new sessions wait for a free context.
type Queue struct {
	Depth int           `yaml:"depth"`
	Wait  time.Duration `yaml:"wait"`
}

// Stream is what only some clients need.
type Stream struct {
	// DoneAfterError ends also a broken stream with the terminator, for clients that wait for it whatever came before.
	// Those that take it for success lose the error.
	DoneAfterError bool `yaml:"done_after_error"`
}

// Config of a router. Durations are written "500ms".
type Config struct {
	// Listen is the clients' address, Admin the operators'. Port 0 picks one.
	Listen string         `yaml:"listen"`
	Admin  string         `yaml:"admin"`
	Agents []fleet.Member `yaml:"agents"`
	// Upstreams are servers without an agent.
	Upstreams       []Upstream `yaml:"upstreams"`
	UpstreamSilence Silence    `yaml:"upstream_silence"`
	// Protection is the mode of requests without an X-Segue-Protection header.
	Protection Protection `yaml:"protection"`
	// Window is how many boundaries an engine may be ahead of its holder's commit.
	Window int `yaml:"window"`
	// CommitTimeout is the age of the oldest uncommitted boundary at which a holder counts as lost.
	CommitTimeout time.Duration `yaml:"commit_timeout"`
	// OnUnprotected "fail" ends a session that can't be protected, also after a takeover that leaves it
	// without a holder: then three nodes are needed to survive one.
	OnUnprotected Unprotected `yaml:"on_unprotected"`
	// MaxAttempts counts runs from the prompt, MaxTakeovers continuations, both per session. A takeover that a
	// holder refuses is no continuation.
	MaxAttempts  int   `yaml:"max_attempts"`
	MaxTakeovers int   `yaml:"max_takeovers"`
	Retry        Retry `yaml:"retry"`
	// TakeoverWait is how long after an interruption a holder that can't take over at the moment (its engine
	// restarts, its connection is down, all its contexts are in use) is asked again; 0 asks once. The client's stream
	// pauses meanwhile.
	TakeoverWait time.Duration `yaml:"takeover_wait"`
	// StallTimeout is how long a stream may be silent, without token or progress message.
	StallTimeout time.Duration `yaml:"stall_timeout"`
	// UncertainSource says whether another attempt waits for the end of one that may go on.
	UncertainSource Source `yaml:"uncertain_source"`
	Lease           Lease  `yaml:"lease"`
	// HeaderHold is how long response headers wait for the first content.
	HeaderHold time.Duration `yaml:"header_hold"`
	// ClientStall is how long one write to a client may take.
	ClientStall time.Duration `yaml:"client_stall"`
	Queue       Queue         `yaml:"queue"`
	// Keys is a file with clients' API keys; empty: everybody is one tenant.
	Keys string `yaml:"keys"`
	// TLS is for clients, Peers for agents and, beyond loopback, for operators: both sides show certificates.
	TLS   Pair        `yaml:"tls"`
	Peers certs.Files `yaml:"peers"`
	// InsecurePlaintext allows what is neither encrypted nor authenticated beyond this machine.
	InsecurePlaintext bool `yaml:"-"`
	// MaxBody is the largest request body in bytes.
	MaxBody int64   `yaml:"max_body"`
	Journal Journal `yaml:"journal"`
	// DrainDelay is how long the router still takes new requests after it was told to stop, while it isn't ready any
	// more: for those who send them to notice. Drain is how long live sessions may go on after that.
	DrainDelay time.Duration `yaml:"drain_delay"`
	Drain      time.Duration `yaml:"drain"`
	Stream     Stream        `yaml:"stream"`
}

// DefaultConfig has every field but Agents.
func DefaultConfig() Config {
	return Config{
		Listen:          "127.0.0.1:8080",
		Admin:           "127.0.0.1:8081",
		Protection:      ProtectionSync,
		Window:          32,
		CommitTimeout:   500 * time.Millisecond,
		OnUnprotected:   UnprotectedContinue,
		MaxAttempts:     2,
		MaxTakeovers:    8,
		Retry:           Retry{SDKAttempts: 1, MaxPrefillTokens: 32768, MaxTime: 5 * time.Minute, BudgetShare: 0.1, BudgetBurst: 131072},
		TakeoverWait:    5 * time.Second,
		StallTimeout:    2 * time.Second,
		UncertainSource: SourceFence,
		Lease:           Lease{TTL: 6 * time.Second, Renewal: time.Second, Margin: 500 * time.Millisecond},
		HeaderHold:      10 * time.Second,
		ClientStall:     30 * time.Second,
		Queue:           Queue{Depth: 64, Wait: 5 * time.Second},
		MaxBody:         8 << 20,
		UpstreamSilence: Silence{Prefill: 2 * time.Minute, Decode: 30 * time.Second, Whole: 10 * time.Minute},
		Journal:         Journal{Retention: 48 * time.Hour, MaxRequests: 100_000, MaxAnswer: 1 << 20},
		Drain:           10 * time.Second,
	}
}

// Validate reports every problem, each with what to do about it.
func (c Config) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("router.%s: %s", key, fmt.Sprintf(format, args...)))
	}
	listener := func(key, addr string) {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			bad(key, "%q is not host:port, e.g. 127.0.0.1:0", addr)
		}
	}
	listener("listen", c.Listen)
	listener("admin", c.Admin)
	if c.Listen == c.Admin && c.Listen != "" && !portZero(c.Listen) {
		bad("admin", "is the same address as router.listen; give it a port of its own")
	}
	c.validateAgents(bad)
	c.validateUpstreams(bad)
	if _, ok := protectionModes[c.Protection]; !ok {
		bad("protection", "is %q, want off, async or sync", c.Protection)
	}
	if c.OnUnprotected != UnprotectedContinue && c.OnUnprotected != UnprotectedFail {
		bad("on_unprotected", "is %q, want continue or fail", c.OnUnprotected)
	}
	within := func(key string, v, lo, hi int64) {
		if v < lo || v > hi {
			bad(key, "is %d, want %d to %d", v, lo, hi)
		}
	}
	within("window", int64(c.Window), 1, 4096)
	within("max_attempts", int64(c.MaxAttempts), 1, 16)
	within("max_takeovers", int64(c.MaxTakeovers), 0, 64)
	within("queue.depth", int64(c.Queue.Depth), 0, 1<<20)
	within("max_body", c.MaxBody, 1<<10, 1<<30)
	between := func(key string, v, lo, hi time.Duration) {
		if v < lo || v > hi {
			bad(key, "is %v, want %v to %v", v, lo, hi)
		}
	}
	between("commit_timeout", c.CommitTimeout, 10*time.Millisecond, time.Minute)
	between("takeover_wait", c.TakeoverWait, 0, 10*time.Minute)
	between("stall_timeout", c.StallTimeout, 100*time.Millisecond, 10*time.Minute)
	between("header_hold", c.HeaderHold, 0, 10*time.Minute)
	between("client_stall", c.ClientStall, time.Second, time.Hour)
	between("queue.wait", c.Queue.Wait, 0, 10*time.Minute)
	between("drain_delay", c.DrainDelay, 0, 10*time.Minute)
	between("drain", c.Drain, 0, time.Hour)
	if c.StallTimeout <= c.CommitTimeout {
		bad("stall_timeout", "is %v, not above router.commit_timeout (%v): a lost holder would look like a stalled engine", c.StallTimeout, c.CommitTimeout)
	}
	c.validateLease(bad)
	c.validateSecurity(bad)
	c.validateRetry(bad)
	c.validateJournal(bad)
	return errors.Join(errs...)
}

func (c Config) validateLease(bad func(key, format string, args ...any)) {
	if c.UncertainSource != SourceFence && c.UncertainSource != SourceWait {
		bad("uncertain_source", "is %q, want fence or wait", c.UncertainSource)
	}
	l := c.Lease.lease()
	if err := l.ValidateRenewal(c.Lease.Renewal); err != nil {
		bad("lease", "%v", err)
	}
	// The wire carries milliseconds.
	for _, d := range []time.Duration{l.TTL, l.Margin} {
		if d%time.Millisecond != 0 {
			bad("lease", "%v is not a whole number of milliseconds", d)
		}
	}
	if l.Usable() <= c.StallTimeout {
		bad("lease.ttl", "is %v, less the margin not above router.stall_timeout (%v): agents would end runs for a silence that the router forgives",
			l.TTL, c.StallTimeout)
	}
}

func (c Config) validateAgents(bad func(key, format string, args ...any)) {
	if len(c.Agents) == 0 && len(c.Upstreams) == 0 {
		bad("agents", "is empty, and so is router.upstreams; name at least one agent as {id: a, addr: 127.0.0.1:7070}, two for protection, or an OpenAI-compatible server in router.upstreams")
	}
	ids, addrs := map[string]bool{}, map[string]bool{}
	for i, a := range c.Agents {
		key := fmt.Sprintf("agents[%d]", i)
		if a.ID == "" || len(a.ID) > 64 {
			bad(key+".id", "has %d bytes, want 1 to 64", len(a.ID))
		}
		if ids[a.ID] {
			bad(key+".id", "%q is used twice", a.ID)
		}
		if _, port, err := net.SplitHostPort(a.Addr); err != nil || port == "0" {
			bad(key+".addr", "%q is not host:port of a running agent", a.Addr)
		}
		if !(a.Weight >= 0 && a.Weight <= 1e6) {
			bad(key+".weight", "is %v, want above 0 to 1000000", a.Weight)
		}
		if addrs[a.Addr] {
			bad(key+".addr", "%q is used twice", a.Addr)
		}
		ids[a.ID], addrs[a.Addr] = true, true
	}
}

func portZero(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	return err == nil && port == "0"
}
