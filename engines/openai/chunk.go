// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"errors"
	"unicode/utf8"
)

// Limits of one chunk.
const (
	// MaxChoices bounds choices in a chunk, and a choice's index.
	MaxChoices = 128
	// MaxCalls bounds tool calls in a choice, and a call's index.
	MaxCalls = 128
)

// Errors of Chunk.Parse.
var (
	ErrNotJSON  = errors.New("openai: the event is not one JSON object")
	ErrNotUTF8  = errors.New("openai: the event is not UTF-8")
	ErrBadShape = errors.New("openai: the event is JSON, but no chunk")
)

// Usage counts tokens.
type Usage struct {
	PromptTokens     int
	CompletionTokens int
	TotalTokens      int
}

// Chunk is what the router must know of one chunk, or of a whole answer. It is reused from chunk to chunk, and
// its bytes are borrowed from what Parse was given. All of them are JSON as it was sent, strings with their
// quotes.
type Chunk struct {
	// Error is the top-level error; nil when it is absent or null.
	Error []byte
	// Choices in the order of the chunk.
	Choices []Choice
	// Usage is valid when HasUsage is set: an object with a count of tokens was there.
	Usage    Usage
	HasUsage bool

	chat  bool // a delta or a message was there
	data  []byte
	calls []Call
	marks []mark
}

// Choice is one element of choices.
type Choice struct {
	Index int
	// ContentBearing: a text, reasoning or refusal that isn't empty, or a fragment of a tool or function call.
	// A string in a member that isn't known counts too: the client gets it.
	ContentBearing bool
	// Finish is the finish reason with its quotes; nil when absent, null or empty.
	Finish []byte

	plain        bool // content beside tool and function calls
	role         bool // a role that the client would read
	call0, call1 int  // its calls are chunk.calls[call0:call1]
	function     Call // the older function_call
	hasFunction  bool
	toolCalls    bool // there is a member tool_calls that isn't null
}

// Call is one fragment of a tool call.
type Call struct {
	index     int // -1: not given
	id        []byte
	name      []byte
	arguments []byte
	custom    bool // a custom tool: its input is free text
}

// Calls returns the fragments of tool calls of choice i.
func (c *Chunk) Calls(i int) []Call { return c.calls[c.Choices[i].call0:c.Choices[i].call1] }

// ContentBearing reports whether any choice is.
func (c *Chunk) ContentBearing() bool {
	for i := range c.Choices {
		if c.Choices[i].ContentBearing {
			return true
		}
	}
	return false
}

// Parse reads one chunk. After an error the chunk's fields mean nothing. It doesn't allocate once the slices
// have grown.
func (c *Chunk) Parse(data []byte) error {
	*c = Chunk{Choices: c.Choices[:0], calls: c.calls[:0], marks: c.marks[:0], data: data}
	if !utf8.Valid(data) {
		return ErrNotUTF8
	}
	r := reader{scanner: scanner{b: data}, c: c}
	r.space()
	if !r.top() || !r.atEnd() {
		if r.shape {
			return ErrBadShape
		}
		return ErrNotJSON
	}
	return nil
}
