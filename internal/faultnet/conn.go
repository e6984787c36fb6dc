// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package faultnet

import (
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"
)

// conn is a connection: two ends, the dialler's first.
type conn struct {
	number int
	ends   [2]*end
}

// end is one end of a connection, a net.Conn. Its fields are guarded by the network's mu.
type end struct {
	net           *Net
	conn          *conn
	host          string
	local, remote addr
	in, out       *pipe
	changed       signal

	closed  bool
	lost    bool // closed by a machine that doesn't answer
	writing bool
	// readBy and writeBy are deadlines; zero is none.
	readBy, writeBy time.Time
}

// addr is an address of the network.
type addr string

func (a addr) Network() string { return "faultnet" }
func (a addr) String() string  { return string(a) }

// connect makes a connection. Called with mu held.
func (n *Net) connect(from string, l *listener) *conn {
	n.dialled++
	c := &conn{number: n.dialled}
	local := addr(from + ":" + strconv.Itoa(40000+n.dialled))
	a := &end{net: n, conn: c, host: from, local: local, remote: l.addr}
	b := &end{net: n, conn: c, host: l.host, local: l.addr, remote: local}
	a.out, b.out = n.pipe(a, b, 0), n.pipe(b, a, 1)
	a.in, b.in = b.out, a.out
	c.ends = [2]*end{a, b}
	n.conns[c] = struct{}{}
	return c
}

// pipe makes one direction; side tells the two of a connection apart. Jitter depends on the seed and on which of the
// pair's connections this is, not on the order in which others are made.
func (n *Net) pipe(src, dst *end, side uint64) *pipe {
	h := fnv.New64a()
	_, _ = h.Write([]byte(src.host + "\x00" + dst.host)) // A hash takes everything.
	nth := uint64(n.count(src.host, dst.host).Dials + n.count(dst.host, src.host).Dials)
	return &pipe{
		net: n, src: src, dst: dst, rule: n.rule(src.host, dst.host),
		rng: rand.New(rand.NewPCG(n.seed^h.Sum64(), nth<<1|side)),
	}
}

func (e *end) LocalAddr() net.Addr  { return e.local }
func (e *end) RemoteAddr() net.Addr { return e.remote }

func (e *end) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: "faultnet", Source: e.local, Addr: e.remote, Err: err}
}

// frozen reports, and counts, that the end's host can't do anything.
func (e *end) frozen() bool {
	if !e.net.host(e.host).frozen {
		return false
	}
	e.net.count(e.host, e.out.dst.host).Frozen++
	return true
}

func expired(t, now time.Time) bool { return !t.IsZero() && !t.After(now) }

// Read is net.Conn's. After a reset it returns what had arrived first.
func (e *end) Read(b []byte) (int, error) {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	for {
		now := time.Now()
		e.in.settle(now)
		switch {
		case e.closed:
			return 0, e.fail("read", net.ErrClosed)
		case e.frozen():
			e.net.await(&e.changed, nil)
			continue
		case expired(e.readBy, now):
			return 0, e.fail("read", os.ErrDeadlineExceeded)
		case len(b) == 0:
			return 0, nil
		case len(e.in.unread()) > 0:
			return e.in.read(b), nil
		case e.in.reset:
			return 0, e.fail("read", syscall.ECONNRESET)
		case e.in.ended:
			return 0, io.EOF
		}
		e.net.await(&e.changed, nil, e.in.next(), e.readBy)
	}
}

// Write is net.Conn's. It returns when the buffer has taken everything.
func (e *end) Write(b []byte) (int, error) {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	for e.writing && !e.closed {
		e.net.await(&e.changed, nil)
	}
	e.writing = true
	defer func() {
		e.writing = false
		e.changed.raise()
	}()
	written := 0
	for {
		now := time.Now()
		e.in.settle(now)
		switch {
		case e.closed:
			return written, e.fail("write", net.ErrClosed)
		case e.frozen():
			e.net.await(&e.changed, nil)
			continue
		case expired(e.writeBy, now):
			return written, e.fail("write", os.ErrDeadlineExceeded)
		case e.in.reset:
			return written, e.fail("write", syscall.ECONNRESET)
		case e.out.done:
			return written, e.fail("write", syscall.EPIPE)
		case len(b) == 0:
			return 0, nil
		}
		if room := e.out.room(); room > 0 {
			k, truncated := e.out.write(b[written:min(len(b), written+room)])
			written += k
			if truncated {
				e.out.send(segment{mark: markReset}, now)
				e.in.abort()
			}
			if written == len(b) {
				return written, nil
			}
			continue
		}
		e.net.await(&e.changed, nil, e.in.next(), e.writeBy)
	}
}

// CloseWrite ends what the peer can read; the peer learns of it in order, and not over a cut.
func (e *end) CloseWrite() error {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	if e.closed {
		return e.fail("close", net.ErrClosed)
	}
	if !e.out.done && !e.out.reset {
		e.out.send(segment{mark: markEnd}, time.Now())
		e.out.dst.changed.raise()
	}
	return nil
}

// Close is net.Conn's. What was written is still delivered.
func (e *end) Close() error {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	if e.closed {
		return e.fail("close", net.ErrClosed)
	}
	e.end(markEnd)
	return nil
}

// end closes this end and tells the peer, by a reset if something was left unread. Called with mu held.
func (e *end) end(m mark) {
	if e.closed {
		return
	}
	now := time.Now()
	e.in.settle(now)
	if len(e.in.unread()) > 0 {
		m = markReset
	}
	e.forget()
	switch {
	case e.in.reset || e.out.sentReset():
	case m == markReset || !e.out.done:
		e.out.send(segment{mark: m}, now)
	}
	e.in.reshape(now)
	e.out.dst.changed.raise()
}

// vanish closes this end without a word. Called with mu held.
func (e *end) vanish() {
	e.out.drop()
	e.out.done = true
	e.lost = true
	e.forget()
}

// forget makes an end closed: nobody reads what arrives there.
func (e *end) forget() {
	e.closed = true
	p := e.in
	p.size -= len(p.unread())
	p.buf, p.off = nil, 0
	e.changed.raise()
	p.src.changed.raise()
	if p.src.closed {
		delete(e.net.conns, e.conn)
	}
}

// SetDeadline is net.Conn's.
func (e *end) SetDeadline(t time.Time) error { return e.setDeadlines(&t, &t) }

// SetReadDeadline is net.Conn's.
func (e *end) SetReadDeadline(t time.Time) error { return e.setDeadlines(&t, nil) }

// SetWriteDeadline is net.Conn's.
func (e *end) SetWriteDeadline(t time.Time) error { return e.setDeadlines(nil, &t) }

func (e *end) setDeadlines(read, write *time.Time) error {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	if e.closed {
		return e.fail("set", net.ErrClosed)
	}
	if read != nil {
		e.readBy = *read
	}
	if write != nil {
		e.writeBy = *write
	}
	e.changed.raise()
	return nil
}
