// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/health"
)

const (
	probeEvery = 500 * time.Millisecond
	probeAgain = 100 * time.Millisecond // while the agent isn't ready
)

// Member is one agent of the configuration.
type Member struct {
	ID   string `yaml:"id" json:"id"`
	Addr string `yaml:"addr" json:"addr"`
	// Weight is the agent's share of the work among others that serve the same model: positive, 1 by default.
	Weight float64 `yaml:"weight,omitempty" json:"weight,omitempty"`
}

// Peer names the node to other agents.
func (n *Node) Peer() *seguev1.Peer {
	return &seguev1.Peer{Id: n.id, Addr: n.addr}
}

// Client calls the agent. Valid for agents from claims and holds.
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

// Fingerprint is the agent's fingerprint as last heard, in canonical encoding.
func (n *Node) Fingerprint() []byte {
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	return n.state.described.GetFingerprint()
}

func (n *Node) connect(dial func(context.Context, string) (net.Conn, error)) (*grpc.ClientConn, error) {
	addr := n.addr
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(n.fleet.creds),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, addr) }),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		// Windows that don't grow: what an agent may have sent ahead of a session that doesn't take it is bounded, and
		// nothing is spent on estimating them.
		grpc.WithStaticStreamWindowSize(64<<10),
		grpc.WithStaticConnWindowSize(1<<20),
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
		return nil, fmt.Errorf("agent %s: address %q: %w", n.id, addr, err)
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
			n.cutOff(health.ReasonCut)
			conn.Connect()
		case connectivity.Ready:
			n.reached()
			n.probeSoon()
			n.askSoon()
		case connectivity.TransientFailure:
			n.down("no connection")
			n.cutOff(health.ReasonCut)
		}
		if !conn.WaitForStateChange(ctx, state) {
			return
		}
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
	if n.learn(func(s *nodeState) { s.apply(n, d, err, doubts, ours) }) {
		return probeEvery
	}
	return probeAgain
}

// apply takes in the outcome of a probe that began at doubts, with ours claims.
func (s *nodeState) apply(n *Node, d *seguev1.DescribeResponse, err error, doubts uint64, ours int) {
	if err != nil {
		s.missed++
		if status.Code(err) != codes.DeadlineExceeded || s.missed >= missedProbes {
			s.ready, s.reason = false, "describe: "+status.Convert(err).Message()
		}
		return
	}
	s.missed = 0
	s.described = d
	if m := d.GetModel(); !slices.Equal(s.models, []string{m}) && m != "" {
		s.models = []string{m}
	}
	s.foreign = max(int(d.GetContextsUsed())-max(ours, s.ours), 0)
	if s.doubts != doubts {
		return
	}
	s.full = false
	switch {
	case d.GetNodeId() != n.id:
		s.ready = false
		s.reason = fmt.Sprintf("the agent at %s is called %q; name it so in router.agents, or correct the address", n.addr, d.GetNodeId())
	case !d.GetReady():
		s.ready, s.reason = false, d.GetNotReadyReason()
	default:
		s.ready, s.reason = true, ""
	}
}
