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

// Pool keeps one Sender per peer.
type Pool struct {
	self Self
	dial []grpc.DialOption
	log  *slog.Logger

	mu     sync.Mutex
	peers  map[string]*peer
	ctx    context.Context
	run    *sync.WaitGroup
	closed bool
}

type peer struct {
	sender *Sender
	conn   *grpc.ClientConn
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
	peers := p.peers
	p.mu.Unlock()
	run.Wait()
	for _, x := range peers {
		_ = x.conn.Close()
	}
	return context.Cause(ctx)
}

// To returns the sender to the peer at addr.
func (p *Pool) To(id, addr string) (*Sender, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil || p.closed {
		return nil, ErrClosed
	}
	if x := p.peers[addr]; x != nil {
		return x.sender, nil
	}
	if len(p.peers) >= maxPeers {
		return nil, fmt.Errorf("transfer: %d peers are in use, limit %d", len(p.peers), maxPeers)
	}
	conn, err := grpc.NewClient(addr, p.dial...)
	if err != nil {
		return nil, fmt.Errorf("dial holder %s: %w", id, err)
	}
	s := NewSender(p.self, conn, p.log.With("peer", id))
	p.peers[addr] = &peer{sender: s, conn: conn}
	ctx := p.ctx
	p.run.Go(func() { _ = s.Run(ctx) })
	return s, nil
}

// SentBytes is the number of bytes handed to the transport, over all peers.
func (p *Pool) SentBytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var n int64
	for _, x := range p.peers {
		n += x.sender.SentBytes()
	}
	return n
}
