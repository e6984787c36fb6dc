// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	enginev1 "github.com/seguekv/segue/api/segue/engine/v1"
	"github.com/seguekv/segue/engines"
)

// runCredit is how many events of a run may lie between engine and sink.
const runCredit = 4

// Client is the agent's side of one link. It implements engines.Engine; its methods may be called
// concurrently. Runs make progress only while Serve runs. Once the link is gone every method returns
// engines.ErrLost with the reason, for good: a new host means a new Client.
type Client struct {
	conn net.Conn
	d    *engines.Description
	in   *frameReader
	out  *frameWriter
	last atomic.Pointer[heard]

	// done is closed when the link is gone; lost is written before.
	done chan struct{}
	lost error

	startMu sync.Mutex // orders run frames by number: held while one is written
	next    uint32

	mu   sync.Mutex
	runs map[uint32]*clientRun // nil when the link is gone
}

var _ engines.Engine = (*Client)(nil)

// heard is a facts frame and when it came.
type heard struct {
	facts engines.Facts
	at    time.Time
}

// Connect exchanges hellos over conn, which it owns and closes when it fails. It waits for the host's as
// long as ctx lives: a host answers when its model is loaded.
func Connect(ctx context.Context, conn net.Conn) (*Client, error) {
	c := &Client{
		conn: conn,
		in:   newFrameReader(conn),
		out:  newFrameWriter(conn),
		done: make(chan struct{}),
		runs: map[uint32]*clientRun{},
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	setBuffers(conn)
	err := c.hello()
	if !stop() { // conn is closed, or about to be
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to engine host: %w", err)
	}
	c.last.Store(&heard{at: time.Now()})
	return c, nil
}

func (c *Client) hello() error {
	if err := c.out.message(kindHello, &enginev1.Hello{Version: version}); err != nil {
		return err
	}
	_, n, err := c.in.next()
	if errors.Is(err, io.EOF) {
		return errors.New("the host closed the link before its hello")
	}
	if err != nil {
		return err
	}
	var peer enginev1.Hello
	if err := c.in.message(n, &peer); err != nil {
		return err
	}
	if err := checkVersion(peer.GetVersion(), "host", "agent"); err != nil {
		return err
	}
	if c.d, err = descriptionFromHello(&peer); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	c.in.limits = hostLimits(c.d)
	return nil
}

// Describe returns what the host's hello said. Callers must not modify it.
func (c *Client) Describe(context.Context) (*engines.Description, error) {
	if err := c.gone(); err != nil {
		return nil, err
	}
	return c.d, nil
}

// Observe returns the last facts the host sent, at most about 200 ms old on a healthy host. Counters are
// never behind a run that has returned.
func (c *Client) Observe(context.Context) (engines.Facts, error) {
	if err := c.gone(); err != nil {
		return engines.Facts{}, err
	}
	return c.last.Load().facts, nil
}

// LastHeard is when the last facts came, or when Connect returned if none has come. A host sends them even
// while its engine computes, so a growing age means that the process is stopped or starved.
func (c *Client) LastHeard() time.Time { return c.last.Load().at }

// Done is closed when the link is gone.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close closes the link, which ends the host process. Serve and all runs return. Idempotent.
func (c *Client) Close() error {
	c.fail(errors.New("closed by the agent"))
	return nil
}

// Serve reads what the host sends. It blocks until the link is gone and returns why: the cause of ctx,
// ErrProtocol, or engines.ErrLost. It may be called once.
func (c *Client) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { c.fail(context.Cause(ctx)) })
	defer stop()
	c.fail(ended(ctx, c.read()))
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(c.lost, ErrProtocol) {
		return c.lost
	}
	return c.gone()
}

// fail closes the link and ends every run. The first call decides why; nil means that the host closed it.
func (c *Client) fail(err error) {
	if err == nil {
		err = errors.New("the host closed the link")
	}
	c.mu.Lock()
	first := c.runs != nil
	if first {
		c.runs = nil
		c.lost = err
		close(c.done)
	}
	c.mu.Unlock()
	if first {
		c.conn.Close()
	}
}

