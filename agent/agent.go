// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/prometheus/client_golang/prometheus"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/compat"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/fence/clock"
	"github.com/seguekv/segue/health/gpu"
	"github.com/seguekv/segue/internal/certs"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

const (
	// linger is how long an ended session can still be re-attached to.
	linger = 10 * time.Second
	// sweepEvery is how often held sessions are looked at.
	sweepEvery = 30 * time.Second
)

// Agent is one node.
type Agent struct {
	cfg    Config
	host   Host
	log    *slog.Logger
	self   transfer.Self
	budget *snapshot.Budget
	store  *snapshot.Store
	// receiver fills the store.
	receiver *transfer.Receiver
	pool     *transfer.Pool
	slots    admission
	prepared *reservations
	metrics  *metrics
	doctor   *doctor
	devices  *devices // nil: no GPU is read
	reports  Devices
	// taken counts what the sinks of all runs have taken: prompt chunks and tokens.
	taken  atomic.Uint64
	gather prometheus.Gatherer
	clock  *fence.Clock
	peers  *certs.Bundle // nil: plaintext
	stop   chan struct{} // closed when Run ends, for streams that have no other end

	mu       sync.Mutex
	sessions map[snapshot.SessionID]*session
	// opening has a channel for each session of which a call is about to begin, prepare or park an attempt, closed when
	// it has.
	opening  map[snapshot.SessionID]chan struct{}
	live     context.Context // of sessions; nil before Run and when it ends
	running  sync.WaitGroup
	asks     fence.Asks
	lastDesc *engines.Description
}

// Deps are what an agent takes from outside.
type Deps struct {
	// Host runs the engine.
	Host Host
	// Dial are the options for connections to other agents.
	Dial []grpc.DialOption
	// Registerer gets the agent's metrics, Gatherer serves them.
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
	Log        *slog.Logger
	// Clock is what leases count by; nil for the machine's.
	Clock *fence.Clock
	// Devices reads GPUs; nil for nobody. GPU says how they are judged, Remember keeps what has to outlive the
	// process, on the goroutine of Devices.Run; nil keeps nothing.
	Devices  Devices
	GPU      gpu.Config
	Remember func(gpu.Memory)
}

func (d Deps) remember() func(gpu.Memory) {
	if d.Remember == nil {
		return func(gpu.Memory) {}
	}
	return d.Remember
}

// New checks the configuration and starts nothing.
func New(cfg Config, deps Deps) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &Agent{
		cfg: cfg, host: deps.Host, log: deps.Log.With("node", cfg.ID), gather: deps.Gatherer,
		self:   transfer.Self{NodeID: cfg.ID},
		budget: snapshot.NewBudget(cfg.SnapshotMemory),
		clock:  deps.Clock,
		stop:   make(chan struct{}), sessions: make(map[snapshot.SessionID]*session),
		opening: make(map[snapshot.SessionID]chan struct{}),
	}
	a.prepared = newReservations(func(how string) { a.metrics.reservation(how) })
	if a.clock == nil {
		a.clock = clock.System()
	}
	if _, err := rand.Read(a.self.Boot[:]); err != nil {
		return nil, fmt.Errorf("make boot id: %w", err)
	}
	a.store = snapshot.NewStore(a.budget, a.accept)
	if cfg.Peers.Enabled() {
		var err error
		if a.peers, err = certs.Load(cfg.Peers, certs.Logging(a.log)); err != nil {
			return nil, fmt.Errorf("agent.peers: %w", err)
		}
		deps.Dial = append(deps.Dial[:len(deps.Dial):len(deps.Dial)], grpc.WithTransportCredentials(a.peers.ClientCredentials("")))
	}
	a.pool = transfer.NewPool(a.self, deps.Dial, a.log)
	m, err := newMetrics(deps.Registerer, a)
	if err != nil {
		return nil, err
	}
	a.metrics = m
	if deps.Devices != nil {
		judge, err := gpu.NewJudge(deps.GPU)
		if err != nil {
			return nil, fmt.Errorf("agent.gpu: %w", err)
		}
		a.reports, a.devices = deps.Devices, &devices{judge: judge, save: deps.remember()}
	}
	if a.doctor, err = newDoctor(a); err != nil {
		return nil, err
	}
	a.receiver = transfer.NewReceiver(a.self, a.store, a.stop, m.received, a.log)
	return a, nil
}

// Listeners are an agent's open sockets.
type Listeners struct {
	GRPC, Admin net.Listener
}

