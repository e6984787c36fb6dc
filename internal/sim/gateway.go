// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/internal/faultnet"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/snapshot"
)

// RouterHost is the router's host, RouterAddr where clients reach it.
const (
	RouterHost = "router"
	RouterAddr = "router:80"
)

// Gateway is the router. Its address outlives its processes.
type Gateway struct {
	Clock *Clock
	// Disk has the journal.
	Disk  *Disk
	world *World
	rand  *randomBytes

	mu   sync.Mutex
	life *routerLife // nil while down
	// boots counts process lives.
	boots int
}

type routerLife struct {
	alive   atomic.Bool
	metrics *prometheus.Registry
	admin   *http.Client
	cancel  context.CancelFunc
	done    chan error // capacity 1, so that a dead router needs no listener
}

// Start starts the router. It must be down.
func (g *Gateway) Start() error {
	w := g.world
	l := &routerLife{metrics: prometheus.NewRegistry(), done: make(chan error, 1)}
	l.alive.Store(true)
	admin := newControl()
	l.admin = admin.client()
	cfg := w.routerConfig()
	r, err := router.New(cfg, router.Deps{
		Log: w.Trace.logger(RouterHost), Registerer: l.metrics, Gatherer: l.metrics, Clock: g.Clock.fence(),
		Rand: g.rand, JournalStorage: g.Disk.open(),
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			if !l.alive.Load() {
				return nil, faultnet.ErrDown
			}
			return w.Net.Dial(ctx, RouterHost, addr)
		},
		Listen: func(_, addr string) (net.Listener, error) {
			if addr == cfg.Admin {
				return admin, nil
			}
			return w.Net.Listen(RouterHost, addr)
		},
		Gate: func(id snapshot.SessionID, op fence.Op) {
			if l.alive.Load() {
				w.gateOp(id, op)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("make router: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	w.running.Go(func() { l.done <- r.Run(ctx) })
	g.mu.Lock()
	defer g.mu.Unlock()
	g.life = l
	g.boots++
	return nil
}

// Crash ends the router as SIGKILL does. It reports whether it was up.
func (g *Gateway) Crash() bool {
	l := g.take()
	if l == nil {
		return false
	}
	l.alive.Store(false)
	g.world.Net.Crash(RouterHost)
	g.Disk.Crash()
	l.cancel()
	l.admin.CloseIdleConnections()
	return true
}

// Stop ends the router in good order and waits for it.
func (g *Gateway) Stop() error {
	l := g.take()
	if l == nil {
		return nil
	}
	l.admin.CloseIdleConnections()
	l.cancel()
	return <-l.done
}

func (g *Gateway) take() *routerLife {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.life
	g.life = nil
	return l
}

func (g *Gateway) present() *routerLife {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.life
}

// Boots counts the router's process lives so far.
func (g *Gateway) Boots() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.boots
}

// Session is the router's view of a session; nil when it knows none, or is down.
func (g *Gateway) Session(id string) *router.SessionInfo {
	l := g.present()
	if l == nil {
		return nil
	}
	var info router.SessionInfo
	if get(l.admin, "/v1/sessions/"+id, &info) != nil {
		return nil
	}
	return &info
}

// Sessions are the sessions the router knows, newest first.
func (g *Gateway) Sessions() []router.SessionInfo {
	l := g.present()
	if l == nil {
		return nil
	}
	var list []router.SessionInfo
	if get(l.admin, "/v1/sessions", &list) != nil {
		return nil
	}
	return list
}

// Ready is how many agents the router considers ready.
func (g *Gateway) Ready() int {
	l := g.present()
	if l == nil {
		return 0
	}
	var answer struct {
		Agents int `json:"agents_ready"`
	}
	if get(l.admin, "/readyz", &answer) != nil {
		return 0
	}
	return answer.Agents
}

// awaitReady returns when the router finds all nodes that are up ready.
func (g *Gateway) awaitReady(nodes int, limit time.Duration) error {
	for deadline := time.Now().Add(limit); g.Ready() < nodes; {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d agents are ready after %v", g.Ready(), nodes, limit)
		}
		time.Sleep(5 * time.Millisecond) // virtual
	}
	return nil
}

// randomBytes reads from a seeded source, so that session ids follow from the seed.
type randomBytes struct {
	mu   sync.Mutex
	from rand.Source
}

func (r *randomBytes) Read(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range b {
		b[i] = byte(r.from.Uint64())
	}
	return len(b), nil
}
