// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package decode

import (
	"context"
	"errors"
	"fmt"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/engines/text"
	"github.com/seguekv/segue/snapshot"
)

// Run generates with one context of an engine, which it uses alone until it returns. It keeps the promises
// of engines.Engine's Run but for capacity, which is the engine's. Whatever the context held before is
// discarded; what it holds afterwards is left for the next run to discard.
//
// ctx is checked before each compute call; a model may also look at it during one, and whatever it then
// returns counts as cancellation.
func Run(ctx context.Context, cfg Config, m Model, c *Counters, job engines.Job, sink engines.Sink) error {
	f := c.enter()
	defer c.leave(f)
	if err := job.Request.Validate(); err != nil {
		return err
	}
	if job.From != nil {
		if err := checkState(cfg, m, job.Request, job.From); err != nil {
			return err
		}
	}
	r := &run{ctx: ctx, cfg: cfg, m: m, c: c, flight: f, sink: sink, req: job.Request, capture: job.Capture}
	err := r.generate(job.From)
	if err != nil && ctx.Err() != nil && !errors.Is(err, engines.ErrCanceled) {
		return fmt.Errorf("%w: %w: %w", engines.ErrCanceled, context.Cause(ctx), err)
	}
	return err
}

// run is the state of one Run.
type run struct {
	ctx    context.Context
	cfg    Config
	m      Model
	c      *Counters
	flight *flight
	sink   engines.Sink
	req    engines.Request

	capture bool
	// rows is the buffer lent to the sink.
	rows []byte

	prompt []int32
	// limit is the largest number of output tokens: the request's, or what the context leaves.
	limit   int
	sampler *sampling.Sampler
	text    *text.Stream
	// restored is the number of positions that a state covered; 0 in a fresh run.
	restored int
	finish   engines.Finish
}

func (r *run) generate(from *snapshot.State) error {
	n, last := 0, int32(0)
	if from == nil {
		if err := r.prefill(); err != nil {
			return err
		}
	} else {
		if err := r.restore(from); err != nil {
			return err
		}
		n, last = len(from.Output), from.Output[len(from.Output)-1]
	}
	for i := n; r.finish == engines.FinishNone; i++ {
		next, row, err := r.token(i, last)
		if err != nil {
			return err
		}
		if err := r.emit(i, next, row, false); err != nil {
			return err
		}
		last = next
	}
	return nil
}

// token draws output token i, which follows last, and captures the row that was computed for it: none for
// token 0, whose logits the prompt's last chunk left.
func (r *run) token(i int, last int32) (id int32, row []byte, err error) {
	pos := len(r.prompt) + i - 1
	if i > 0 {
		if err := r.step(last, pos); err != nil {
			return 0, nil, err
		}
	} else if err := r.canceled(); err != nil {
		return 0, nil, err
	}
	if id = r.sampler.Sample(r.m.Logits(), r.banned(i)); id < 0 {
		return 0, nil, fmt.Errorf("draw token %d: the model has no logits", i)
	}
	if i > 0 {
		row, err = r.captured(pos, 1)
	}
	return id, row, err
}

// begin sets up what follows from the prompt's ids.
func (r *run) begin(prompt []int32) {
	r.prompt = prompt
	r.limit = r.cfg.ContextLength - len(prompt)
	if r.req.MaxTokens > 0 {
		r.limit = min(r.limit, r.req.MaxTokens)
	}
	r.sampler = sampling.New(r.req.Sampling)
	r.sampler.SetPrompt(prompt)
	r.text = r.newText()
}

func (r *run) newText() *text.Stream {
	return text.New(text.Config{
		Piece: r.m.Piece, EOG: r.m.EOG, Stops: r.req.Stop,
		MaxTokens: r.limit, MinTokens: r.req.MinTokens, IgnoreEOS: r.req.IgnoreEOS,
	})
}

