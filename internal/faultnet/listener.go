// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package faultnet

import (
	"context"
	"net"
	"syscall"
	"time"
)

// backlog is how many connections may wait to be accepted; further dials hang.
const backlog = 128

// listener is a host's net.Listener at an address.
type listener struct {
	net     *Net
	host    string
	addr    addr
	changed signal
	waiting []*end
	closed  bool
}

// Listen listens at an address, which is free again when the listener is closed. It starts a host that was down.
func (n *Net) Listen(host, address string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed:
		return nil, listenError(address, net.ErrClosed)
	case n.listeners[address] != nil:
		return nil, listenError(address, syscall.EADDRINUSE)
	}
	l := &listener{net: n, host: host, addr: addr(address)}
	n.listeners[address], n.homes[address] = l, host
	n.start(host)
	n.changed.raise()
	return l, nil
}

func listenError(address string, err error) error {
	return &net.OpError{Op: "listen", Net: "faultnet", Addr: addr(address), Err: err}
}

// Accept is net.Listener's.
func (l *listener) Accept() (net.Conn, error) {
	n := l.net
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		switch {
		case l.closed:
			return nil, &net.OpError{Op: "accept", Net: "faultnet", Addr: l.addr, Err: net.ErrClosed}
		case len(l.waiting) > 0 && !n.host(l.host).frozen:
			e := l.waiting[0]
			l.waiting = l.waiting[1:]
			n.changed.raise()
			return e, nil
		}
		n.await(&l.changed, nil)
	}
}

// Addr is the address it was made with.
func (l *listener) Addr() net.Addr { return l.addr }

// Close is net.Listener's. Connections that nobody accepted are reset.
func (l *listener) Close() error {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	if l.closed {
		return &net.OpError{Op: "close", Net: "faultnet", Addr: l.addr, Err: net.ErrClosed}
	}
	l.end()
	return nil
}

// end is Close. Called with mu held.
func (l *listener) end() {
	l.closed = true
	delete(l.net.listeners, string(l.addr))
	for _, e := range l.waiting {
		if !l.net.host(l.host).off {
			e.end(markReset)
		}
	}
	l.waiting = nil
	l.changed.raise()
	l.net.changed.raise()
}

// Dial connects a host with whoever listens at an address. It takes one round trip; where the path is cut or the machine
// is off it hangs until ctx ends, where nobody listens it is refused.
func (n *Net) Dial(ctx context.Context, host, address string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "faultnet", Source: addr(host), Addr: addr(address), Err: err}
	}
	home := n.home(address)
	count := n.count(host, home)
	count.Dials++
	var there time.Time // when the round trip ends
	for hung := false; ; {
		home = n.home(address)
		out, back := n.link(host, home), n.link(home, host)
		l := n.listeners[address]
		switch {
		case n.closed:
			return fail(net.ErrClosed)
		case ctx.Err() != nil:
			return fail(ctx.Err())
		case n.host(host).down:
			return fail(ErrDown)
		case n.host(host).frozen || out.Cut || back.Cut || n.host(home).off || l != nil && len(l.waiting) >= backlog:
			if !hung {
				count.Hung++
				hung = true
			}
			there = time.Time{}
			n.await(&n.changed, ctx.Done())
			continue
		case there.IsZero():
			there = time.Now().Add(out.Latency + back.Latency)
		}
		if there.After(time.Now()) {
			n.await(&n.changed, ctx.Done(), there)
			continue
		}
		if l == nil {
			count.Refused++
			return fail(syscall.ECONNREFUSED)
		}
		c := n.connect(host, l)
		l.waiting = append(l.waiting, c.ends[1])
		l.changed.raise()
		return c.ends[0], nil
	}
}

// home is the host that an address belongs to: one that was never listened at is named after itself. Called with mu
// held.
func (n *Net) home(address string) string {
	if h, ok := n.homes[address]; ok {
		return h
	}
	return address
}
