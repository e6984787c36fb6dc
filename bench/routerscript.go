// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// routerScript is what an upstream's streams emit, and when they did.
type routerScript struct {
	// interval between the deltas of one stream; 0 is as fast as they are taken.
	interval time.Duration
	// count of deltas of a stream; 0 goes on until finish.
	count int
	// streams that are expected; their beats are spread over the interval.
	streams int
	// text of every delta.
	text string
	base time.Time
	// at has the emission of each delta since base; nil keeps none. For scripts of one stream.
	at []atomic.Int64

	begun   atomic.Int64 // streams
	emitted atomic.Int64 // deltas
	ended   atomic.Int64 // streams, however they ended

	once sync.Once
	done chan struct{}
	// beat is closed: what is overdue doesn't wait.
	beat <-chan time.Time
}

func newRouterScript(rate, count, streams int) *routerScript {
	s := &routerScript{count: count, streams: streams, text: routerText, base: time.Now(), done: make(chan struct{})}
	beat := make(chan time.Time)
	close(beat)
	s.beat = beat
	if rate > 0 {
		s.interval = time.Second / time.Duration(rate)
	}
	if streams == 1 {
		s.at = make([]atomic.Int64, count)
	}
	return s
}

// finish ends every stream after the delta it is at.
func (s *routerScript) finish() { s.once.Do(func() { close(s.done) }) }

// run calls emit for each delta when it is due and returns how many there were. A stream that falls behind catches up.
func (s *routerScript) run(ctx context.Context, emit func(index int) error) (int, error) {
	slot := s.begun.Add(1) - 1
	if slot >= int64(s.streams) {
		return 0, errors.New("more streams than requests: the router repeated one")
	}
	defer s.ended.Add(1)
	next := time.Now().Add(s.interval * time.Duration(slot) / time.Duration(s.streams))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := 0; s.count == 0 || i < s.count; i++ {
		due := s.beat // never blocks
		if wait := time.Until(next); wait > 0 {
			timer.Reset(wait)
			due = timer.C
		}
		select {
		case <-s.done:
			return i, nil
		case <-ctx.Done():
			return i, context.Cause(ctx)
		case <-due:
		}
		next = next.Add(s.interval)
		if s.at != nil {
			s.at[i].Store(int64(time.Since(s.base)))
		}
		if err := emit(i); err != nil {
			return i, fmt.Errorf("emit delta %d: %w", i, err)
		}
		s.emitted.Add(1)
	}
	return s.count, nil
}

// age is how long ago a delta was emitted.
func (s *routerScript) age(index int) time.Duration {
	return time.Since(s.base) - time.Duration(s.at[index].Load())
}

// currentScript is where an upstream's streams find their script.
type currentScript struct {
	script atomic.Pointer[routerScript]
}

func (c *currentScript) play(s *routerScript) { c.script.Store(s) }

// current is the script of a stream that begins.
func (c *currentScript) current() (*routerScript, error) {
	if s := c.script.Load(); s != nil {
		return s, nil
	}
	return nil, errors.New("no request is expected")
}
