// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/router/fleet"
)

// upstream is a scripted server.
type upstream struct {
	mu     sync.Mutex
	models []string
	err    error
	hangs  bool
	// probed are the moments of probes since start.
	probed []time.Duration
	start  time.Time
}

func (u *upstream) probe(ctx context.Context) ([]string, error) {
	u.mu.Lock()
	u.probed = append(u.probed, time.Since(u.start))
	models, err, hangs := u.models, u.err, u.hangs
	u.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return models, err
}

func (u *upstream) set(change func(*upstream)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change(u)
}

// probes returns the moments of the probes since it was last asked.
func (u *upstream) probes() []time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.probed
	u.probed = nil
	return p
}

// agent is a scripted agent that serves nothing but Describe, Renew and WatchHealth.
type agent struct {
	seguev1.UnimplementedNodeServiceServer
	id     string
	models string
	doctor doctor
	mu     sync.Mutex
	used   uint32
	renews int
}

func (a *agent) Describe(context.Context, *seguev1.DescribeRequest) (*seguev1.DescribeResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &seguev1.DescribeResponse{
		NodeId: a.id, BootId: []byte("boot"), Model: a.models, Fingerprint: []byte("f"), Contexts: 4, ContextsReserved: 2, ContextsUsed: a.used,
		SnapshotBytesLimit: 1 << 20, Ready: true,
	}, nil
}

func (a *agent) Renew(context.Context, *seguev1.RenewRequest) (*seguev1.RenewResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.renews++
	return &seguev1.RenewResponse{BootId: []byte("boot"), Number: 1}, nil
}

// world is a running fleet in a bubble.
type world struct {
	*fleet.Fleet
	t       *testing.T
	servers map[string]*upstream
	agents  map[string]*agent
}

// bubble runs f against a fleet in virtual time. Of its nodes "s:m,n" is server s with models m and n, "A:m" agent A
// with model m: names of agents are in capitals.
func bubble(t *testing.T, nodes string, change func(*fleet.Config), f func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, servers: map[string]*upstream{}, agents: map[string]*agent{}}
		dials := map[string]*bufconn.Listener{}
		cfg := fleet.Config{
			QueueDepth: 16, Log: slog.New(slog.DiscardHandler),
			Dial: func(ctx context.Context, addr string) (net.Conn, error) { return dials[addr].DialContext(ctx) },
		}
		start := time.Now()
		for spec := range strings.FieldsSeq(nodes) {
			id, models, _ := strings.Cut(spec, ":")
			if strings.ToUpper(id) != id {
				u := &upstream{models: strings.Split(models, ","), start: start}
				w.servers[id] = u
				cfg.Servers = append(cfg.Servers, fleet.Server{ID: id, Probe: u.probe, Handle: "handle of " + id})
				continue
			}
			a := &agent{id: id, models: models}
			w.agents[id] = a
			cfg.Members = append(cfg.Members, fleet.Member{ID: id, Addr: id})
			dials[id] = bufconn.Listen(1 << 16)
			server := grpc.NewServer()
			seguev1.RegisterNodeServiceServer(server, a)
			go server.Serve(dials[id]) // ends with Stop
			defer server.Stop()
		}
		if len(cfg.Members) > 0 {
			elapsed := func() time.Duration { return time.Since(start) }
			cfg.Leases = fleet.Leases{Renewal: time.Second, Clock: fence.ClockOf(elapsed, elapsed), Renewed: func(error) {}}
		}
		if change != nil {
			change(&cfg)
		}
		w.Fleet = fleet.New(cfg)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }() // ends with stop
		synctest.Wait()
		f(t, w)
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

// claim asks for a context of a server that must be there at once.
func (w *world) claim(want fleet.Want) *fleet.Claim {
	w.t.Helper()
	c := w.try(want)
	if c == nil {
		w.t.Fatalf("no claim for %+v: %+v", want, w.Status())
	}
	return c
}

// try asks for a context; nil if there is none now.
func (w *world) try(want fleet.Want) *fleet.Claim {
	w.t.Helper()
	ticket := w.enqueue(want)
	defer ticket.Close()
	return received(ticket)
}

func (w *world) enqueue(want fleet.Want) *fleet.Ticket {
	w.t.Helper()
	ticket, err := w.Enqueue(want)
	if err != nil {
		w.t.Fatal(err)
	}
	return ticket
}

// received takes a claim that is there.
func received(t *fleet.Ticket) *fleet.Claim {
	select {
	case c := <-t.C:
		return c
	default:
		return nil
	}
}

// status is the node's line.
func (w *world) status(id string) fleet.Status {
	w.t.Helper()
	list := w.Status()
	i := slices.IndexFunc(list, func(s fleet.Status) bool { return s.ID == id })
	if i < 0 {
		w.t.Fatalf("no node %s in %+v", id, list)
	}
	return list[i]
}

// pass lets virtual time go by and what is due happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

var errRefused = errors.New("connection refused")

// server is a request for model m on a server.
func server(change func(*fleet.Want)) fleet.Want {
	w := fleet.Want{Kind: fleet.KindServer, Model: "m"}
	if change != nil {
		change(&w)
	}
	return w
}
