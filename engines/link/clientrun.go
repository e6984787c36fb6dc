// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import (
	"context"
	"fmt"
	"sync/atomic"

	enginev1 "github.com/seguekv/segue/api/segue/engine/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/snapshot"
)

// event is a prompt, prefilled, token or end frame on its way to the sink.
type event struct {
	kind         kind
	ids          []int32
	first, count int
	token        engines.Token
	rows         []byte // a buffer of the run, nil without rows
	end          error
}

// clientRun is a run on the agent. The client's reader pushes events, Run takes them.
type clientRun struct {
	client *Client
	id     uint32
	seq    sequence // the reader's
	// events has room for every event with credit and the end, so that the reader never blocks.
	events chan event
	// buffers are free row buffers, at most as many as the run's credit.
	buffers chan []byte
	// allowed is the host's credit: events it may still send.
	allowed atomic.Int32
	// ended is closed when the end is in events.
	ended chan struct{}
}

// Run implements engines.Engine. The sink is called on the caller's goroutine, at most 4 events behind the
// host. When ctx ends or the sink fails, it cancels the run on the host and waits for its end, since only
// then the context is free; a lost link ends the wait.
func (c *Client) Run(ctx context.Context, job engines.Job, sink engines.Sink) error {
	if ctx.Err() != nil {
		return canceled(ctx)
	}
	if err := job.Request.Validate(); err != nil {
		return err
	}
	m := &enginev1.Run{Request: engines.RequestToProto(job.Request), Capture: job.Capture, Credit: runCredit}
	if job.From != nil {
		if err := c.checkFrom(job.From); err != nil {
			return err
		}
		m.From = fromMessage(job.From)
	}
	r := &clientRun{
		client:  c,
		seq:     newSequence(c.d, job),
		events:  make(chan event, runCredit+1),
		buffers: make(chan []byte, runCredit),
		ended:   make(chan struct{}),
	}
	r.allowed.Store(runCredit)
	if err := c.start(r, m); err != nil {
		return err
	}
	if job.From != nil {
		r.upload(ctx, job.From)
	}
	return r.deliver(ctx, sink)
}

func canceled(ctx context.Context) error {
	return fmt.Errorf("%w: %w", engines.ErrCanceled, context.Cause(ctx))
}

// checkFrom checks that a state is complete and made for this engine's geometry.
func (c *Client) checkFrom(s *snapshot.State) error {
	if err := s.Validate(); err != nil {
		return fmt.Errorf("%w: %w", engines.ErrState, err)
	}
	if s.Geometry.Digest() != c.d.Geometry.Digest() {
		return fmt.Errorf("%w: its geometry has %d layers and rows of %d bytes, the engine's %d layers and rows of %d bytes",
			engines.ErrState, len(s.Geometry.Layers), s.Geometry.RowBytes(), len(c.d.Geometry.Layers), c.d.Geometry.RowBytes())
	}
	return checkState(c.d, s)
}

// upload sends a state's rows straight from its blocks. It stops early when ctx, the run or the link ends,
// which deliver then finds out.
func (r *clientRun) upload(ctx context.Context, s *snapshot.State) {
	rowBytes, total := s.Geometry.RowBytes(), s.Rows()
	step := rowsPerFrame(rowBytes, snapshot.BlockRows)
	var parts [][]byte
	for first := 0; first < total; first += step {
		select {
		case <-ctx.Done():
			return
		case <-r.ended:
			return
		case <-r.client.done:
			return
		default:
		}
		end := min(first+step, total)
		parts = parts[:0]
		for i := first; i < end; {
			in := i % snapshot.BlockRows
			rows := min(snapshot.BlockRows-in, end-i)
			parts = append(parts, s.Blocks[i/snapshot.BlockRows][in*rowBytes:(in+rows)*rowBytes])
			i += rows
		}
		if err := r.client.out.state(r.id, first, parts); err != nil {
			r.client.fail(err)
			return
		}
	}
}

// push hands an event to Run, after reading its rows of size bytes. It is the reader's.
func (r *clientRun) push(ev event, size int) error {
	if r.allowed.Add(-1) < 0 {
		return r.broken(fmt.Errorf("%v frame without credit", ev.kind))
	}
	if size > 0 {
		ev.rows = r.buffer(size)
		if err := r.client.in.raw(ev.rows); err != nil {
			return err
		}
	}
	r.events <- ev
	return nil
}

// buffer returns a free buffer. Since each event in flight has credit and at most one buffer, there are
// never more than runCredit. One much larger than needed, from prefill, is given up.
func (r *clientRun) buffer(size int) []byte {
	select {
	case b := <-r.buffers:
		if cap(b) >= size && cap(b) <= 4*size {
			return b[:size]
		}
	default:
	}
	return make([]byte, size)
}

// finish hands over the end. It is the reader's last act for the run.
func (r *clientRun) finish(result error) {
	r.events <- event{kind: kindEnd, end: result}
	close(r.ended)
}

func (r *clientRun) broken(err error) error {
	return fmt.Errorf("%w: run %d: %w", ErrProtocol, r.id, err)
}

// deliver calls the sink until the run ends.
func (r *clientRun) deliver(ctx context.Context, sink engines.Sink) error {
	var (
		verdict  error // decided here; what the host says no longer counts
		finished bool  // the sink has the last token
		used     uint32
		stop     = ctx.Done()
		done     = r.client.done
	)
	for {
		var ev event
		select { // first, since a lost link ends the run at once
		case <-done:
		default:
			select {
			case <-done:
			case <-stop:
			case ev = <-r.events:
			}
			if stop != nil && ctx.Err() != nil { // the sink gets nothing more, not even what is here
				stop = nil
				if verdict == nil && !finished {
					verdict = canceled(ctx)
					r.stop()
				}
				if ev.kind == 0 {
					continue
				}
			}
		}
		switch {
		case ev.kind == 0: // the link is gone
			select {
			case <-r.ended: // but all of this run came before
				done = nil
				continue
			default:
			}
			if finished || verdict != nil {
				return verdict
			}
			return r.client.gone()
		case ev.kind == kindEnd:
			if finished || verdict != nil {
				return verdict
			}
			return ev.end
		case verdict == nil:
			if verdict = ev.deliver(sink); verdict != nil {
				r.stop()
				break
			}
			finished = ev.token.Finish != engines.FinishNone
			used++
		}
		if ev.rows != nil {
			r.buffers <- ev.rows
		}
		if verdict == nil && used >= runCredit/2 {
			r.allowed.Add(int32(used))
			// A failure has closed the link.
			_ = r.client.send(kindCredit, &enginev1.Credit{Run: r.id, Events: used})
			used = 0
		}
	}
}

// stop asks the host to end the run.
func (r *clientRun) stop() {
	_ = r.client.send(kindCancel, &enginev1.Cancel{Run: r.id}) // a failure has closed the link
}

// deliver calls the sink.
func (ev *event) deliver(sink engines.Sink) error {
	switch ev.kind {
	case kindPrompt:
		return sink.Prompt(ev.ids)
	case kindPrefilled:
		return sink.Prefilled(ev.first, ev.count, ev.rows)
	default:
		ev.token.Row = ev.rows
		return sink.Token(ev.token)
	}
}
