// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func session(n byte) snapshot.SessionID { return snapshot.SessionID{n, 0xaa, 15: n} }

func baseOf(n byte, e fence.Epoch) snapshot.BaseID {
	return snapshot.BaseID{Session: session(n), Epoch: e}
}

// run is a captured session: the rows and tokens of its history are functions of (seed, position).
type run struct {
	t      testing.TB
	head   snapshot.Head
	seed   byte
	row    int
	chain  *snapshot.Chain // the outbox's
	outbox *transfer.Outbox
	n      int // boundaries captured
}

func newHead(id snapshot.BaseID, prompt, maxOutput, row int) snapshot.Head {
	h := snapshot.Head{
		BaseID:      id,
		Geometry:    snapshot.Geometry{Layers: []snapshot.LayerRows{{KBytes: row / 2, VBytes: row - row/2, KType: "f16", VType: "f16"}}},
		Fingerprint: []byte("fp"), Request: snapshot.Digest{7}, MaxOutput: maxOutput,
	}
	for i := range prompt {
		h.Prompt = append(h.Prompt, int32(100+i))
	}
	return h
}

// newRun returns a run whose outbox has nothing captured yet.
func newRun(t testing.TB, h snapshot.Head, window int) *run {
	t.Helper()
	c, err := snapshot.NewChain(h)
	if err != nil {
		t.Fatal(err)
	}
	return &run{t: t, head: h, row: h.Geometry.RowBytes(), chain: c, outbox: transfer.NewOutbox(c, window)}
}

func tokenOf(i int) int32 { return int32(3*i + 1) }

func (r *run) rowOf(i int) []byte {
	b := make([]byte, r.row)
	for j := range b {
		b[j] = byte(i) ^ byte(j*5) ^ byte(j>>8) ^ r.seed
	}
	return b
}

// prefill captures prompt rows [first, first+count).
func (r *run) prefill(first, count int) {
	r.t.Helper()
	var b []byte
	for i := first; i < first+count; i++ {
		b = append(b, r.rowOf(i)...)
	}
	if err := r.outbox.AppendRows(first, b); err != nil {
		r.t.Fatal(err)
	}
}

// decode captures boundaries until there are n.
func (r *run) decode(n int) {
	r.t.Helper()
	for r.n < n {
		var row []byte
		if r.n > 0 {
			row = r.rowOf(len(r.head.Prompt) + r.n - 1)
		}
		r.n++
		if err := r.outbox.AppendBoundary(r.n, tokenOf(r.n-1), snapshot.Sampler{Seed: 9, Draws: uint64(r.n)}, row); err != nil {
			r.t.Fatal(err)
		}
	}
}

// capture captures the whole prompt and n boundaries.
func (r *run) capture(n int) *run {
	r.t.Helper()
	r.prefill(0, len(r.head.Prompt))
	r.decode(n)
	return r
}

// await waits until the outbox's status satisfies want.
func (r *run) await(what string, want func(s transfer.Status) bool) transfer.Status {
	r.t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		changed := r.outbox.Changed()
		s := r.outbox.Status()
		if want(s) {
			return s
		}
		select {
		case <-changed:
		case <-timeout:
			r.t.Fatalf("no %s within 20 s: %+v", what, r.outbox.Status())
		}
	}
}

func (r *run) awaitCommitted(n int) transfer.Status {
	r.t.Helper()
	return r.await("commit", func(s transfer.Status) bool { return s.Committed >= n })
}

func (r *run) need(d int) snapshot.Need {
	p := snapshot.IDsDigest(r.head.Prompt)
	ids := make([]int32, d)
	for i := range ids {
		ids[i] = tokenOf(i)
	}
	return snapshot.Need{Delivered: d, PromptDigest: &p, OutputDigest: snapshot.IDsDigest(ids), Request: r.head.Request}
}

// checkTakeover takes the session over from s at d and compares every row; the state must be at boundary
// at least d.
func (r *run) checkTakeover(s *snapshot.Store, d int) {
	r.t.Helper()
	held, err := s.Takeover(r.head.Session, r.head.Epoch+1, r.need(d))
	if err != nil {
		r.t.Fatal(err)
	}
	defer held.Memory.Release()
	r.checkState(held.State)
}

func (r *run) checkState(st *snapshot.State) {
	r.t.Helper()
	for i := range st.Rows() {
		if string(st.RowData(i)) != string(r.rowOf(i)) {
			r.t.Fatalf("row %d differs", i)
		}
	}
	for i, id := range st.Output {
		if id != tokenOf(i) {
			r.t.Fatalf("output id %d is %d", i, id)
		}
	}
}

// network connects dialers with the listeners of nodes, by name, and counts and breaks connections.
type network struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	conns     map[net.Conn]string
	dials     int
	// wrap, if set, changes a new connection of the dialer.
	wrap func(net.Conn) net.Conn
}

