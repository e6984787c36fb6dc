// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/grpc"
)

// maxPeers bounds the peers a node replicates to.
const maxPeers = 256

// Pool keeps one Sender per peer. When it is full, a new peer takes the place of the one that was asked for longest ago
// among those to which nothing is attached.
type Pool struct {
	self Self
	dial []grpc.DialOption
	log  *slog.Logger

	mu     sync.Mutex
	peers  map[string]*peer
	ctx    context.Context
	run    *sync.WaitGroup
	closed bool
	// asked counts calls of To. gone is what dropped senders had sent.
	asked, gone int64
}

type peer struct {
	sender *Sender
	asked  int64 // when To last returned it
	stop   context.CancelFunc
}

// NewPool returns a pool that dials with the options given, DialOptions in production.
func NewPool(self Self, dial []grpc.DialOption, log *slog.Logger) *Pool {
	return &Pool{self: self, dial: dial, log: log, peers: make(map[string]*peer)}
}

// Run owns the senders until ctx ends and returns when all have stopped. To works only while it runs.
func (p *Pool) Run(ctx context.Context) error {
	var run sync.WaitGroup
	p.mu.Lock()
	p.ctx, p.run = ctx, &run
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	run.Wait()
	return context.Cause(ctx)
}

// To returns the sender to the peer at addr. What is attached to a sender keeps it; one that had nothing attached for long
// may have been dropped: what is attached to it then finds no connection, and To has a new one.
func (p *Pool) To(id, addr string) (*Sender, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil || p.closed {
		return nil, ErrClosed
	}
	p.asked++
	if x := p.peers[addr]; x != nil {
		x.asked = p.asked
		return x.sender, nil
	}
	if len(p.peers) >= maxPeers && !p.dropLocked() {
		return nil, fmt.Errorf("transfer: %d peers are in use, limit %d", len(p.peers), maxPeers)
	}
	conn, err := grpc.NewClient(addr, p.dial...)
	if err != nil {
		return nil, fmt.Errorf("dial holder %s: %w", id, err)
	}
	s := NewSender(p.self, conn, p.log.With("peer", id))
	ctx, stop := context.WithCancel(p.ctx)
	p.peers[addr] = &peer{sender: s, asked: p.asked, stop: stop}
	p.run.Go(func() {
		defer stop()
		_ = s.Run(ctx)
		_ = conn.Close()
	})
	return s, nil
}

// dropLocked ends the idle sender that was asked for longest ago, and reports whether there was one.
func (p *Pool) dropLocked() bool {
	var oldest string
	for addr, x := range p.peers {
		if x.sender.idle() && (oldest == "" || x.asked < p.peers[oldest].asked) {
			oldest = addr
		}
	}
	x := p.peers[oldest]
	if x == nil {
		return false
	}
	x.stop()
	p.gone += x.sender.SentBytes()
	delete(p.peers, oldest)
	return true
}

// SentBytes is the number of bytes handed to the transport, over all peers.
func (p *Pool) SentBytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.gone
	for _, x := range p.peers {
		n += x.sender.SentBytes()
	}
	return n
}
