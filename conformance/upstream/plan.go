// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package upstream

import (
	"fmt"
	"slices"
	"time"
)

// Ending is how an answer ends.
type Ending string

// Endings.
const (
	// Healthy is a whole answer; ErrorNull too, with "error": null in every chunk.
	Healthy   Ending = "healthy"
	ErrorNull Ending = "error-null"
	// EOF ends the body cleanly without finish reason and terminator.
	EOF Ending = "eof"
	// ErrorEOF is an error event, then a clean end; ErrorAbort then breaks the connection.
	ErrorEOF   Ending = "error-eof"
	ErrorAbort Ending = "error-abort"
	// ErrorCut is an error event without its blank line, then a clean end.
	ErrorCut Ending = "error-cut"
	// Abort breaks the connection.
	Abort Ending = "abort"
	// FinishAbort is the finish reason "abort", then the terminator.
	FinishAbort Ending = "finish-abort"
	// CutCall is a tool call with cut arguments and the finish reason "tool_calls", then the terminator.
	CutCall Ending = "cut-call"
	// Stall sends nothing more, on an open connection.
	Stall Ending = "stall"
	// Status429, Status500 and Status503 are answers with that HTTP status.
	Status429 Ending = "http-429"
	Status500 Ending = "http-500"
	Status503 Ending = "http-503"
)

// Endings lists all of them, in the order of tables.
func Endings() []Ending {
	return []Ending{
		Healthy, ErrorNull, EOF, ErrorEOF, ErrorAbort, ErrorCut, Abort, FinishAbort, CutCall, Stall, Status429, Status500, Status503,
	}
}

// Whole reports whether the answer is a good one.
func (e Ending) Whole() bool { return e == Healthy || e == ErrorNull }

// Status is the HTTP status of an ending that is one, else 0.
func (e Ending) Status() int {
	switch e {
	case Status429:
		return 429
	case Status500:
		return 500
	case Status503:
		return 503
	}
	return 0
}

// Place is where in an answer the ending comes.
type Place string

// Places.
const (
	// Before is after the role and a comment, before any content.
	Before Place = "before"
	// After is after AfterDeltas pieces of text.
	After Place = "after"
	// InCall is inside the arguments of a tool call that follows CallDeltas pieces of text.
	InCall Place = "in-call"
)

// Places lists all of them.
func Places() []Place { return []Place{Before, After, InCall} }

// Plan is the script of one case.
type Plan struct {
	Ending Ending
	Place  Place
	// Bad is how many attempts end so; later ones are whole. A plan with a whole ending needs none.
	Bad int
	// Gap is the pause before each event of a stream.
	Gap time.Duration
}

// ending is how attempt n, counted from 0, ends.
func (p Plan) ending(n int) Ending {
	if p.Ending.Whole() || n < p.Bad {
		return p.Ending
	}
	return Healthy
}

// validate refuses plans that can't be played.
func (p Plan) validate() error {
	if !slices.Contains(Endings(), p.Ending) || !slices.Contains(Places(), p.Place) {
		return fmt.Errorf("no plan: ending %q at %q", p.Ending, p.Place)
	}
	if p.Ending == CutCall && p.Place != InCall || p.Ending.Status() != 0 && p.Place != Before {
		return fmt.Errorf("ending %q can't come at %q", p.Ending, p.Place)
	}
	if !p.Ending.Whole() && p.Bad < 1 {
		return fmt.Errorf("ending %q for no attempt", p.Ending)
	}
	return nil
}
