// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

const (
	probeEvery   = 500 * time.Millisecond
	probeAgain   = 100 * time.Millisecond // while the node isn't ready
	probeTimeout = time.Second
	// missedProbes is how many probes in a row may time out before the node counts as not ready: a busy
	// machine answers late.
	missedProbes = 2
)

// Member is one agent of the configuration.
type Member struct {
	ID   string `yaml:"id" json:"id"`
	Addr string `yaml:"addr" json:"addr"`
}

// Status is a node for people.
type Status struct {
	ID               string `json:"id"`
	Addr             string `json:"addr"`
	Ready            bool   `json:"ready"`
	Reason           string `json:"reason"`
	Contexts         int    `json:"contexts"`
	ContextsReserved int    `json:"contexts_reserved"`
	ContextsUsed     int    `json:"contexts_used"`
	BootID           string `json:"boot_id"`
	EngineBootID     string `json:"engine_boot_id"`
	Model            string `json:"model"`
	// Leases are those of this router's runs on the node.
	Leases []LeaseStatus `json:"leases,omitempty"`
}

// Node is the handle of one agent.
type Node struct {
	member Member
	fleet  *Fleet
	kick   chan struct{} // capacity 1: a pending request for an early probe
	ask    chan struct{} // the same for an early renewal
	// state is guarded by fleet.mu.
	state nodeState
}

type nodeState struct {
	client      seguev1.NodeServiceClient
	described   *seguev1.DescribeResponse
	ready, full bool
	reason      string
	missed      int
	// doubts rises with each Suspect: a probe that began before one proves nothing.
	doubts uint64
	// ours counts claims, foreign contexts in use that aren't ours.
	ours, foreign, held int
	lastUsed, lastHeld  uint64
	// leases are those that are being renewed, question is what the next renewal answers.
	leases   map[run]*Lease
	question question
}

// ID is the agent's name in the configuration.
func (n *Node) ID() string { return n.member.ID }

// Peer names the node to other agents.
func (n *Node) Peer() *seguev1.Peer {
	return &seguev1.Peer{Id: n.member.ID, Addr: n.member.Addr}
}

// Client calls the agent. Valid for nodes from claims and holds.
func (n *Node) Client() seguev1.NodeServiceClient {
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	return n.state.client
}

// Boot is the id of the agent's process life as last heard, empty before.
func (n *Node) Boot() string {
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	return string(n.state.described.GetBootId())
}

// Ready reports whether the node was ready when last described, and nothing was said against it since.
func (n *Node) Ready() bool {
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	return n.state.ready
}

// Fingerprint is the agent's fingerprint as last heard, in canonical encoding.
func (n *Node) Fingerprint() []byte {
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	return n.state.described.GetFingerprint()
}

// Suspect takes back what the node said about itself until it is described anew, at once: down for a
// lost connection or engine, else full. Call it when a session on the node failed or was refused.
func (n *Node) Suspect(down bool, reason string) {
	if down {
		n.down(reason)
	} else {
		n.fleet.mu.Lock()
		n.state.doubts++
		n.state.full = true
		n.fleet.mu.Unlock()
	}
	n.probeSoon()
}

// down makes the node not ready until a probe that begins later says otherwise.
func (n *Node) down(reason string) {
	n.fleet.mu.Lock()
	was := n.state.ready
	n.state.doubts++
	n.state.ready, n.state.reason = false, reason
	n.fleet.mu.Unlock()
	if was {
		n.fleet.log.Info("agent readiness changed", "agent", n.member.ID, "ready", false, "reason", reason)
	}
}

func (n *Node) probeSoon() {
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

func (n *Node) connect(dial func(context.Context, string) (net.Conn, error)) (*grpc.ClientConn, error) {
	addr := n.member.Addr
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, addr) }),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		// Short, so that a restarted agent is found quickly.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
		// Probes are the heartbeat; pings are sent only when those go unanswered, to get rid of a
		// connection whose other end is gone without a word.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true}),
	)
	if err != nil {
		return nil, fmt.Errorf("agent %s: address %q: %w", n.member.ID, addr, err)
	}
	return conn, nil
}

