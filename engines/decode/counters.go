// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package decode

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/seguekv/segue/engines"
)

// Counters are those of one engine process, shared by all its runs. The zero value is ready to use; it
// must not be copied.
type Counters struct {
	prefillTokens, decodeSteps, replayedSteps atomic.Uint64
	restoredRows, restoredBytes, capturedRows atomic.Uint64

	mu   sync.Mutex
	runs map[*flight]struct{}
}

// Facts returns the counters. It never waits for a computation.
func (c *Counters) Facts() engines.Facts {
	f := engines.Facts{
		PrefillTokens:       c.prefillTokens.Load(),
		DecodeSteps:         c.decodeSteps.Load(),
		ReplayedDecodeSteps: c.replayedSteps.Load(),
		RestoredRows:        c.restoredRows.Load(),
		RestoredBytes:       c.restoredBytes.Load(),
		CapturedRows:        c.capturedRows.Load(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	f.Running = len(c.runs)
	for r := range c.runs {
		f.BusyMillis = max(f.BusyMillis, int(r.busy().Milliseconds()))
	}
	return f
}

// enter registers a run until leave.
func (c *Counters) enter() *flight {
	f := &flight{entered: time.Now()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs == nil {
		c.runs = map[*flight]struct{}{}
	}
	c.runs[f] = struct{}{}
	return f
}

func (c *Counters) leave(f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.runs, f)
}

// flight times the compute calls of one run: its goroutine writes, any other reads.
type flight struct {
	entered time.Time
	// start is when the call in flight began, in nanoseconds after entered and at least 1; 0 between calls.
	start atomic.Int64
}

// call runs one call into the model.
func (f *flight) call(fn func() error) error {
	f.start.Store(max(1, int64(time.Since(f.entered))))
	defer f.start.Store(0)
	return fn()
}

// busy is how long the call in flight has lasted, 0 between calls.
func (f *flight) busy() time.Duration {
	s := f.start.Load()
	if s == 0 {
		return 0
	}
	return time.Since(f.entered) - time.Duration(s)
}
