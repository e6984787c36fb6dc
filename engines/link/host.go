// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	enginev1 "github.com/seguekv/segue/api/segue/engine/v1"
	"github.com/seguekv/segue/engines"
)

const (
	// factsInterval is the time between two facts frames.
	factsInterval = 200 * time.Millisecond
	// maxRuns bounds the runs the host keeps track of, those it is about to refuse included.
	maxRuns = 2 * maxContexts
	// maxCredit bounds the credit of a run.
	maxCredit = 64
	// socketBytes is the size asked for socket buffers, so that several rows fit while the peer is busy.
	socketBytes = 4 << 20
)

// errClosed is the cause of runs that end since the link does.
var errClosed = errors.New("link: closed")

// Serve is the host's side of one link: it runs e for the agent at the other end of conn, which it owns
// and closes. It blocks until the agent closes the link (nil), ctx ends (its cause) or the agent breaks
// the protocol (ErrProtocol), then cancels all runs and waits for them.
func Serve(ctx context.Context, conn net.Conn, e engines.Engine) error {
	return serve(ctx, conn, e, func(wait func()) error { wait(); return nil })
}

// serve is Serve with a choice: settle gets the function that waits for all runs once the link is closed.
func serve(ctx context.Context, conn net.Conn, e engines.Engine, settle func(wait func()) error) error {
	h := &host{engine: e, in: newFrameReader(conn), out: newFrameWriter(conn), runs: map[uint32]*hostRun{}}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	setBuffers(conn)
	if err := h.hello(ctx); err != nil {
		return ended(ctx, err)
	}
	// Runs outlive ctx until conn is closed: the agent learns of the lost link, not of cancelled runs.
	rctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { h.sendFacts(rctx) })
	err := h.read(rctx, &wg)
	conn.Close()
	cancel(errClosed)
	if err := settle(wg.Wait); err != nil {
		return err
	}
	return ended(ctx, err)
}

// ended is the result of a side whose reader returned err.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// setBuffers asks for large socket buffers; the kernel may give less.
func setBuffers(conn net.Conn) {
	if c, ok := conn.(interface {
		SetReadBuffer(int) error
		SetWriteBuffer(int) error
	}); ok {
		_ = c.SetReadBuffer(socketBytes)
		_ = c.SetWriteBuffer(socketBytes)
	}
}

type host struct {
	engine engines.Engine
	d      *engines.Description
	in     *frameReader
	out    *frameWriter
	last   uint32 // highest run number seen; only the reader uses it

	factsMu sync.Mutex // orders facts as they are observed: held while they are sent

	mu   sync.Mutex
	runs map[uint32]*hostRun
}

// hello reads the agent's hello and answers it.
func (h *host) hello(ctx context.Context) error {
	d, err := h.engine.Describe(ctx)
	if err != nil {
		return fmt.Errorf("describe engine: %w", err)
	}
	if err := validateDescription(d); err != nil {
		return fmt.Errorf("description of engine %q: %w", d.Kind, err)
	}
	h.d = d
	_, n, err := h.in.next()
	if err != nil {
		return err
	}
	var peer enginev1.Hello
	if err := h.in.message(n, &peer); err != nil {
		return err
	}
	if err := h.out.message(kindHello, hostHello(d)); err != nil {
		return err
	}
	h.in.limits = agentLimits(d.Geometry.RowBytes())
	return checkVersion(peer.GetVersion(), "agent", "host")
}

func checkVersion(got uint32, peer, self string) error {
	if got == version {
		return nil
	}
	return fmt.Errorf("%w: %s speaks version %d, %s version %d; install both from one release", ErrProtocol, peer, got, self, version)
}

// read dispatches the agent's frames. It never waits for a run or writes.
func (h *host) read(ctx context.Context, wg *sync.WaitGroup) error {
	for {
		k, n, err := h.in.next()
		if err != nil {
			return err
		}
		switch k {
		case kindRun:
			err = h.start(ctx, n, wg)
		case kindState:
			err = h.state(n)
		case kindCredit:
			var m enginev1.Credit
			if err = h.in.message(n, &m); err != nil {
				break
			}
			var r *hostRun
			if r, err = h.run(m.GetRun()); r != nil {
				err = r.grant(m.GetEvents())
			}
		case kindCancel:
			var m enginev1.Cancel
			if err = h.in.message(n, &m); err != nil {
				break
			}
			var r *hostRun
			if r, err = h.run(m.GetRun()); r != nil {
				r.cancel(errors.New("the agent cancelled the run"))
			}
		}
		if err != nil {
			return err
		}
	}
}

// run returns an active run, nil for one that has ended.
func (h *host) run(id uint32) (*hostRun, error) {
	if id == 0 || id > h.last {
		return nil, fmt.Errorf("%w: run %d was never started", ErrProtocol, id)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.runs[id], nil
}

// start reads a run frame and starts its goroutine, which refuses the run if it can't be accepted.
func (h *host) start(ctx context.Context, n int, wg *sync.WaitGroup) error {
	b, err := h.in.bytes(n)
	if err != nil {
		return err
	}
	if err := checkRunFields(b); err != nil {
		return err
	}
	m := &enginev1.Run{}
	if err := unmarshal(b, m); err != nil {
		return err
	}
	id := m.GetRun()
	if id <= h.last {
		return fmt.Errorf("%w: run %d starts after run %d", ErrProtocol, id, h.last)
	}
	if c := m.GetCredit(); c < 1 || c > maxCredit {
		return fmt.Errorf("%w: run %d has credit %d, want 1..%d", ErrProtocol, id, c, maxCredit)
	}
	h.last = id
	r := newHostRun(ctx, h, m)
	h.mu.Lock()
	active := len(h.runs)
	if active < maxRuns {
		h.runs[id] = r
	}
	h.mu.Unlock()
	if active >= maxRuns {
		return fmt.Errorf("%w: more than %d runs at once", ErrProtocol, maxRuns)
	}
	if active >= h.d.Contexts && r.refusal == nil {
		r.refusal = fmt.Errorf("%w: all %d are in use", engines.ErrNoCapacity, h.d.Contexts)
	}
	wg.Go(r.serve)
	return nil
}

// state reads rows of a state frame into the run's blocks.
func (h *host) state(n int) error {
	id, first, err := h.in.state(n)
	if err != nil {
		return err
	}
	r, err := h.run(id)
	if err != nil {
		return err
	}
	if r == nil || r.refusal != nil {
		return h.in.skip(n - stateHeader)
	}
	return r.receive(first, n-stateHeader)
}

// remove forgets a run, before its end frame tells the agent that its context is free.
func (h *host) remove(id uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.runs, id)
}

// sendFacts sends the engine's counters until ctx ends.
func (h *host) sendFacts(ctx context.Context) {
	t := time.NewTicker(factsInterval)
	defer t.Stop()
	for {
		h.facts(ctx)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// facts sends the engine's counters once. An engine that can't tell sends none: silence is what the agent
// watches for. A failed write has closed the link, and the reader returns.
func (h *host) facts(ctx context.Context) {
	h.factsMu.Lock()
	defer h.factsMu.Unlock()
	if f, err := h.engine.Observe(ctx); err == nil {
		_ = h.out.message(kindFacts, factsMessage(f))
	}
}
