// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// Config is what a fleet needs.
type Config struct {
	Members []Member
	// QueueDepth is the largest number of sessions that wait for a context.
	QueueDepth int
	// Dial opens a connection to an agent.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	Log  *slog.Logger
	// Leases are what runs get.
	Leases Leases
}

// Fleet is the set of nodes. Methods may be called concurrently.
type Fleet struct {
	depth int
	dial  func(context.Context, string) (net.Conn, error)
	log   *slog.Logger
	nodes []*Node // never changes; the states inside are guarded
	// leases never change.
	leases Leases

	// mu guards every node's state and the fields below.
	mu    sync.Mutex
	queue []*Ticket
	turn  uint64
	// readied is closed, and replaced, when a node becomes ready.
	readied chan struct{}
}

// New starts nothing.
func New(c Config) *Fleet {
	f := &Fleet{depth: c.QueueDepth, dial: c.Dial, log: c.Log, leases: c.Leases, readied: make(chan struct{})}
	for _, m := range c.Members {
		f.nodes = append(f.nodes, &Node{member: m, fleet: f, kick: make(chan struct{}, 1), ask: make(chan struct{}, 1), state: nodeState{reason: "not described yet", leases: map[run]*Lease{}}})
	}
	return f
}

// Run connects to every node, probes it and renews its leases until ctx ends; then it closes the connections.
func (f *Fleet) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, n := range f.nodes {
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
			n.probe(ctx, client)
			others.Wait()
		})
	}
	<-ctx.Done()
	return nil
}

// Node finds a node by id; nil for an unknown one.
func (f *Fleet) Node(id string) *Node {
	for _, n := range f.nodes {
		if n.member.ID == id {
			return n
		}
	}
	return nil
}

// Len is the number of nodes, ready or not.
func (f *Fleet) Len() int { return len(f.nodes) }

// Claim counts one running session on its node.
type Claim struct {
	Node *Node
	once sync.Once
}

// Release gives the context back. Later calls do nothing.
func (c *Claim) Release() {
	c.once.Do(func() {
		f := c.Node.fleet
		f.mu.Lock()
		defer f.mu.Unlock()
		c.Node.state.ours--
		f.dispatchLocked()
	})
}

// Want says where a session may go.
type Want struct {
	Model string
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

// Enqueue asks for a context. The claim may be there already. Close the ticket when done with it.
func (f *Fleet) Enqueue(w Want) (*Ticket, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &Ticket{C: make(chan *Claim, 1), want: w, fleet: f}
	if f.placeLocked(t) {
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

// Occupy counts a session on n without asking for room: a takeover uses reserved contexts, and the
// node itself decides.
func (f *Fleet) Occupy(n *Node) *Claim {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.occupyLocked(n)
}

func (f *Fleet) occupyLocked(n *Node) *Claim {
	f.turn++
	n.state.ours++
	n.state.lastUsed = f.turn
	return &Claim{Node: n}
}

func (f *Fleet) placeLocked(t *Ticket) bool {
	i := Primary(f.viewsLocked(), t.want.Model, t.want.Avoid)
	if i < 0 {
		return false
	}
	t.C <- f.occupyLocked(f.nodes[i])
	return true
}

// dispatchLocked serves the queue in order. A ticket that can't be served doesn't hold up the next: it
// may avoid a node that the next can use.
func (f *Fleet) dispatchLocked() {
	f.queue = slices.DeleteFunc(f.queue, f.placeLocked)
}

func (f *Fleet) viewsLocked() []View {
	views := make([]View, len(f.nodes))
	for i, n := range f.nodes {
		views[i] = n.state.view(n.member.ID)
	}
	return views
}

// Hold counts one session that its node holds for another.
type Hold struct {
	Node *Node
	once sync.Once
}

// Drop ends the count. Later calls do nothing.
func (h *Hold) Drop() {
	h.once.Do(func() {
		f := h.Node.fleet
		f.mu.Lock()
		defer f.mu.Unlock()
		h.Node.state.held--
	})
}

// PickHolder chooses a holder for a session whose primary is given; nil when there is none.
func (f *Fleet) PickHolder(primary *Node, avoid []string) *Hold {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := Holder(f.viewsLocked(), primary.member.ID, avoid)
	if i < 0 {
		return nil
	}
	n := f.nodes[i]
	f.turn++
	n.state.held++
	n.state.lastHeld = f.turn
	return &Hold{Node: n}
}

// Readied is closed when a node next becomes ready. Take it before looking at the nodes.
func (f *Fleet) Readied() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.readied
}

// Ready is the number of ready nodes.
func (f *Fleet) Ready() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	ready := 0
	for _, n := range f.nodes {
		if n.state.ready {
			ready++
		}
	}
	return ready
}

// Queued is the number of sessions that wait.
func (f *Fleet) Queued() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue)
}

// Models lists what the nodes serve, sorted, including nodes that aren't ready at the moment.
func (f *Fleet) Models() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for _, n := range f.nodes {
		if m := n.state.described.GetModel(); m != "" {
			names = append(names, m)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Status lists the nodes in the order of the configuration.
func (f *Fleet) Status() []Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]Status, len(f.nodes))
	for i, n := range f.nodes {
		list[i] = n.state.status(n.member)
		list[i].Leases = n.leaseStatusLocked()
	}
	return list
}