// watch keeps the connection up and notices its loss between probes. It returns when ctx ends.
func (n *Node) watch(ctx context.Context, conn *grpc.ClientConn) {
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Idle:
			n.down("connection lost")
			conn.Connect()
		case connectivity.Ready:
			n.probeSoon()
			n.askSoon()
		case connectivity.TransientFailure:
			n.down("no connection")
		}
		if !conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// probe describes the node again and again until ctx ends.
func (n *Node) probe(ctx context.Context, client seguev1.NodeServiceClient) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-n.kick:
		}
		timer.Reset(n.describe(ctx, client))
	}
}

// describe makes one probe and returns when the next is due.
func (n *Node) describe(ctx context.Context, client seguev1.NodeServiceClient) time.Duration {
	f := n.fleet
	f.mu.Lock()
	doubts, ours := n.state.doubts, n.state.ours
	f.mu.Unlock()
	call, cancel := context.WithTimeout(ctx, probeTimeout)
	d, err := client.Describe(call, &seguev1.DescribeRequest{})
	cancel()
	if ctx.Err() != nil {
		return probeEvery
	}
	f.mu.Lock()
	wasReady := n.state.ready
	n.state.apply(n.member, d, err, doubts, ours)
	ready, reason := n.state.ready, n.state.reason
	if ready && !wasReady {
		close(f.readied)
		f.readied = make(chan struct{})
	}
	f.dispatchLocked()
	f.mu.Unlock()
	if ready != wasReady {
		f.log.Info("agent readiness changed", "agent", n.member.ID, "ready", ready, "reason", reason)
	}
	if ready {
		return probeEvery
	}
	return probeAgain
}

// apply takes in the outcome of a probe that began at doubts, with ours claims.
func (s *nodeState) apply(m Member, d *seguev1.DescribeResponse, err error, doubts uint64, ours int) {
	if err != nil {
		s.missed++
		if status.Code(err) != codes.DeadlineExceeded || s.missed >= missedProbes {
			s.ready, s.reason = false, "describe: "+status.Convert(err).Message()
		}
		return
	}
	s.missed = 0
	s.described = d
	s.foreign = max(int(d.GetContextsUsed())-max(ours, s.ours), 0)
	if s.doubts != doubts {
		return
	}
	s.full = false
	switch {
	case d.GetNodeId() != m.ID:
		s.ready = false
		s.reason = fmt.Sprintf("the agent at %s is called %q; name it so in router.agents, or correct the address", m.Addr, d.GetNodeId())
	case !d.GetReady():
		s.ready, s.reason = false, d.GetNotReadyReason()
	default:
		s.ready, s.reason = true, ""
	}
}

func (s *nodeState) view(id string) View {
	d := s.described
	v := View{
		ID: id, Ready: s.ready, Full: s.full, Model: d.GetModel(), Fingerprint: string(d.GetFingerprint()),
		Contexts: int(d.GetContexts()), Reserved: int(d.GetContextsReserved()), Used: s.ours + s.foreign,
		Held: s.held, LastUsed: s.lastUsed, LastHeld: s.lastHeld,
	}
	if limit, used := d.GetSnapshotBytesLimit(), d.GetSnapshotBytesUsed(); limit > used {
		v.SnapshotFree = limit - used
	}
	return v
}

func (s *nodeState) status(m Member) Status {
	d := s.described
	return Status{
		ID: m.ID, Addr: m.Addr, Ready: s.ready, Reason: s.reason,
		Contexts: int(d.GetContexts()), ContextsReserved: int(d.GetContextsReserved()), ContextsUsed: int(d.GetContextsUsed()),
		BootID: hex.EncodeToString(d.GetBootId()), EngineBootID: hex.EncodeToString(d.GetEngineBootId()), Model: d.GetModel(),
	}
}
