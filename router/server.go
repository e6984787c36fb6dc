// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/fence/clock"
	"github.com/seguekv/segue/router/fleet"
	"github.com/seguekv/segue/router/journal"
	"github.com/seguekv/segue/router/keys"
	"github.com/seguekv/segue/snapshot"
)

const (
	// goodbye is how long sessions and clients get for their last error event after the drain.
	goodbye = 2 * time.Second
	// mopUp is how long background calls get after the last session.
	mopUp = 3 * time.Second

	maxHeader     = 64 << 10
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	adminTimeout  = 30 * time.Second
)

// Deps are what a router takes from outside. The zero value is a router on the real network that logs
// nowhere.
type Deps struct {
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
	// Dial reaches agents.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// DialUpstream reaches servers without an agent; nil for the network.
	DialUpstream func(ctx context.Context, network, addr string) (net.Conn, error)
	// Listen opens the two listeners.
	Listen func(network, addr string) (net.Listener, error)
	// Rand yields session ids and seeds.
	Rand io.Reader
	// Listening is called once, when both listeners are open and before the first request is served.
	Listening func(client, admin net.Addr)
	// JournalStorage is where the journal goes; nil for the configured file, or memory.
	JournalStorage journal.Storage
	// Clock is what leases count by; nil for the machine's.
	Clock *fence.Clock
	// Gate sees every call of every session's gate, from the session's goroutine; nil for nobody.
	Gate func(session snapshot.SessionID, op fence.Op)
}

func (d Deps) withDefaults() Deps {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Registerer == nil || d.Gatherer == nil {
		reg := prometheus.NewRegistry()
		d.Registerer, d.Gatherer = reg, reg
	}
	if d.Dial == nil {
		d.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "tcp", addr)
		}
	}
	if d.Listen == nil {
		d.Listen = net.Listen
	}
	if d.Rand == nil {
		d.Rand = rand.Reader
	}
	if d.Clock == nil {
		d.Clock = clock.System()
	}
	if d.Listening == nil {
		d.Listening = func(net.Addr, net.Addr) {}
	}
	return d
}

// Router serves clients from a fleet of agents.
type Router struct {
	cfg      Config
	deps     Deps
	log      *slog.Logger
	fleet    *fleet.Fleet
	registry *registry
	metrics  *metrics
	started  time.Time
	// leaving: the router isn't ready any more; draining: it takes nothing new either.
	leaving, draining atomic.Bool
	handlers          *handlers
	background        *background
	budget            *retryBudget
	journal           *journal.Journal
	keys              *keys.Keys
	security          security
	upstreams         []fleet.Server
	// grantor names this process in leases.
	grantor string
	// bodies has one place for each request body that may be read and parsed.
	bodies chan struct{}
}

// New checks the configuration and starts nothing.
func New(cfg Config, deps Deps) (*Router, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Router{cfg: cfg, deps: deps.withDefaults(), registry: newRegistry(), handlers: newHandlers(), budget: newRetryBudget(cfg.Retry), bodies: make(chan struct{}, bodiesAtOnce)}
	r.log = r.deps.Log
	leases := fleet.Leases{Lease: cfg.Lease.lease(), Renewal: cfg.Lease.Renewal, Clock: r.deps.Clock, Renewed: func(err error) { r.metrics.renewed(err) }}
	if _, err := io.ReadFull(r.deps.Rand, leases.Grantor[:]); err != nil {
		return nil, fmt.Errorf("mint grantor id: %w", err)
	}
	r.grantor = hex.EncodeToString(leases.Grantor[:4])
	if err := r.openSecurity(); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	var err error
	if r.upstreams, err = servers(cfg.Upstreams, r.deps); err != nil {
		return nil, err
	}
	r.fleet = fleet.New(fleet.Config{Members: cfg.Agents, Servers: r.upstreams, QueueDepth: cfg.Queue.Depth, Dial: r.deps.Dial, Credentials: r.security.credentials(), Log: r.log, Leases: leases, Judged: r.judged})
	if r.metrics, err = newMetrics(r.deps.Registerer, r.fleet, r.registry); err != nil {
		return nil, fmt.Errorf("register router metrics: %w", err)
	}
	if r.keys, err = openKeys(cfg.Keys, r.deps); err != nil {
		return nil, fmt.Errorf("router.keys: %w", err)
	}
	if r.journal, err = openJournal(cfg.Journal, r.deps); err != nil {
		return nil, fmt.Errorf("router.journal: %w", err)
	}
	return r, nil
}

