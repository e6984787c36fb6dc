// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/seguekv/segue/agent"
	"github.com/seguekv/segue/internal/faultnet"
	"github.com/seguekv/segue/transfer"
)

// Node is an agent with its engine: a host of the network. Its address outlives its processes.
type Node struct {
	ID, Addr string
	Engine   *Engine
	Device   *Device
	Clock    *Clock
	world    *World

	mu   sync.Mutex
	life *agentLife // nil while down
}

// agentLife is one process life of an agent.
type agentLife struct {
	alive   atomic.Bool
	metrics *prometheus.Registry
	admin   *http.Client
	cancel  context.CancelFunc
	done    chan error // capacity 1, so that a dead agent needs no listener
}

// Start starts engine and agent under new boot ids. The node must be down.
func (n *Node) Start() error {
	if n.Engine.present() == nil {
		if err := n.Engine.Start(); err != nil {
			return err
		}
	}
	cfg := n.world.agentConfig(n)
	l := &agentLife{metrics: prometheus.NewRegistry(), done: make(chan error, 1)}
	l.alive.Store(true)
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		if !l.alive.Load() {
			return nil, faultnet.ErrDown
		}
		return n.world.Net.Dial(ctx, n.ID, addr)
	}
	a, err := agent.New(cfg, agent.Deps{
		Devices: n.Device, GPU: n.Device.config(), Remember: n.Device.remember,
		Host: n.Engine, Dial: append(transfer.DialOptions(), grpc.WithContextDialer(dial)), Registerer: l.metrics, Gatherer: l.metrics,
		Clock: n.Clock.fence(), Log: n.world.Trace.logger(n.ID),
	})
	if err != nil {
		return fmt.Errorf("make agent %s: %w", n.ID, err)
	}
	grpcListener, err := n.world.Net.Listen(n.ID, n.Addr)
	if err != nil {
		return err
	}
	admin := newControl()
	l.admin = admin.client()
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	n.world.running.Go(func() {
		l.done <- a.Run(ctx, agent.Listeners{GRPC: grpcListener, Admin: admin})
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.life = l
	return nil
}

// Crash ends agent and engine as a SIGKILL to their process group does. It reports whether the node was up.
func (n *Node) Crash() bool { return n.end(n.world.Net.Crash) }

// PowerOff ends the machine: nobody is told.
func (n *Node) PowerOff() bool { return n.end(n.world.Net.PowerOff) }

func (n *Node) end(network func(string)) bool {
	n.mu.Lock()
	l := n.life
	n.life = nil
	n.mu.Unlock()
	if l == nil {
		return false
	}
	l.alive.Store(false)
	network(n.ID)
	n.Engine.Crash()
	l.cancel()
	l.admin.CloseIdleConnections()
	return true
}

// Stop ends the agent in good order and waits for it.
func (n *Node) Stop() error {
	n.mu.Lock()
	l := n.life
	n.life = nil
	n.mu.Unlock()
	if l == nil {
		return nil
	}
	n.Engine.Resume()
	l.cancel()
	l.admin.CloseIdleConnections()
	return <-l.done
}

// Up reports whether the agent's process lives.
func (n *Node) Up() bool { return n.present() != nil }

func (n *Node) present() *agentLife {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.life
}

// Pause stops the host's network and engine. What it does by its timers alone goes on.
func (n *Node) Pause() {
	n.world.Net.Freeze(n.ID)
	n.Engine.Pause()
}

// Resume ends a Pause.
func (n *Node) Resume() {
	n.Engine.Resume()
	n.world.Net.Thaw(n.ID)
}

// AgentView is a session in an agent's listing.
type AgentView struct {
	Session   string `json:"session"`
	Epoch     uint64 `json:"epoch"`
	Role      string `json:"role"`
	Peer      string `json:"peer"`
	State     string `json:"state"`
	Protected bool   `json:"protected"`
	Captured  int    `json:"captured"`
	Sent      int    `json:"sent"`
	Committed int    `json:"committed"`
	Base      int    `json:"base"`
	// Prepared is for how many milliseconds a context is kept for a planned takeover.
	Prepared int `json:"prepared_ms"`
}

// Sessions is the agent's listing; nil while it is down.
func (n *Node) Sessions() ([]AgentView, error) {
	l := n.present()
	if l == nil {
		return nil, nil
	}
	var list []AgentView
	if err := get(l.admin, "/v1/sessions", &list); err != nil {
		return nil, fmt.Errorf("list sessions of %s: %w", n.ID, err)
	}
	return list, nil
}

// Uses reads the gauges of what a node has in use; nothing while it is down.
func (n *Node) Uses() (contexts, snapshotBytes int, err error) {
	l := n.present()
	if l == nil {
		return 0, 0, nil
	}
	families, err := l.metrics.Gather()
	if err != nil {
		return 0, 0, fmt.Errorf("gather metrics of %s: %w", n.ID, err)
	}
	found := 0
	for _, f := range families {
		to := &contexts
		switch f.GetName() {
		case "segue_agent_contexts_used":
		case "segue_agent_snapshot_used_bytes":
			to = &snapshotBytes
		default:
			continue
		}
		for _, m := range f.GetMetric() {
			*to = int(m.GetGauge().GetValue())
			found++
		}
	}
	if found != 2 {
		return 0, 0, fmt.Errorf("metrics of %s: the gauges of contexts and snapshot memory are missing", n.ID)
	}
	return contexts, snapshotBytes, nil
}

func get(c *http.Client, path string, into any) error {
	resp, err := c.Get("http://control" + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
