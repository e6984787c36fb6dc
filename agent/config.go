// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/internal/certs"
)

// Config configures an agent, apart from its engine.
type Config struct {
	// ID names the node to the router and in logs.
	ID string `yaml:"id"`
	// Listen is the address of the gRPC listener; port 0 picks a free one.
	Listen string `yaml:"listen"`
	// Admin is the address of the HTTP listener for health, metrics and sessions.
	Admin string `yaml:"admin"`
	// SnapshotMemory bounds the rows of all sessions run and held here, in bytes.
	SnapshotMemory int64 `yaml:"-"`
	// ReservedForTakeover is how many of the engine's contexts new sessions never get.
	ReservedForTakeover int `yaml:"-"`

	// Window is how many captured, uncommitted boundaries the engine may be ahead.
	Window int `yaml:"-"`
	// CommitTimeout is the age of the oldest captured, uncommitted boundary at which a holder counts as lost.
	CommitTimeout time.Duration `yaml:"-"`
	// BaseTimeout is the same for a base in progress, since the holder's last ack. A holder to which there is no connection
	// for CommitTimeout counts as lost also then.
	BaseTimeout time.Duration `yaml:"-"`
	// OrphanGrace is how long a run goes on without a caller.
	OrphanGrace time.Duration `yaml:"-"`
	// HoldTimeout is how long a held session that doesn't change is kept without being released.
	HoldTimeout time.Duration `yaml:"-"`
	// StepLimit is the longest compute call that still counts as progress.
	StepLimit time.Duration `yaml:"-"`
	// Health is when the engine counts as hung.
	Health health.Config `yaml:"health"`
	// Peers are the certificates for routers and other agents: both sides show one. None: plaintext, on loopback only.
	Peers certs.Files `yaml:"peers"`
	// Callers are the DNS or URI names of those who may call; empty: everybody with a certificate of Peers.CA.
	Callers []string `yaml:"callers"`
	// InsecurePlaintext allows listeners beyond loopback, unencrypted and unauthenticated.
	InsecurePlaintext bool `yaml:"-"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	watched := health.Defaults()
	watched.Interval = 100 * time.Millisecond // reading a heartbeat costs nothing
	return Config{
		ID:                  "a",
		Listen:              "127.0.0.1:7070",
		Admin:               "127.0.0.1:7071",
		SnapshotMemory:      1 << 30,
		ReservedForTakeover: 2,
		Window:              32,
		CommitTimeout:       500 * time.Millisecond,
		BaseTimeout:         5 * time.Second,
		OrphanGrace:         2 * time.Second,
		HoldTimeout:         10 * time.Minute,
		StepLimit:           10 * time.Second,
		Health:              watched,
	}
}

// Validate reports all problems.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.ID == "" || len(c.ID) > 64 {
		bad("agent.id: want 1 to 64 characters, got %q", c.ID)
	}
	for _, a := range []struct{ key, addr string }{{"agent.listen", c.Listen}, {"agent.admin", c.Admin}} {
		if err := c.checkAddr(a.addr); err != nil {
			bad("%s: %w", a.key, err)
		}
	}
	if err := c.Peers.Validate(); err != nil {
		bad("agent.peers: %w", err)
	}
	if len(c.Callers) > 0 && !c.Peers.Enabled() {
		bad("agent.callers: names nobody can prove without agent.peers")
	}
	if c.SnapshotMemory < 1<<20 {
		bad("agent.snapshot_memory: %d bytes is less than 1MiB", c.SnapshotMemory)
	}
	if c.ReservedForTakeover < 0 {
		bad("agent.engine.reserved_for_takeover: %d is negative", c.ReservedForTakeover)
	}
	if c.Window < 1 {
		bad("window: want at least 1, got %d", c.Window)
	}
	for _, d := range []struct {
		key string
		d   time.Duration
	}{{"commit_timeout", c.CommitTimeout}, {"base_timeout", c.BaseTimeout}, {"orphan_grace", c.OrphanGrace}, {"hold_timeout", c.HoldTimeout}, {"step_limit", c.StepLimit}} {
		if d.d <= 0 {
			bad("%s: want a positive duration, got %v", d.key, d.d)
		}
	}
	if err := c.Health.Validate(); err != nil {
		bad("agent.%w", err)
	}
	return errors.Join(errs...)
}

// checkAddr refuses what can't be listened on or dialled, or only in plaintext and beyond this machine.
func (c Config) checkAddr(addr string) error {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return fmt.Errorf("%q: want HOST:PORT, for example 127.0.0.1:0", addr)
	}
	if c.InsecurePlaintext || c.Peers.Enabled() || certs.Local(addr) {
		return nil
	}
	return fmt.Errorf("%q is beyond loopback and the traffic would be neither encrypted nor authenticated: configure agent.peers with ca, cert and key (segue cert dev DIR makes files to try it with), use 127.0.0.1, or pass --insecure-plaintext on a network you trust", addr)
}
