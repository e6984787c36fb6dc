// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import (
	"encoding/hex"
	"time"

	"github.com/seguekv/segue/health"
)

// Status is a node for people.
type Status struct {
	ID     string `json:"id"`
	Kind   Kind   `json:"kind"`
	Addr   string `json:"addr"`
	Ready  bool   `json:"ready"`
	Reason string `json:"reason"`
	// Draining means that an operator keeps new work away.
	Draining bool `json:"draining,omitempty"`
	// Full means that it refused a session since it was last described.
	Full bool `json:"full,omitempty"`
	// Health is the last verdict on its engine.
	Health *Health `json:"health,omitempty"`
	// Contexts of a server is how many requests it gets at once; 0 when there is no limit.
	Contexts         int    `json:"contexts"`
	ContextsReserved int    `json:"contexts_reserved"`
	ContextsUsed     int    `json:"contexts_used"`
	BootID           string `json:"boot_id"`
	EngineBootID     string `json:"engine_boot_id"`
	// Model is an agent's; Models are a server's.
	Model  string   `json:"model"`
	Models []string `json:"models,omitempty"`
	// Weight is left out when it is 1.
	Weight float64 `json:"weight,omitempty"`
	// OutstandingTokens is an estimate for this router's sessions.
	OutstandingTokens int64 `json:"outstanding_tokens"`
	// Failures counts those in a row. ExcludedFor is how long they still keep the node from being chosen, in seconds.
	Failures    int     `json:"failures,omitempty"`
	Failure     string  `json:"failure,omitempty"`
	ExcludedFor float64 `json:"excluded_for,omitempty"`
	// Leases are those of this router's runs on the node.
	Leases []LeaseStatus `json:"leases,omitempty"`
}

// Status lists the nodes: agents, then servers, each in the order of the configuration.
func (f *Fleet) Status() []Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	list := make([]Status, len(f.nodes))
	for i, n := range f.nodes {
		list[i] = n.statusLocked(now)
	}
	return list
}

func (n *Node) statusLocked(now time.Time) Status {
	e := &n.state.exclusion
	s := Status{
		ID: n.id, Kind: n.kind, Addr: n.addr, Ready: n.state.ready, Reason: n.state.reason, Draining: n.state.draining, Full: n.state.full,
		OutstandingTokens: max(n.outstanding.Load(), 0),
		Failures:          e.failures, Failure: e.reason, ExcludedFor: e.left(now).Seconds(),
	}
	if h := n.state.health; h.Verdict != health.Unknown {
		s.Health = &h
	}
	if n.weight != 1 {
		s.Weight = n.weight
	}
	if n.kind == KindServer {
		s.Contexts, s.ContextsUsed, s.Models = n.server.Contexts, n.state.ours, n.state.models
		return s
	}
	d := n.state.described
	s.Contexts, s.ContextsReserved, s.ContextsUsed = int(d.GetContexts()), int(d.GetContextsReserved()), int(d.GetContextsUsed())
	s.BootID, s.EngineBootID, s.Model = hex.EncodeToString(d.GetBootId()), hex.EncodeToString(d.GetEngineBootId()), d.GetModel()
	s.Leases = n.leaseStatusLocked()
	return s
}
