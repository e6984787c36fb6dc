// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package engines

import (
	"context"

	"github.com/seguekv/segue/compat"
	"github.com/seguekv/segue/snapshot"
)

// Engine is one inference engine as an agent sees it. enginetest.Run is the definition of "supported".
//
// All methods may be called concurrently; a Run belongs to one session and calls its sink from one
// goroutine. Errors are engines' sentinels and types where a caller branches on them (errors.go).
type Engine interface {
	// Describe returns what the engine is. It doesn't change during an engine's process life.
	Describe(ctx context.Context) (*Description, error)
	// Run generates. It returns nil after the token that finished the request, ErrCanceled (wrapped, with
	// the context's cause) soon after ctx ends, at the latest after the chunk or step in flight, and the
	// sink's error when a sink call fails. It holds one context while it runs and answers ErrNoCapacity at
	// once when none is free.
	Run(ctx context.Context, job Job, sink Sink) error
	// Observe returns counters of this process life. It never waits for a running computation.
	Observe(ctx context.Context) (Facts, error)
}

// Description is constant during an engine's process life.
type Description struct {
	// Kind is the engine's name: "sim", "llamacpp".
	Kind string
	// Model is the name clients ask for.
	Model string
	// Boot is a random id of this process life.
	Boot          [16]byte
	Fingerprint   compat.Fingerprint
	Geometry      snapshot.Geometry
	ContextLength int
	// Contexts is how many runs may be active at once.
	Contexts   int
	Vocabulary int
}

// Job is one run.
type Job struct {
	Request Request
	// Capture asks for rows at every chunk and boundary.
	Capture bool
	// From continues a session. The engine verifies that it fits (geometry, lengths) and loads it without
	// computing anything; it then emits tokens 0 … n-1 again from the record, marked Restored and without
	// rows, evaluates finish for each by the same function as for fresh tokens, and decodes on from token
	// n unless one of them finished.
	From *snapshot.State
}

// Sink receives what a run produces, in order. An error ends the run. A call may block: the engine waits.
type Sink interface {
	// Prompt is called once per fresh run, before any compute, with the ids of the rendered prompt.
	Prompt(ids []int32) error
	// Prefilled is called after each prompt chunk: positions [first, first+count) are computed. rows has
	// count rows in canonical layout, or is nil without capture. Borrowed until the call returns.
	Prefilled(first, count int, rows []byte) error
	// Token is called at each boundary.
	Token(t Token) error
}

// Token is one output token and with it boundary Index+1.
type Token struct {
	Index int
	ID    int32
	// Text released with this token: complete UTF-8, possibly empty. Borrowed until the call returns.
	Text []byte
	// TextEnd is the cumulative length of released text, RawEnd of produced text; RawEnd > TextEnd while
	// bytes are held back (an unfinished character, a possible stop string). After a stop string both
	// are the length of the text before it.
	TextEnd, RawEnd int
	// Row is the row of the token before this one, position P+Index-1; nil for token 0 (its rows came with
	// Prefilled), for restored tokens and without capture. Borrowed until the call returns.
	Row []byte
	// Sampler is the sampler's state after this draw.
	Sampler  snapshot.Sampler
	Restored bool
	// Finish is set on the last token.
	Finish Finish
}

// Finish is why a run ended: FinishNone on every token but the last.
type Finish string

// Finish reasons, spelled as clients see them.
const (
	FinishNone   Finish = ""
	FinishStop   Finish = "stop"
	FinishLength Finish = "length"
)

// Facts are counters since the process began.
type Facts struct {
	PrefillTokens uint64
	// DecodeSteps counts one-token forward passes; ReplayedDecodeSteps those that recomputed a position a
	// restored state already covered.
	DecodeSteps, ReplayedDecodeSteps uint64
	RestoredRows, RestoredBytes      uint64
	CapturedRows                     uint64
	// Running is the number of active runs.
	Running int
	// BusyMillis is how long the longest compute call in flight has lasted; 0 when none is.
	BusyMillis int
}
