// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/sim"
	"github.com/seguekv/segue/fence"
)

// simHost is an engine in the same process that can be killed.
type simHost struct {
	dead context.Context
	kill context.CancelCauseFunc
	// runs counts the calls of Run.
	runs atomic.Int64

	mu      sync.Mutex
	engine  engines.Engine
	changed chan struct{}
	pid     int
	// gates are closed when calls of a kind may go on: "run", "describe", "observe", and those that nothing else ends:
	// "hang", which is a run, "step", which is what an engine puts out, and "stuck", which is an observation.
	gates map[string]chan struct{}
	// letGo opens every gate that there ever was.
	letGo []func()
	// silent is when the process last spoke, and what it said; nil while it speaks.
	silent *lastWord
}

// lastWord is what was last heard of a process that is stopped.
type lastWord struct {
	at    time.Time
	facts engines.Facts
}

func newSimHost(t *testing.T, c sim.Config) *simHost {
	t.Helper()
	e, err := sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	h := &simHost{changed: make(chan struct{}), engine: e, pid: 1, gates: make(map[string]chan struct{})}
	h.dead, h.kill = context.WithCancelCause(context.Background())
	return h
}

// hold makes calls of a kind wait at their very beginning until the returned function is called.
func (h *simHost) hold(kind string) (letGo func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gate := make(chan struct{})
	h.gates[kind] = gate
	letGo = sync.OnceFunc(func() { close(gate) })
	h.letGo = append(h.letGo, letGo)
	return letGo
}

// release lets everything go on, so that a test which has failed ends.
func (h *simHost) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, letGo := range h.letGo {
		letGo()
	}
}

// pass waits for a call's gate.
func (h *simHost) pass(ctx context.Context, kind string) {
	h.mu.Lock()
	gate := h.gates[kind]
	h.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
}

func (h *simHost) facts(t *testing.T) engines.Facts {
	t.Helper()
	f, err := h.present().Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (h *simHost) Current() (agent.LiveEngine, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead.Err() != nil {
		return nil, engines.ErrNotReady
	}
	return &liveSim{Engine: h.engine, h: h, dead: h.dead}, nil
}

// die ends the engine's process, and all its runs.
func (h *simHost) die() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kill(nil)
	h.change()
}

// change tells everybody of a change of Current. h.mu is held.
func (h *simHost) change() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// spawn gives the host a process, of which there is no engine yet; none with 0.
func (h *simHost) spawn(pid int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pid = pid
}

// stop stops the process as SIGSTOP does, until the returned function is called.
func (h *simHost) stop(t *testing.T) (resume func()) {
	t.Helper()
	w := &lastWord{time.Now(), h.facts(t)}
	letGo := h.hold("step")
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silent = w
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.silent = nil
		letGo()
	}
}

// heard is the last word of a stopped process; nil while it speaks.
func (h *simHost) heard() *lastWord {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.silent
}

// restart starts a process of the same or another engine, after die.
func (h *simHost) restart(t *testing.T, c sim.Config) {
	t.Helper()
	h.replace(t, c)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dead, h.kill = context.WithCancelCause(context.Background())
	h.change()
}

func (h *simHost) present() engines.Engine {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.engine
}

// replace plays a restart as another engine.
func (h *simHost) replace(t *testing.T, c sim.Config) {
	t.Helper()
	e, err := sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.engine = e
}

func (h *simHost) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

func (h *simHost) PID() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pid
}

type liveSim struct {
	engines.Engine
	h    *simHost
	dead context.Context
}

func (l *liveSim) LastHeard() time.Time {
	if w := l.h.heard(); w != nil {
		return w.at
	}
	return time.Now()
}

func (l *liveSim) Observe(ctx context.Context) (engines.Facts, error) {
	l.h.pass(context.Background(), "stuck")
	if l.h.pass(ctx, "observe"); ctx.Err() != nil {
		return engines.Facts{}, ctx.Err()
	}
	if w := l.h.heard(); w != nil {
		return w.facts, nil
	}
	return l.Engine.Observe(ctx)
}

func (l *liveSim) Describe(ctx context.Context) (*engines.Description, error) {
	l.h.pass(ctx, "describe")
	return l.Engine.Describe(ctx)
}

func (l *liveSim) Run(ctx context.Context, j engines.Job, s engines.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(l.dead, cancel)
	defer stop()
	l.h.runs.Add(1)
	l.h.pass(ctx, "run")
	l.h.pass(context.Background(), "hang")
	err := l.Engine.Run(ctx, j, gatedSink{s, l.h})
	if l.dead.Err() != nil {
		return engines.ErrLost
	}
	return err
}

// gatedSink takes what an engine puts out, as long as it does.
type gatedSink struct {
	engines.Sink
	h *simHost
}

func (s gatedSink) Prefilled(first, count int, rows []byte) error {
	s.h.pass(context.Background(), "step")
	return s.Sink.Prefilled(first, count, rows)
}

func (s gatedSink) Token(t engines.Token) error {
	s.h.pass(context.Background(), "step")
	return s.Sink.Token(t)
}

// jumpy is a node's clock for leases: the bubble's, plus the time that the node slept without anyone's timers.
type jumpy struct {
	lease *fence.Clock
	slept atomic.Int64
}

func newJumpy() *jumpy {
	start, c := time.Now(), new(jumpy)
	c.lease = fence.ClockOf(
		func() time.Duration { return time.Since(start) },
		func() time.Duration { return time.Since(start) + time.Duration(c.slept.Load()) },
	)
	return c
}

// jump makes boot time leap, as after a suspend.
func (c *jumpy) jump(d time.Duration) { c.slept.Add(int64(d)) }