// Run serves on the listeners, which it closes, until ctx ends, and returns when all it started has ended.
func (a *Agent) Run(ctx context.Context, l Listeners) error {
	g, gctx := errgroup.WithContext(ctx)
	live, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	a.mu.Lock()
	a.live = live
	a.mu.Unlock()

	options := transfer.ServerOptions()
	if a.peers != nil {
		options = append(options, grpc.Creds(a.peers.ServerCredentials(a.cfg.Callers)))
		if !certs.Local(l.Admin.Addr().String()) {
			l.Admin = tls.NewListener(l.Admin, a.peers.Server(nil))
		}
		g.Go(func() error { return a.peers.Run(gctx) })
	}
	server := grpc.NewServer(options...)
	seguev1.RegisterNodeServiceServer(server, &node{a: a})
	seguev1.RegisterReplicationServiceServer(server, a.receiver)
	admin := &http.Server{Handler: a.adminHandler(), ReadHeaderTimeout: 10 * time.Second}

	g.Go(func() error { return named("grpc server", server.Serve(l.GRPC)) })
	g.Go(func() error {
		err := admin.Serve(l.Admin)
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return named("admin server", err)
	})
	g.Go(func() error { return a.pool.Run(gctx) })
	g.Go(func() error { return a.sweep(gctx) })
	g.Go(func() error { return a.doctor.watcher.Run(gctx) })
	g.Go(func() error { return a.heed(gctx) })
	if a.devices != nil {
		g.Go(func() error { return a.heedDevices(gctx, a.reports) })
	}
	g.Go(func() error {
		// Order: sessions first, so that their feeds end with a reason; then the servers; the pool stops
		// with gctx and is not needed any more.
		<-gctx.Done()
		a.mu.Lock()
		a.live = nil
		a.mu.Unlock()
		for _, s := range a.all() {
			s.fail(errStopping)
		}
		cancel(errStopping)
		close(a.stop)
		stopped := make(chan struct{})
		var wait sync.WaitGroup
		wait.Go(func() { server.GracefulStop(); close(stopped) })
		select {
		case <-stopped:
		case <-time.After(time.Second):
			server.Stop()
		}
		wait.Wait()
		return admin.Close()
	})
	err := g.Wait()
	cancel(errStopping)
	a.prepared.clear()
	a.running.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func named(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// accept judges a base that a peer wants held: it must be loadable into this node's engine.
func (a *Agent) accept(h *snapshot.Head) error {
	a.prepared.drop(h.Session, h.Epoch-1)
	d := a.description()
	if d == nil {
		return fmt.Errorf("%w: the holder's engine has not started yet", engines.ErrNotReady)
	}
	return fits(h, d)
}

// fits reports whether a base of head h can be continued on an engine described by d.
func fits(h *snapshot.Head, d *engines.Description) error {
	f, err := compat.Decode(h.Fingerprint)
	if err != nil {
		return fmt.Errorf("%w: %w", snapshot.ErrFormat, err)
	}
	if err := compat.Check(f, d.Fingerprint); err != nil {
		return err
	}
	if h.Geometry.Digest() != d.Geometry.Digest() {
		return fmt.Errorf("%w: rows of %d bytes, this engine's have %d", engines.ErrState, h.Geometry.RowBytes(), d.Geometry.RowBytes())
	}
	return nil
}

// described is the running engine's description.
func (a *Agent) described(ctx context.Context) (*engines.Description, error) {
	e, err := a.host.Current()
	if err != nil {
		return nil, err
	}
	return e.Describe(ctx)
}

// description is the running engine's description, or the last one that ran; nil before the first.
func (a *Agent) description() *engines.Description {
	d, err := a.described(context.Background())
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.lastDesc = d
	}
	return a.lastDesc
}

// sweep gives up held sessions that nobody has released and nothing has changed for the hold time.
func (a *Agent) sweep(ctx context.Context) error {
	type seen struct {
		rows, committed int
		since           time.Time
	}
	last := make(map[snapshot.BaseID]seen)
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		next := make(map[snapshot.BaseID]seen)
		now := time.Now()
		for _, o := range a.store.Offers() {
			s := seen{o.Rows, o.Committed, now}
			if old, ok := last[o.BaseID]; ok && old.rows == s.rows && old.committed == s.committed {
				s.since = old.since
			}
			if now.Sub(s.since) > a.cfg.HoldTimeout {
				a.store.Release(o.Session, o.Epoch)
				a.log.Warn("held session was never released", "session", o.Session.String(), "epoch", uint64(o.Epoch))
				continue
			}
			next[o.BaseID] = s
		}
		last = next
	}
}
