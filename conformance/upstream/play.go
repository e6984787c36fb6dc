// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package upstream

import (
	"context"
	"net/http"
	"time"
)

// player writes one answer to one response.
type player struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	wire   wire
	ending Ending
	place  Place
	// gap is the pause before each event, and emitted is told of each one that was flushed.
	gap     time.Duration
	emitted func()
}

// put writes and flushes. A client that is gone is seen by the request's context.
func (p *player) put(b []byte) {
	_, _ = p.w.Write(b)
	_ = p.rc.Flush()
}

func (p *player) event(payload []byte) { p.put([]byte("data: " + string(payload) + "\n\n")) }

// abort closes the connection without the end of the body. What was flushed arrives before.
func abort() { panic(http.ErrAbortHandler) }

// play writes the answer to its end. It returns early only if the client leaves a stalled one.
func (p *player) play(ctx context.Context, stream bool) {
	if s := p.ending.Status(); s != 0 {
		p.status(s)
		return
	}
	if stream {
		p.stream(ctx)
		return
	}
	p.whole(ctx)
}

func (p *player) status(status int) {
	p.w.Header().Set("Content-Type", "application/json")
	if status != http.StatusInternalServerError {
		p.w.Header().Set("Retry-After", "1")
	}
	p.w.WriteHeader(status)
	p.put(failure("the server is not well"))
}

func (p *player) stream(ctx context.Context) {
	p.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	p.put([]byte(": a comment\n\n"))
	for _, b := range p.wire.payloads(p.place, p.ending.Whole()) {
		if p.gap > 0 && !pause(ctx, p.gap) {
			return
		}
		p.event(b)
		p.emitted()
	}
	switch p.ending {
	case EOF:
	case ErrorEOF:
		p.event(failure("the engine died"))
	case ErrorAbort:
		p.event(failure("the engine died"))
		abort()
	case ErrorCut:
		p.put([]byte("data: " + string(failure("the engine died")) + "\n"))
	case Abort:
		abort()
	case FinishAbort:
		p.finish("abort")
	case Stall:
		<-ctx.Done()
	default:
		p.finish(p.place.finishReason())
	}
}

// pause reports whether it took its time.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *player) finish(reason string) {
	p.event(p.wire.finish(reason))
	if p.wire.usage {
		p.event(p.wire.usageChunk(p.place.Deltas()))
	}
	p.put([]byte("data: [DONE]\n\n"))
}

func (p *player) whole(ctx context.Context) {
	if p.ending == Stall {
		<-ctx.Done()
		return
	}
	if p.ending == Abort && p.place == Before {
		abort()
	}
	p.w.Header().Set("Content-Type", "application/json")
	switch good := p.wire.body(p.place, p.place.finishReason(), false); p.ending {
	case EOF:
		p.put(half(good))
	case ErrorEOF:
		p.put(failure("the engine died"))
	case ErrorAbort:
		p.put(half(failure("the engine died")))
		abort()
	case ErrorCut:
		p.put(half(failure("the engine died")))
	case Abort:
		p.put(half(good))
		abort()
	case FinishAbort:
		p.put(p.wire.body(p.place, "abort", false))
	case CutCall:
		p.put(p.wire.body(p.place, "tool_calls", true))
	default:
		p.put(good)
	}
}
