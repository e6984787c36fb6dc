// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import (
	"context"
	"log/slog"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// Config is what a fleet needs. Ids are unique over members and servers.
type Config struct {
	Members []Member
	Servers []Server
	// QueueDepth is the largest number of sessions that wait for a context.
	QueueDepth int
	// Dial opens a connection to an agent. Not used without members.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Credentials are for agents; nil is plaintext.
	Credentials credentials.TransportCredentials
	Log         *slog.Logger
	// Judged is called with each new verdict on a node's engine, by the goroutine that heard of it; nil for nobody.
	Judged func(*Node, Health)
	// Leases are what runs on agents get. Not used without members.
	Leases Leases
}

// Fleet is the set of nodes. Methods may be called concurrently.
type Fleet struct {
	depth  int
	dial   func(context.Context, string) (net.Conn, error)
	creds  credentials.TransportCredentials
	log    *slog.Logger
	judged func(*Node, Health)
	nodes  []*Node // never changes; the states inside are guarded
	// leases never change.
	leases Leases

	// mu guards every node's state and the fields below.
	mu    sync.Mutex
	queue []*Ticket
	turn  uint64
	// readied is closed, and replaced, when a node becomes ready.
	readied chan struct{}
	// expire, of capacity 1, says that an exclusion has begun.
	expire chan struct{}
}

// New starts nothing.
func New(c Config) *Fleet {
	if c.Credentials == nil {
		c.Credentials = insecure.NewCredentials()
	}
	f := &Fleet{depth: c.QueueDepth, dial: c.Dial, creds: c.Credentials, log: c.Log, judged: c.Judged, leases: c.Leases, readied: make(chan struct{}), expire: make(chan struct{}, 1)}
	for _, m := range c.Members {
		n := f.add(KindAgent, m.ID, m.Addr, m.Weight, "not described yet")
		n.ask = make(chan struct{}, 1)
	}
	for _, s := range c.Servers {
		n := f.add(KindServer, s.ID, s.Addr, s.Weight, "not probed yet")
		n.server = s
		n.state.models = slices.Clone(s.Models)
	}
	return f
}

func (f *Fleet) add(kind Kind, id, addr string, weight float64, reason string) *Node {
	if !(weight > 0) || math.IsInf(weight, 1) {
		weight = 1
	}
	n := &Node{id: id, addr: addr, kind: kind, weight: weight, fleet: f, kick: make(chan struct{}, 1)}
	n.state.reason = reason
	n.state.leases = map[run]*Lease{}
	f.nodes = append(f.nodes, n)
	return n
}

// Run connects to every agent, probes every node and renews leases until ctx ends; then it closes the connections.
func (f *Fleet) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { f.expiries(ctx) })
	for _, n := range f.nodes {
		if n.kind == KindServer {
			wg.Go(func() { n.probe(ctx, n.list) })
			if n.server.Watch != nil {
				wg.Go(func() { n.server.Watch(ctx, n) })
			}
			continue
		}
		conn, err := n.connect(f.dial)
		if err != nil {
			cancel()
			return err
		}
		client := seguev1.NewNodeServiceClient(conn)
		f.mu.Lock()
		n.state.client = client
		f.mu.Unlock()
		wg.Go(func() {
			defer conn.Close()
			var others sync.WaitGroup
			others.Go(func() { n.watch(ctx, conn) })
			others.Go(func() { n.renewals(ctx, client) })
			others.Go(func() { n.hearHealth(ctx, client) })
			n.probe(ctx, func(ctx context.Context) time.Duration { return n.describe(ctx, client) })
			others.Wait()
		})
	}
	<-ctx.Done()
	return nil
}

// Node finds a node by id; nil for an unknown one.
func (f *Fleet) Node(id string) *Node {
	for _, n := range f.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

// Want says where a session may go.
type Want struct {
	// Kind is that of an agent by default.
	Kind  Kind
	Model string
	// Tokens estimates the session's outstanding tokens: those of the prompt and of the output to come. Less than 1
	// counts as 1.
	Tokens int
	// Avoid lists node ids that are out of the question.
	Avoid []string
	// Urgent goes before others: the session has waited before.
	Urgent bool
}

// Ticket is a place in the queue.
type Ticket struct {
	// C yields the claim when there is one; capacity 1, so that nobody waits for the receiver.
	C     chan *Claim
	want  Want
	fleet *Fleet
}

// Enqueue asks for a context. The claim may be there already. Close the ticket when done with it. Sessions that no
// common node could take don't wait for one another; all share the queue's depth.
func (f *Fleet) Enqueue(w Want) (*Ticket, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &Ticket{C: make(chan *Claim, 1), want: w, fleet: f}
	if now := time.Now(); f.placeLocked(t, f.viewsLocked(now), now) {
		return t, nil
	}
	if len(f.queue) >= f.depth {
		return nil, ErrQueueFull
	}
	at := len(f.queue)
	if w.Urgent {
		at = 0
	}
	f.queue = slices.Insert(f.queue, at, t)
	return t, nil
}

// Close leaves the queue, and gives back a claim that nobody has received.
func (t *Ticket) Close() {
	f := t.fleet
	f.mu.Lock()
	f.queue = slices.DeleteFunc(f.queue, func(q *Ticket) bool { return q == t })
	f.mu.Unlock()
	select {
	case c := <-t.C:
		c.Release()
	default:
	}
}

// Readied is closed when a node next becomes ready. Take it before looking at the nodes.
func (f *Fleet) Readied() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.readied
}

// Queued is the number of sessions that wait.
func (f *Fleet) Queued() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue)
}