// prefill renders and computes the prompt.
func (r *run) prefill() error {
	ids, err := r.m.Render(r.req.Prompt)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return &engines.RequestError{Field: "prompt", Reason: "it has no tokens; send at least one"}
	}
	if len(ids) >= r.cfg.ContextLength {
		return &engines.PromptTooLongError{Tokens: len(ids), Limit: r.cfg.ContextLength}
	}
	r.begin(ids)
	if err := r.compute("reset context", r.m.Reset); err != nil {
		return err
	}
	if err := r.sink.Prompt(ids); err != nil {
		return err
	}
	for first := 0; first < len(ids); first += r.cfg.Chunk {
		end := min(first+r.cfg.Chunk, len(ids))
		err := r.compute("prefill", func() error { return r.m.Prefill(ids[first:end], first, end == len(ids)) })
		if err != nil {
			return err
		}
		r.c.prefillTokens.Add(uint64(end - first))
		rows, err := r.captured(first, end-first)
		if err != nil {
			return err
		}
		if err := r.sink.Prefilled(first, end-first, rows); err != nil {
			return err
		}
	}
	return nil
}

// restore emits the recorded tokens, after it loaded the state if any token is to be computed.
func (r *run) restore(s *snapshot.State) error {
	r.begin(s.Prompt)
	if !r.finishes(s.Output) {
		if err := r.compute("load state", func() error { return r.m.Load(s) }); err != nil {
			return err
		}
		r.restored = s.Rows()
		r.c.restoredRows.Add(uint64(r.restored))
		r.c.restoredBytes.Add(uint64(r.restored * s.Geometry.RowBytes()))
	}
	for i, id := range s.Output {
		if err := r.canceled(); err != nil {
			return err
		}
		r.sampler.Accept(id)
		if err := r.emit(i, id, nil, true); err != nil {
			return err
		}
		if r.finish != engines.FinishNone {
			return nil
		}
	}
	return nil
}

// finishes reports whether one of the ids ends the request.
func (r *run) finishes(ids []int32) bool {
	t := r.newText()
	for _, id := range ids {
		if t.Push(id).Finish != engines.FinishNone {
			return true
		}
	}
	return false
}

// banned is the filter of output token i: nil, or one that bans the ends of generation.
func (r *run) banned(i int) func(int32) bool {
	if i < r.req.MinTokens {
		return r.m.EOG
	}
	return nil
}

func (r *run) step(id int32, pos int) error {
	if err := r.compute("decode", func() error { return r.m.Step(id, pos) }); err != nil {
		return err
	}
	r.c.decodeSteps.Add(1)
	if pos < r.restored {
		r.c.replayedSteps.Add(1)
	}
	return nil
}

// captured returns rows in the run's buffer, nil without capture. The next call overwrites them.
func (r *run) captured(first, count int) ([]byte, error) {
	if !r.capture {
		return nil, nil
	}
	n := count * r.cfg.Geometry.RowBytes()
	if cap(r.rows) < n {
		r.rows = make([]byte, n)
	}
	rows := r.rows[:n:n]
	if err := r.compute("capture", func() error { return r.m.Capture(first, count, rows) }); err != nil {
		return nil, err
	}
	r.c.capturedRows.Add(uint64(count))
	return rows, nil
}

// emit pushes output token i, which the sampler has accepted, through the text function and to the sink.
func (r *run) emit(i int, id int32, row []byte, restored bool) error {
	o := r.text.Push(id)
	r.finish = o.Finish
	return r.sink.Token(engines.Token{
		Index: i, ID: id, Text: o.Text, TextEnd: o.TextEnd, RawEnd: o.RawEnd,
		Row: row, Sampler: r.sampler.State(), Restored: restored, Finish: o.Finish,
	})
}

// compute makes one call into the model, unless ctx has ended.
func (r *run) compute(what string, fn func() error) error {
	if err := r.canceled(); err != nil {
		return err
	}
	if err := r.flight.call(fn); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (r *run) canceled() error {
	if r.ctx.Err() != nil {
		return fmt.Errorf("%w: %w", engines.ErrCanceled, context.Cause(r.ctx))
	}
	return nil
}
