// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import (
	"context"
	"errors"
	"fmt"

	enginev1 "github.com/seguekv/segue/api/segue/engine/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/snapshot"
)

// hostRun is a run on the host. The reader calls grant, receive and cancel; serve has its own goroutine, on
// which the engine calls the sink methods.
type hostRun struct {
	id      uint32
	host    *host
	ctx     context.Context
	cancel  context.CancelCauseFunc
	job     engines.Job
	refusal error
	// credit holds one element for each event that may be sent; its capacity is the run's credit.
	credit chan struct{}
	// loaded is closed when the engine may start: the state is complete, or there is none.
	loaded   chan struct{}
	received int // rows of the state

	seq       sequence
	ended     bool // the engine's Run has returned
	token     enginev1.Token
	prefilled enginev1.Prefilled
}

// newHostRun reads a run message. What it can't accept becomes the run's refusal.
func newHostRun(ctx context.Context, h *host, m *enginev1.Run) *hostRun {
	r := &hostRun{id: m.GetRun(), host: h, credit: make(chan struct{}, m.GetCredit()), loaded: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	for range cap(r.credit) {
		r.credit <- struct{}{}
	}
	r.job.Capture = m.GetCapture()
	r.job.Request, r.refusal = engines.RequestFromProto(m.GetRequest())
	if r.refusal == nil && m.GetFrom() != nil {
		r.job.From, r.refusal = stateFromMessage(h.d, m.GetFrom())
	}
	if r.job.From == nil {
		close(r.loaded)
	}
	r.seq = newSequence(h.d, r.job)
	return r
}

// grant adds credit.
func (r *hostRun) grant(events uint32) error {
	for range events {
		select {
		case r.credit <- struct{}{}:
		default:
			return fmt.Errorf("%w: run %d got more credit than it used", ErrProtocol, r.id)
		}
	}
	return nil
}

// receive reads size bytes of rows, starting with row first, into the state's blocks. A block is allocated
// when its first row arrives.
func (r *hostRun) receive(first, size int) error {
	state, rowBytes := r.job.From, r.seq.rowBytes
	if state == nil {
		return fmt.Errorf("%w: run %d has no state, got rows", ErrProtocol, r.id)
	}
	count, total := size/rowBytes, state.Rows()
	switch {
	case size%rowBytes != 0:
		return fmt.Errorf("%w: state frame of run %d has %d bytes of rows of %d", ErrProtocol, r.id, size, rowBytes)
	case first != r.received || count > total-first:
		return fmt.Errorf("%w: state frame of run %d has rows %d to %d, want %d of %d", ErrProtocol, r.id, first, first+count, r.received, total)
	}
	for end := first + count; r.received < end; {
		in := r.received % snapshot.BlockRows
		if in == 0 {
			state.Blocks = append(state.Blocks, make([]byte, rowBytes*min(snapshot.BlockRows, total-r.received)))
		}
		block := state.Blocks[len(state.Blocks)-1]
		rows := min(snapshot.BlockRows-in, end-r.received)
		if err := r.host.in.raw(block[in*rowBytes : (in+rows)*rowBytes]); err != nil {
			return err
		}
		r.received += rows
	}
	if r.received == total {
		close(r.loaded)
	}
	return nil
}

// serve runs the engine and sends the end. The run is forgotten before the agent hears of it.
func (r *hostRun) serve() {
	err := r.execute()
	r.cancel(nil)
	r.host.remove(r.id)
	r.host.facts(context.WithoutCancel(r.ctx))
	_ = r.host.out.message(kindEnd, endFromError(r.id, err)) // a failed write has closed the link
}

func (r *hostRun) execute() error {
	if r.refusal != nil {
		return r.refusal
	}
	select {
	case <-r.loaded:
	case <-r.ctx.Done():
		return r.canceled()
	}
	err := r.host.engine.Run(r.ctx, r.job, r)
	r.ended = true
	if err == nil && !r.seq.finished {
		return errors.New("run returned without a last token")
	}
	return err
}

func (r *hostRun) canceled() error {
	return fmt.Errorf("%w: %w", engines.ErrCanceled, context.Cause(r.ctx))
}

// Prompt implements engines.Sink.
func (r *hostRun) Prompt(ids []int32) error {
	if err := r.seq.promptIDs(ids); err != nil {
		return err
	}
	if err := r.acquire(); err != nil {
		return err
	}
	return r.host.out.message(kindPrompt, &enginev1.Prompt{Run: r.id, Ids: ids})
}

// Prefilled implements engines.Sink. It splits rows over frames of bounded size.
func (r *hostRun) Prefilled(first, count int, rows []byte) error {
	if err := r.seq.prefilled(first, count, len(rows)); err != nil {
		return err
	}
	step := count
	if rows != nil {
		step = rowsPerFrame(r.seq.rowBytes, 1)
	}
	for count > 0 {
		if err := r.acquire(); err != nil {
			return err
		}
		n := min(step, count)
		r.prefilled.Run, r.prefilled.First, r.prefilled.Count = r.id, uint32(first), uint32(n)
		part := rows[:min(len(rows), n*r.seq.rowBytes)]
		if err := r.host.out.mixed(kindPrefilled, &r.prefilled, part); err != nil {
			return err
		}
		first, count, rows = first+n, count-n, rows[len(part):]
	}
	return nil
}

// Token implements engines.Sink.
func (r *hostRun) Token(t engines.Token) error {
	if err := r.seq.token(&t, len(t.Row)); err != nil {
		return err
	}
	if err := r.acquire(); err != nil {
		return err
	}
	setToken(&r.token, r.id, t)
	return r.host.out.mixed(kindToken, &r.token, t.Row)
}

// acquire waits for credit for one event.
func (r *hostRun) acquire() error {
	if r.ended {
		return errors.New("sink used after the run returned")
	}
	if r.ctx.Err() != nil {
		return r.canceled()
	}
	select {
	case <-r.credit:
		return nil
	case <-r.ctx.Done():
		return r.canceled()
	}
}