// testNode is one agent on the memNet.
type testNode struct {
	peer    *seguev1.Peer
	client  seguev1.NodeServiceClient
	host    *simHost
	clock   *jumpy
	metrics *prometheus.Registry
	admin   *http.Client
	stop    func()

	mu      sync.Mutex
	stopped bool
}

func (b *testNode) running() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.stopped
}

func (b *testNode) describe(t *testing.T) *seguev1.DescribeResponse {
	t.Helper()
	d, err := b.client.Describe(t.Context(), &seguev1.DescribeRequest{})
	if err != nil {
		t.Fatalf("describe %s: %v", b.peer.GetId(), err)
	}
	return d
}

// empty reports what a node still uses; nothing if all is well.
func (b *testNode) empty(t *testing.T) {
	t.Helper()
	d := b.describe(t)
	if d.GetContextsUsed() != 0 || d.GetSnapshotBytesUsed() != 0 || b.host.facts(t).Running != 0 {
		t.Errorf("node %s: %d contexts and %d snapshot bytes in use, %d runs", b.peer.GetId(), d.GetContextsUsed(), d.GetSnapshotBytesUsed(), b.host.facts(t).Running)
	}
}

func (b *testNode) sessions(t *testing.T) []*seguev1.SessionInfo {
	t.Helper()
	l, err := b.client.Sessions(t.Context(), &seguev1.SessionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return l.GetSessions()
}

// view is what node b says of a session in a role; nil if nothing.
func (b *testNode) view(t *testing.T, id []byte, role string) *seguev1.SessionInfo {
	t.Helper()
	for _, s := range b.sessions(t) {
		if string(s.GetSession()) == string(id) && s.GetRole() == role {
			return s
		}
	}
	return nil
}

func tinySim() sim.Config {
	c := sim.DefaultConfig()
	c.KVBytesPerToken, c.Layers, c.ContextLength = 256, 2, 512
	c.Step, c.PrefillToken, c.Chunk = 5*time.Millisecond, 100*time.Microsecond, 16
	return c
}

// bubble runs f on a network of its own in virtual time, and ends all agents that it leaves.
//
// INVARIANT: when all sessions are cancelled or released, no node has a context or snapshot memory in use.
func bubble(t *testing.T, f func(t *testing.T, n *memNet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newMemNet()
		defer func() {
			n.thaw()
			for _, x := range n.started {
				x.host.release()
				x.stop()
			}
			n.Close()
		}()
		f(t, n)
		n.settle(t)
	})
}

// pair is bubble with agents a and b.
func pair(t *testing.T, change func(*agent.Config), f func(t *testing.T, n *memNet, a, b *testNode)) {
	t.Helper()
	bubble(t, func(t *testing.T, n *memNet) {
		a := n.start(t, "a", "127.0.0.1:1001", tinySim(), change)
		b := n.start(t, "b", "127.0.0.1:1002", tinySim(), change)
		f(t, n, a, b)
	})
}

// settle cancels whatever is left, everywhere, since a base may be on its way, and checks that the nodes are empty
// then.
func (n *memNet) settle(t *testing.T) {
	t.Helper()
	n.thaw()
	live := slices.DeleteFunc(slices.Clone(n.started), func(x *testNode) bool { return !x.running() })
	known := make(map[string]uint64)
	for _, x := range live {
		for _, s := range x.sessions(t) {
			known[string(s.GetSession())] = max(known[string(s.GetSession())], s.GetEpoch())
		}
	}
	for id, epoch := range known {
		for _, x := range live {
			cancelRun(t, x, []byte(id), epoch)
		}
	}
	time.Sleep(500 * time.Millisecond) // virtual: steps in flight end
	for _, x := range live {
		x.empty(t)
		for _, s := range x.sessions(t) {
			t.Errorf("node %s still lists %v", x.peer.GetId(), s)
		}
	}
}

func (n *memNet) start(t *testing.T, id, addr string, engine sim.Config, change func(*agent.Config)) *testNode {
	t.Helper()
	return n.startWith(t, id, addr, engine, change, nil)
}

// startWith is start with other dependencies.
func (n *memNet) startWith(t *testing.T, id, addr string, engine sim.Config, change func(*agent.Config), other func(*agent.Deps)) *testNode {
	t.Helper()
	cfg := agent.DefaultConfig()
	cfg.ID, cfg.Listen, cfg.Admin = id, addr, "127.0.0.1:0"
	if change != nil {
		change(&cfg)
	}
	x := &testNode{peer: &seguev1.Peer{Id: id, Addr: addr}, host: newSimHost(t, engine), clock: newJumpy(), metrics: prometheus.NewRegistry()}
	deps := agent.Deps{Host: x.host, Dial: n.options(id), Registerer: x.metrics, Gatherer: x.metrics, Log: slog.New(slog.DiscardHandler), Clock: x.clock.lease}
	if other != nil {
		other(&deps)
	}
	a, err := agent.New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	l, admin := n.listen(t, id, addr), bufconn.Listen(1<<16)
	x.admin = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return admin.DialContext(ctx) },
	}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx, agent.Listeners{GRPC: l, Admin: admin}) }()
	conn, err := grpc.NewClient(addr, n.options("router")...)
	if err != nil {
		t.Fatal(err)
	}
	x.client = seguev1.NewNodeServiceClient(conn)
	var once sync.Once
	x.stop = func() {
		once.Do(func() {
			x.mu.Lock()
			x.stopped = true
			x.mu.Unlock()
			cancel()
			if err := <-done; err != nil {
				t.Errorf("agent %s: %v", id, err)
			}
			_ = conn.Close()
		})
	}
	n.started = append(n.started, x)
	synctest.Wait() // until all of the agent runs
	return x
}
