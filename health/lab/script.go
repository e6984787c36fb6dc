// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lab

import (
	"errors"
	"fmt"
	"time"
)

// ErrScript: a script can't be played.
var ErrScript = errors.New("lab: script")

// State is what an engine does in a phase.
type State string

// The states.
const (
	Idle           State = "idle"
	Decode         State = "decode"          // Streams get a token each Step; Queue more wait
	PrefillChunked State = "prefill_chunked" // a prompt is computed, one chunk each Step, and nothing put out
	PrefillWhole   State = "prefill_whole"   // a prompt is computed in one step as long as the phase; Streams get nothing meanwhile
	HangDecode     State = "hang_decode"     // nothing moves any more
	HangPrefill    State = "hang_prefill"    // the same, in the first step of a request
	Frozen         State = "frozen_metrics"  // decodes; the metrics page stays as it was
	Sleeping       State = "sleeping"        // any completion wakes it
	Loading        State = "loading"         // no completion is taken
	Dead           State = "dead"            // connections are refused
	Cut            State = "connection_cut"  // connections are reset
	HalfOpen       State = "half_open"       // connections are accepted and nothing ever comes
	Failing        State = "only_errors"     // 503 to all
	SlotsHang      State = "slots_hang"      // the task queue stands still, everything beside it answers
)

// Phase is one part of a script.
type Phase struct {
	State State
	For   time.Duration
	// Streams run, Queue wait for a place. Of a state that decodes or hangs.
	Streams, Queue int
	// Step is how long a step takes, DefaultStep if 0. In PrefillChunked it is a chunk's.
	Step time.Duration
	// Restarted: the process is another one from the beginning of this phase.
	Restarted bool
	// NoMetrics: no page tells of the engine's work.
	NoMetrics bool
	// Slow is how long a page takes.
	Slow time.Duration
}

// Defaults of scripts.
const (
	DefaultStep   = 25 * time.Millisecond
	DefaultPlaces = 16
	// Prompt is how many tokens the prompt of a stream has, ChunkTokens that of a chunk.
	Prompt      = 512
	ChunkTokens = 2048
	// Rate is how many prompt tokens an engine computes in a second, unless its script has slower prefills.
	Rate = 20000
)

// Busy reports whether somebody's work is on the engine.
func (p Phase) Busy() bool {
	switch p.State {
	case Decode, Frozen, HangDecode, SlotsHang:
		return p.Streams+p.Queue > 0
	case PrefillChunked, PrefillWhole, HangPrefill:
		return true
	}
	return false
}

// Sick reports whether the engine doesn't work any more.
func (p Phase) Sick() bool {
	switch p.State {
	case HangDecode, HangPrefill, Dead, Cut, HalfOpen, Failing, SlotsHang:
		return true
	}
	return false
}

func (p Phase) step() time.Duration {
	if p.Step > 0 {
		return p.Step
	}
	return DefaultStep
}

// decodes reports whether streams get tokens.
func (p Phase) decodes() bool { return p.State == Decode || p.State == Frozen }

func (p Phase) validate(i int) error {
	switch {
	case p.For <= 0 || p.For > 24*time.Hour:
		return fmt.Errorf("%w: phase %d lasts %v, not between 0 and 24h", ErrScript, i, p.For)
	case p.Streams < 0 || p.Streams > 1024 || p.Queue < 0 || p.Queue > 1<<16:
		return fmt.Errorf("%w: phase %d has %d streams and %d in the queue", ErrScript, i, p.Streams, p.Queue)
	case p.Step < 0 || p.Slow < 0:
		return fmt.Errorf("%w: phase %d has a negative time", ErrScript, i)
	case p.Step > 0 && p.Step < time.Millisecond:
		return fmt.Errorf("%w: phase %d has a step of %v, below 1ms", ErrScript, i, p.Step)
	}
	switch p.State {
	case Idle, Decode, PrefillChunked, PrefillWhole, HangDecode, HangPrefill, Frozen, Sleeping, Loading, Dead, Cut, HalfOpen, Failing, SlotsHang:
		return nil
	}
	return fmt.Errorf("%w: phase %d has no state %q", ErrScript, i, p.State)
}
