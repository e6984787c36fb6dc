// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/sim"
	"github.com/seguekv/segue/transfer"
)

// memNet is a network of in-memory listeners, addressed as 127.0.0.1:N.
type memNet struct {
	mu    sync.Mutex
	nodes map[string]*bufListener
}

func (n *memNet) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.nodes[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	return l.DialContext(ctx)
}

func (n *memNet) options() []grpc.DialOption {
	return append(transfer.DialOptions(), grpc.WithContextDialer(n.dial))
}

// simHost is an engine in the same process that can be killed.
type simHost struct {
	mu      sync.Mutex
	engine  engines.Engine
	dead    context.Context
	kill    context.CancelCauseFunc
	changed chan struct{}
}

func newSimHost(t *testing.T, c sim.Config) *simHost {
	t.Helper()
	e, err := sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	h := &simHost{engine: e, changed: make(chan struct{})}
	h.dead, h.kill = context.WithCancelCause(context.Background())
	return h
}

func (h *simHost) Current() (agent.LiveEngine, error) {
	if h.dead.Err() != nil {
		return nil, engines.ErrNotReady
	}
	return &liveSim{Engine: h.engine, h: h}, nil
}

func (h *simHost) Changed() <-chan struct{} { return h.changed }
func (h *simHost) PID() int                 { return 1 }

type liveSim struct {
	engines.Engine
	h *simHost
}

func (l *liveSim) LastHeard() time.Time { return time.Now() }

func (l *liveSim) Run(ctx context.Context, j engines.Job, s engines.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(l.h.dead, cancel)
	defer stop()
	err := l.Engine.Run(ctx, j, s)
	if l.h.dead.Err() != nil {
		return engines.ErrLost
	}
	return err
}

// testNode is one agent on the memNet.
type testNode struct {
	peer   *seguev1.Peer
	client seguev1.NodeServiceClient
	host   *simHost
	stop   func()
}

func tinySim() sim.Config {
	c := sim.DefaultConfig()
	c.KVBytesPerToken, c.Layers, c.ContextLength = 256, 2, 512
	c.Step, c.PrefillToken, c.Chunk = 5*time.Millisecond, 100*time.Microsecond, 16
	return c
}

func (n *memNet) start(t *testing.T, id, addr string, engine sim.Config, change func(*agent.Config)) *testNode {
	t.Helper()
	cfg := agent.DefaultConfig()
	cfg.ID, cfg.Listen, cfg.Admin = id, addr, "127.0.0.1:0"
	if change != nil {
		change(&cfg)
	}
	host := newSimHost(t, engine)
	reg := prometheus.NewRegistry()
	a, err := agent.New(cfg, host, n.options(), reg, reg, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	l := bufconn.Listen(1 << 20)
	n.mu.Lock()
	n.nodes[addr] = l
	n.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx, agent.Listeners{GRPC: l, Admin: bufconn.Listen(1 << 16)}) }()
	conn, err := grpc.NewClient(addr, n.options()...)
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	stop := func() {
		once.Do(func() {
			n.mu.Lock()
			delete(n.nodes, addr)
			n.mu.Unlock()
			cancel()
			if err := <-done; err != nil {
				t.Errorf("agent %s: %v", id, err)
			}
			_ = conn.Close()
		})
	}
	return &testNode{peer: &seguev1.Peer{Id: id, Addr: addr}, client: seguev1.NewNodeServiceClient(conn), host: host, stop: stop}
}

type bufListener = bufconn.Listener

func contains(s, part string) bool { return strings.Contains(s, part) }
