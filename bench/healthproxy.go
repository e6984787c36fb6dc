// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// linkState is what a cable does.
type linkState int

const (
	linkUp     linkState = iota
	linkReset            // connections are reset, new ones too
	linkSilent           // nothing passes any more, and nobody is told
)

// cable forwards TCP connections to one address, until it is cut. Methods may be called concurrently.
type cable struct {
	to       string
	listener net.Listener
	running  sync.WaitGroup

	mu    sync.Mutex
	state linkState
	// changed is closed when the state changes.
	changed chan struct{}
	conns   map[net.Conn]struct{}
}

// lay opens a cable to an address, on a free port of its own.
func lay(to string) (*cable, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open a port before %s: %w", to, err)
	}
	c := &cable{to: to, listener: l, changed: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	c.running.Go(c.accept)
	return c, nil
}

func (c *cable) addr() string { return c.listener.Addr().String() }

// close resets what is open and returns when nothing of the cable is left.
func (c *cable) close() {
	_ = c.listener.Close()
	c.set(linkReset)
	c.running.Wait()
}

// set changes the state, and returns just before it did.
func (c *cable) set(state linkState) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Now()
	c.state = state
	close(c.changed)
	c.changed = make(chan struct{})
	// What was silent can't go on where it was: bytes are missing.
	if state != linkSilent {
		for conn := range c.conns {
			reset(conn)
		}
	}
	return at
}

// now is the state, and what tells of the next.
func (c *cable) now() (linkState, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state, c.changed
}

func (c *cable) accept() {
	for {
		from, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.running.Go(func() { c.forward(from) })
	}
}

// hold has the connection reset with the next change; it is false while there is no way through.
func (c *cable) hold(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == linkReset {
		reset(conn)
		return false
	}
	c.conns[conn] = struct{}{}
	return true
}

func (c *cable) drop(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
	_ = conn.Close()
}

func (c *cable) forward(from net.Conn) {
	if !c.hold(from) {
		return
	}
	defer c.drop(from)
	to, err := net.DialTimeout("tcp", c.to, time.Second)
	if err != nil {
		return
	}
	if !c.hold(to) {
		return
	}
	defer c.drop(to)
	var ways sync.WaitGroup
	defer ways.Wait()
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		ways.Go(func() {
			c.copy(way[1], way[0])
			reset(from)
			reset(to)
		})
	}
}

// copy moves bytes one way. While the cable is silent what arrives is lost.
func (c *cable) copy(to io.Writer, from io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		state, changed := c.now()
		if state == linkSilent {
			<-changed // The connection is reset then.
			return
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// reset closes a connection with RST instead of FIN.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
