// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
)

// control is a listener of synchronous in-memory connections, for the admin side of things, which no fault touches.
type control struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newControl() *control { return &control{conns: make(chan net.Conn), done: make(chan struct{})} }

func (c *control) Accept() (net.Conn, error) {
	select {
	case conn := <-c.conns:
		return conn, nil
	case <-c.done:
		return nil, net.ErrClosed
	}
}

func (c *control) Close() error   { c.once.Do(func() { close(c.done) }); return nil }
func (c *control) Addr() net.Addr { return controlAddr{} }

func (c *control) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case c.conns <- b:
		return a, nil
	case <-c.done:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// client keeps one connection, which ends with the listener's server.
func (c *control) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: c.dial, MaxIdleConnsPerHost: 1, DisableCompression: true}}
}

type controlAddr struct{}

func (controlAddr) Network() string { return "control" }
func (controlAddr) String() string  { return "control" }