func newNetwork() *network {
	return &network{listeners: make(map[string]*bufconn.Listener), conns: make(map[net.Conn]string)}
}

func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	wrap := n.wrap
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("nobody listens at " + addr)
	}
	c, err := l.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	if wrap != nil {
		c = wrap(c)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[c] = addr
	n.dials++
	return c, nil
}

func (n *network) setWrap(wrap func(net.Conn) net.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wrap = wrap
}

// cut breaks every connection to addr.
func (n *network) cut(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c, a := range n.conns {
		if a == addr {
			_ = c.Close()
			delete(n.conns, c)
		}
	}
}

func (n *network) dialed() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials
}

func (n *network) options() []grpc.DialOption {
	return append(transfer.DialOptions(), grpc.WithContextDialer(n.dial))
}

// holder is one process life of a holder.
type holder struct {
	store  *snapshot.Store
	budget *snapshot.Budget
	server *grpc.Server
	stop   chan struct{}
	served chan error
}

// listen starts a holder on the network; its life ends with end, or with the test.
func (n *network) listen(t *testing.T, name string, boot byte, limit int64, accept func(*snapshot.Head) error) *holder {
	t.Helper()
	b := snapshot.NewBudget(limit)
	h := &holder{
		budget: b, store: snapshot.NewStore(b, accept), stop: make(chan struct{}), served: make(chan error, 1),
		server: grpc.NewServer(transfer.ServerOptions()...),
	}
	self := transfer.Self{NodeID: name, Boot: [16]byte{boot}}
	seguev1.RegisterReplicationServiceServer(h.server, transfer.NewReceiver(self, h.store, h.stop, func(int) {}, quiet()))
	n.serve(name, h.server, h.served)
	t.Cleanup(h.end)
	return h
}

func (n *network) serve(name string, s *grpc.Server, served chan<- error) {
	l := bufconn.Listen(256 << 10)
	n.mu.Lock()
	n.listeners[name] = l
	n.mu.Unlock()
	go func() { served <- s.Serve(l) }() // ends with the server's Stop, which end waits for
}

// end kills the holder at once.
func (h *holder) end() {
	h.server.Stop()
	<-h.served
	h.served <- nil
}

func acceptAll(*snapshot.Head) error { return nil }

// senders runs a pool until the test ends.
func senders(t *testing.T, n *network) *transfer.Pool {
	t.Helper()
	p, stop := runPool(t, n)
	t.Cleanup(stop)
	return p
}

func runPool(t *testing.T, n *network) (p *transfer.Pool, stop func()) {
	t.Helper()
	p = transfer.NewPool(transfer.Self{NodeID: "a", Boot: [16]byte{0xaa}}, n.options(), quiet())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }() // ends with stop
	synctest.Wait()
	return p, func() {
		cancel()
		<-done
	}
}

func to(t *testing.T, p *transfer.Pool, name string) *transfer.Sender {
	t.Helper()
	s, err := p.To(name, "passthrough:///"+name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// held is what a store holds of a session.
func held(s *snapshot.Store, id snapshot.SessionID) (snapshot.Offer, bool) {
	for _, o := range s.Offers() {
		if o.Session == id {
			return o, true
		}
	}
	return snapshot.Offer{}, false
}

// encode is the run's base, its rows and its boundaries, as records.
func (r *run) encode() [][]byte {
	c := r.chain
	h, at := c.Head(), 0
	out := [][]byte{snapshot.AppendBaseRecord(nil, h)}
	rows := func(to int) {
		if at < to {
			out = append(out, bytes.Join(snapshot.AppendRowsRecord(nil, c, at, to-at), nil))
			at = to
		}
	}
	for n := c.First(); n <= c.Committed(); n++ {
		rows(len(h.Prompt) + n - 1)
		out = append(out, snapshot.AppendBoundaryRecord(nil, h.BaseID, c.BoundaryAt(n)))
	}
	rows(c.Rows())
	return out
}

// fill brings a run into a store, as if from a sender of runPool.
func fill(t *testing.T, s *snapshot.Store, r *run) {
	t.Helper()
	rd := snapshot.NewReader(bytes.NewReader(bytes.Join(r.encode(), nil)))
	for {
		h, err := rd.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil && h.Kind == snapshot.KindBase {
			var x snapshot.Head
			if x, err = rd.Base(); err == nil {
				err = s.Begin(x, [16]byte{0xaa})
			}
		} else if err == nil {
			_, _, err = s.Apply(rd)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// frame is a plain protobuf message of records.
func frame(records ...[]byte) *seguev1.ReplicateRequest {
	var all []byte
	for _, r := range records {
		all = append(all, r...)
	}
	return &seguev1.ReplicateRequest{Frame: &seguev1.ReplicateRequest_Records{Records: all}}
}

func newStore() *snapshot.Store { return snapshot.NewStore(snapshot.NewBudget(1<<30), acceptAll) }
