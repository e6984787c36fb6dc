// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/seguekv/segue/transfer"
)

// memNet is a network of in-memory listeners, addressed as 127.0.0.1:N. Its links can be slow or freeze.
type memNet struct {
	started []*testNode

	mu    sync.Mutex
	nodes map[string]*bufconn.Listener
	// lag is how long bytes from an agent take to a peer, by the sender's id; frozen is closed when frozen
	// links flow again, nil when they flow.
	lag    map[string]time.Duration
	frozen map[string]chan struct{}
	// dials counts attempts to connect, by sender's id and address.
	dials map[[2]string]int
}

// dialed is how often agent from has tried to connect to addr.
func (n *memNet) dialed(from, addr string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials[[2]string{from, addr}]
}

func newMemNet() *memNet {
	return &memNet{
		nodes: map[string]*bufconn.Listener{}, lag: map[string]time.Duration{}, frozen: map[string]chan struct{}{}, dials: map[[2]string]int{},
	}
}

func (n *memNet) listen(addr string, l *bufconn.Listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l == nil {
		delete(n.nodes, addr)
		return
	}
	n.nodes[addr] = l
}

// delay makes bytes that agent from sends to its peers take d.
func (n *memNet) delay(from string, d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lag[from] = d
}

// freeze stops what agent from sends to its peers and what they answer, without closing anything.
func (n *memNet) freeze(from string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen[from] = make(chan struct{})
}

// thaw ends every freeze.
func (n *memNet) thaw() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for from, c := range n.frozen {
		close(c)
		delete(n.frozen, from)
	}
}

func (n *memNet) options(from string) []grpc.DialOption {
	return append(transfer.DialOptions(), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		n.mu.Lock()
		l := n.nodes[addr]
		n.dials[[2]string{from, addr}]++
		n.mu.Unlock()
		if l == nil {
			return nil, errors.New("connection refused")
		}
		c, err := l.DialContext(ctx)
		if err != nil {
			return nil, err
		}
		w := &wire{Conn: c, net: n, from: from, out: make(chan packet, 1024), closed: make(chan struct{})}
		go w.carry() // until Close
		return w, nil
	}))
}

// wire is a connection over a link of the network.
type wire struct {
	net.Conn
	net    *memNet
	from   string
	out    chan packet
	closed chan struct{}
	once   sync.Once
}

type packet struct {
	bytes []byte
	due   time.Time
}

func (w *wire) Write(p []byte) (int, error) {
	w.net.mu.Lock()
	lag := w.net.lag[w.from]
	w.net.mu.Unlock()
	select {
	case w.out <- packet{slices.Clone(p), time.Now().Add(lag)}:
		return len(p), nil
	case <-w.closed:
		return 0, net.ErrClosed
	}
}

// carry delivers packets in order, each when it is due.
func (w *wire) carry() {
	for {
		var p packet
		select {
		case p = <-w.out:
		case <-w.closed:
			return
		}
		if d := time.Until(p.due); d > 0 {
			select {
			case <-time.After(d):
			case <-w.closed:
				return
			}
		}
		w.wait()
		if _, err := w.Conn.Write(p.bytes); err != nil {
			return
		}
	}
}

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	w.wait()
	return n, err
}

// wait returns when the link isn't frozen.
func (w *wire) wait() {
	w.net.mu.Lock()
	frozen := w.net.frozen[w.from]
	w.net.mu.Unlock()
	if frozen == nil {
		return
	}
	select {
	case <-frozen:
	case <-w.closed:
	}
}

func (w *wire) Close() error {
	w.once.Do(func() { close(w.closed) })
	return w.Conn.Close()
}