// Run serves until ctx ends, then drains: it stops listening, lets live sessions go on for Config.Drain,
// ends what is left with an error event, and returns when everything it started has ended. Call it once.
func (r *Router) Run(ctx context.Context) error {
	client, admin, err := r.listen()
	if err != nil {
		return errors.Join(err, r.journal.Close())
	}
	// Background calls end after the sessions, and the connections to agents after those.
	bg, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	recording, stopJournal := context.WithCancel(context.WithoutCancel(ctx))
	defer stopJournal()
	sessions, endSessions := context.WithCancelCause(bg)
	defer endSessions(nil)
	r.started = time.Now()
	r.background = newBackground(bg, r.log)
	clients := r.server(http.HandlerFunc(r.serve), sessions)
	operators := r.server(r.adminHandler(), bg)
	operators.WriteTimeout = adminTimeout
	r.deps.Listening(client.Addr(), admin.Addr())
	client, admin = r.security.wrap(client, admin)

	var group errgroup.Group
	failed := make(chan error, 3) // one place for each of the three
	run := func(what string, f func() error) {
		group.Go(func() error {
			err := f()
			if err == nil || errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			err = fmt.Errorf("%s: %w", what, err)
			failed <- err
			return err
		})
	}
	run("serve clients", func() error { return clients.Serve(client) })
	run("serve operators", func() error { return operators.Serve(admin) })
	run("agents", func() error { return r.fleet.Run(bg) })
	run("credentials", func() error { return r.security.run(bg, r.keys) })
	run("journal", func() error { return r.journal.Run(recording) })
	select {
	case <-ctx.Done():
		err = r.leave(failed)
	case err = <-failed:
	}
	r.drain(clients, func() { endSessions(errStopping) })
	r.mopUp(stopBackground)
	stopJournal() // after the last session's end is in it
	// Last, so that the drain can be watched.
	_ = operators.Close()
	ended := group.Wait()
	r.background.tasks.Wait() // no agent is listened to any more: none is added
	err = errors.Join(err, ignoreFirst(ended, err), r.journal.Close())
	for _, u := range r.upstreams {
		u.Handle.(server).CloseIdle()
	}
	return err
}

// ignoreFirst leaves out an error that is reported already.
func ignoreFirst(err, reported error) error {
	if errors.Is(err, reported) {
		return nil
	}
	return err
}

// leave says that the router isn't ready any more, and returns after the drain delay, or when something fails.
func (r *Router) leave(failed <-chan error) error {
	r.leaving.Store(true)
	r.log.Info("stopping", "drain_delay", r.cfg.DrainDelay)
	timer := time.NewTimer(r.cfg.DrainDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case err := <-failed:
		return err
	}
}

// drain returns when the last session has ended.
func (r *Router) drain(clients *http.Server, endSessions func()) {
	r.leaving.Store(true)
	r.draining.Store(true)
	r.log.Info("draining", "sessions", r.registry.live(), "drain", r.cfg.Drain)
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.Drain)
	err := clients.Shutdown(ctx)
	cancel()
	if err != nil {
		endSessions()
		ctx, cancel = context.WithTimeout(context.Background(), goodbye)
		_ = clients.Shutdown(ctx)
		cancel()
	}
	_ = clients.Close()
	r.handlers.wait()
}

// mopUp gives Cancel and Release calls a moment, then ends them and the connections.
func (r *Router) mopUp(stop func()) {
	timer := time.AfterFunc(mopUp, stop)
	defer timer.Stop()
	r.background.wait()
	stop()
}

func (r *Router) server(h http.Handler, base context.Context) *http.Server {
	return &http.Server{
		Handler:           h,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(r.log.Handler(), slog.LevelDebug),
	}
}

func (r *Router) listen() (client, admin net.Listener, err error) {
	client, err = r.open("listen", r.cfg.Listen)
	if err != nil {
		return nil, nil, err
	}
	admin, err = r.open("admin", r.cfg.Admin)
	if err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	return client, admin, nil
}

func (r *Router) open(key, addr string) (net.Listener, error) {
	l, err := r.deps.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("router.%s: %s is in use; stop the process that has it, or choose another port (port 0 picks a free one): %w", key, addr, err)
	}
	if err != nil {
		return nil, fmt.Errorf("router.%s: listen on %s: %w", key, addr, err)
	}
	return l, nil
}