// gone is nil while the link lives.
func (c *Client) gone() error {
	select {
	case <-c.done:
		return fmt.Errorf("%w: %w", engines.ErrLost, c.lost)
	default:
		return nil
	}
}

// register gives r its number and makes it known to the reader.
func (c *Client) register(r *clientRun) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs == nil {
		return c.gone()
	}
	c.next++
	r.id = c.next
	c.runs[r.id] = r
	return nil
}

// start sends the run frame.
func (c *Client) start(r *clientRun, m *enginev1.Run) error {
	c.startMu.Lock()
	defer c.startMu.Unlock()
	if err := c.register(r); err != nil {
		return err
	}
	m.Run = r.id
	if err := c.send(kindRun, m); err != nil {
		return err
	}
	if r.id == math.MaxUint32 {
		c.fail(errors.New("run numbers are used up"))
	}
	return nil
}

// send writes a message; a failure ends the link.
func (c *Client) send(k kind, m proto.Message) error {
	if err := c.out.message(k, m); err != nil {
		c.fail(err)
		return c.gone()
	}
	return nil
}

// read dispatches the host's frames. It never waits for a run or writes.
func (c *Client) read() error {
	var token enginev1.Token // reused, so that a token costs few allocations
	for {
		k, n, err := c.in.next()
		if err != nil {
			return err
		}
		switch k {
		case kindPrompt:
			err = c.prompt(n)
		case kindPrefilled:
			err = c.prefilled(n)
		case kindToken:
			err = c.token(n, &token)
		case kindEnd:
			err = c.end(n)
		case kindFacts:
			var m enginev1.Facts
			if err = c.in.message(n, &m); err == nil {
				c.last.Store(&heard{facts: factsFromMessage(&m), at: time.Now()})
			}
		}
		if err != nil {
			return err
		}
	}
}

// run returns an active run. The host names no other.
func (c *Client) run(id uint32) (*clientRun, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.runs[id]; r != nil {
		return r, nil
	}
	if c.runs == nil {
		return nil, net.ErrClosed
	}
	return nil, fmt.Errorf("%w: frame for run %d, which is not active", ErrProtocol, id)
}

func (c *Client) prompt(n int) error {
	var m enginev1.Prompt
	if err := c.in.message(n, &m); err != nil {
		return err
	}
	r, err := c.run(m.GetRun())
	if err != nil {
		return err
	}
	if err := r.seq.promptIDs(m.GetIds()); err != nil {
		return r.broken(err)
	}
	return r.push(event{kind: kindPrompt, ids: m.GetIds()}, 0)
}

func (c *Client) prefilled(n int) error {
	var m enginev1.Prefilled
	rows, err := c.in.mixed(n, &m)
	if err != nil {
		return err
	}
	r, err := c.run(m.GetRun())
	if err != nil {
		return err
	}
	ev := event{kind: kindPrefilled, first: int(m.GetFirst()), count: int(m.GetCount())}
	if err := r.seq.prefilled(ev.first, ev.count, rows); err != nil {
		return r.broken(err)
	}
	return r.push(ev, rows)
}

func (c *Client) token(n int, m *enginev1.Token) error {
	row, err := c.in.mixed(n, m)
	if err != nil {
		return err
	}
	r, err := c.run(m.GetRun())
	if err != nil {
		return err
	}
	ev := event{kind: kindToken, token: tokenFromMessage(m)}
	if err := r.seq.token(&ev.token, row); err != nil {
		return r.broken(err)
	}
	return r.push(ev, row)
}

func (c *Client) end(n int) error {
	var m enginev1.End
	if err := c.in.message(n, &m); err != nil {
		return err
	}
	r, err := c.run(m.GetRun())
	if err != nil {
		return err
	}
	result := errorFromEnd(&m)
	if result == nil && !r.seq.finished {
		return r.broken(errors.New("it ends without a last token"))
	}
	c.mu.Lock()
	delete(c.runs, r.id)
	c.mu.Unlock()
	r.finish(result)
	return nil
}
