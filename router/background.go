// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// backgroundLimit bounds the calls that only free resources. Beyond it a call is left out: agents cancel
// orphans and drop what they hold for them by themselves, later.
const backgroundLimit = 1024

// background runs calls that no session waits for.
type background struct {
	group errgroup.Group
	tasks sync.WaitGroup
	log   *slog.Logger
	// ctx ends the calls; set before the first session.
	ctx context.Context
}

func newBackground(ctx context.Context, log *slog.Logger) *background {
	b := &background{ctx: ctx, log: log}
	b.group.SetLimit(backgroundLimit)
	return b
}

// call runs f with a time limit, up to tries times until it succeeds. False: f is never run.
func (b *background) call(what string, tries int, limit time.Duration, f func(context.Context) error, attrs ...any) bool {
	started := b.group.TryGo(func() error {
		var err error
		for range tries {
			ctx, cancel := context.WithTimeout(b.ctx, limit)
			err = f(ctx)
			cancel()
			if err == nil || b.ctx.Err() != nil {
				return nil
			}
		}
		b.log.Debug("background call failed", append([]any{"call", what, "err", err}, attrs...)...)
		return nil
	})
	if !started {
		b.log.Warn("background call left out, too many are pending", append([]any{"call", what}, attrs...)...)
	}
	return started
}

// spawn runs f beside the sessions; it must end soon after its context. It has no place among the limited calls: there
// are a few for each node at most.
func (b *background) spawn(f func(context.Context)) { b.tasks.Go(func() { f(b.ctx) }) }

// wait returns when all calls have ended.
func (b *background) wait() { _ = b.group.Wait() }

// handlers counts requests being served, so that Run can wait for them: http.Server.Close doesn't.
type handlers struct {
	idle *sync.Cond // its lock guards the fields

	serving int
	closed  bool
}

func newHandlers() *handlers { return &handlers{idle: sync.NewCond(&sync.Mutex{})} }

// enter reports whether a request may be served; leave follows a true.
func (h *handlers) enter() bool {
	h.idle.L.Lock()
	defer h.idle.L.Unlock()
	if h.closed {
		return false
	}
	h.serving++
	return true
}

func (h *handlers) leave() {
	h.idle.L.Lock()
	defer h.idle.L.Unlock()
	if h.serving--; h.serving == 0 {
		h.idle.Broadcast()
	}
}

// wait lets no more requests in and returns when the last has left.
func (h *handlers) wait() {
	h.idle.L.Lock()
	defer h.idle.L.Unlock()
	h.closed = true
	for h.serving > 0 {
		h.idle.Wait()
	}
}
