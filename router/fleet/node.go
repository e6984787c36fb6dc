// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/health"
)

const (
	probeTimeout = time.Second
	// missedProbes is how many probes in a row may go unanswered before the node counts as not ready: a busy
	// machine answers late.
	missedProbes = 2
)

// Node is the handle of one agent or server.
type Node struct {
	// These never change; server is zero for an agent.
	id, addr string
	kind     Kind
	weight   float64
	server   Server
	fleet    *Fleet
	kick     chan struct{} // capacity 1: a pending request for an early probe
	ask      chan struct{} // an agent's; the same for an early renewal
	// outstanding is the sum of what claims have left.
	outstanding atomic.Int64
	// answering counts claims with output so far, produced all their tokens.
	answering atomic.Int64
	produced  atomic.Uint64
	// state is guarded by fleet.mu.
	state nodeState
}

type nodeState struct {
	ready, full bool
	// draining: an operator keeps new work away.
	draining bool
	reason   string
	models   []string // replaced, never changed
	missed   int
	// doubts rises with each Suspect: a probe that began before one proves nothing.
	doubts    uint64
	exclusion exclusion
	health    Health
	// ours counts claims.
	ours     int
	lastUsed uint64

	// The rest is an agent's. foreign counts contexts in use that aren't ours.
	client        seguev1.NodeServiceClient
	described     *seguev1.DescribeResponse
	foreign, held int
	lastHeld      uint64
	// leases are those that are being renewed, question is what the next renewal answers.
	leases   map[run]*Lease
	question question
}

// ID is the node's name in the configuration.
func (n *Node) ID() string { return n.id }

// Kind says whether it is an agent or a server.
func (n *Node) Kind() Kind { return n.kind }

func (n *Node) isA(kinds []Kind) bool { return len(kinds) == 0 || slices.Contains(kinds, n.kind) }

// Weight is the node's share of the work among others that serve the same model; positive.
func (n *Node) Weight() float64 { return n.weight }

// Ready reports whether the node was ready when last described, and nothing was said against it since.
func (n *Node) Ready() bool {
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	return n.state.ready
}

// Suspect takes back what the node said about itself until it is described anew: down for a lost connection or engine,
// else full. Call it when a session on the node failed or was refused. The next probe is made at once, except of a full
// server: a probe says nothing of its load, so it is left alone until the next regular one.
func (n *Node) Suspect(down bool, reason string) {
	if down {
		n.down(reason)
	} else {
		n.fleet.mu.Lock()
		n.state.doubts++
		n.state.full = true
		n.fleet.mu.Unlock()
	}
	if down || n.kind == KindAgent {
		n.probeSoon()
	}
}

// down makes the node not ready until a probe that begins later says otherwise.
func (n *Node) down(reason string) {
	n.fleet.mu.Lock()
	was := n.state.ready
	n.state.doubts++
	n.state.ready, n.state.reason = false, reason
	n.fleet.mu.Unlock()
	if was {
		n.logReadiness(false, reason)
	}
}

func (n *Node) probeSoon() {
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// probe calls once again and again until ctx ends: when the last call said, or when it is asked to.
func (n *Node) probe(ctx context.Context, once func(context.Context) time.Duration) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-n.kick:
		}
		timer.Reset(once(ctx))
	}
}

// learn takes in a probe's outcome and what follows from it, and reports whether the node is ready.
func (n *Node) learn(apply func(*nodeState)) bool {
	f := n.fleet
	f.mu.Lock()
	was := n.state.ready
	apply(&n.state)
	ready, reason := n.state.ready, n.state.reason
	if ready && !was {
		close(f.readied)
		f.readied = make(chan struct{})
	}
	f.dispatchLocked()
	f.mu.Unlock()
	if ready != was {
		n.logReadiness(ready, reason)
	}
	return ready
}

func (n *Node) logReadiness(ready bool, reason string) {
	n.fleet.log.Info(n.kind.String()+" readiness changed", n.kind.String(), n.id, "ready", ready, "reason", reason)
}

// view is called with the fleet's lock held.
func (n *Node) view(now time.Time) View {
	s, e := &n.state, &n.state.exclusion
	v := View{
		ID: n.id, Kind: n.kind, Ready: s.ready, Draining: s.draining, Full: s.full, Models: s.models,
		Weight: n.weight, Outstanding: max(n.outstanding.Load(), 0), Excluded: e.left(now), Tried: e.trial != nil,
		Shunned: s.health.Shunned(), Used: s.ours + s.foreign, Foreign: s.foreign, LastUsed: s.lastUsed,
	}
	if s.health.Verdict == health.Degraded {
		v.Weight *= degradedShare
	}
	if n.kind == KindServer {
		if v.Contexts = n.server.Contexts; v.Contexts < 1 {
			v.Contexts = math.MaxInt
		}
		return v
	}
	d := s.described
	v.Fingerprint, v.Contexts, v.Reserved = string(d.GetFingerprint()), int(d.GetContexts()), int(d.GetContextsReserved())
	v.Held, v.LastHeld = s.held, s.lastHeld
	if limit, used := d.GetSnapshotBytesLimit(), d.GetSnapshotBytesUsed(); limit > used {
		v.SnapshotFree = limit - used
	}
	return v
}
