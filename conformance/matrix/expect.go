// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package matrix

import "github.com/seguekv/segue/conformance/upstream"

// Outcome is what a client must see.
type Outcome string

// Outcomes.
const (
	// Whole is the whole answer, without error.
	Whole Outcome = "whole"
	// Refused is an HTTP error, and no output.
	Refused Outcome = "refused"
	// Interrupted is the output so far, then an error event, and no success.
	Interrupted Outcome = "interrupted"
)

// Codes of the router's error objects.
const (
	codeInterrupted = "upstream_decode_interrupted"
	codeUnavailable = "upstream_unavailable"
	codeNoCapacity  = "no_capacity"
)

// row is what is expected of one ending when nothing repairs it.
type row struct {
	ending upstream.Ending
	// status and codes are those of a refusal.
	status []int
	codes  []string
	// causes are the words of the enumeration that describe the ending. A broken answer in one piece is no frame of a
	// stream, so that it may have another one.
	causes []string
}

// rows has every ending that isn't whole.
func rows() []row {
	bad, slow := []int{502, 503}, []int{504}
	unavailable := []string{codeUnavailable}
	return []row{
		{upstream.EOF, bad, unavailable, []string{"eof_no_finish", "malformed_frame"}},
		{upstream.ErrorEOF, bad, unavailable, []string{"engine_error_event"}},
		{upstream.ErrorAbort, bad, unavailable, []string{"engine_error_event", "reset", "malformed_frame"}},
		{upstream.ErrorCut, bad, unavailable, []string{"engine_error_event", "malformed_frame", "eof_no_finish"}},
		{upstream.Abort, bad, unavailable, []string{"reset", "eof_no_finish", "malformed_frame"}},
		{upstream.FinishAbort, bad, unavailable, []string{"engine_abort"}},
		{upstream.CutCall, bad, unavailable, []string{"invalid_tool_json"}},
		{upstream.Stall, slow, unavailable, []string{"stall"}},
		{upstream.Status429, []int{429, 503}, []string{codeNoCapacity, codeUnavailable}, []string{"no_capacity"}},
		{upstream.Status500, bad, unavailable, []string{"engine_abort", "engine_error_event", "connect"}},
		{upstream.Status503, bad, unavailable, []string{"engine_error_event", "connect", "no_capacity", "not_ready"}},
	}
}

// rowOf is the ending's row; a whole one has none.
func rowOf(e upstream.Ending) row {
	for _, r := range rows() {
		if r.ending == e {
			return r
		}
	}
	return row{ending: e}
}

// Refusal is the HTTP statuses and the codes that a refusal may have.
func (c Case) Refusal() (status []int, codes []string) {
	r := rowOf(c.Ending)
	return r.status, r.codes
}

// maxAttempts is the router's: runs from the prompt per request.
const maxAttempts = 2

// Want is what a case must lead to.
type Want struct {
	Outcome Outcome
	// Least and Most bound the attempts that the upstreams see.
	Least, Most int
	// Text is the output that the client's user gets.
	Text string
	// Delivered is the count in the error object; -1 where parts of a tool call may count too, but at least its text.
	Delivered int
}

// Want derives the expectation: whole answers are passed on; before any content, and for an answer in one piece until it is
// written, a failure is repaired by another attempt or refused; after that it is told, and nothing is generated again.
func (c Case) Want() Want {
	switch {
	case c.Ending.Whole():
		return Want{Outcome: Whole, Least: 1, Most: 1, Text: c.Place.Text()}
	case c.Stream && c.Place == upstream.After:
		return Want{Outcome: Interrupted, Least: 1, Most: 1, Text: c.Place.Begun(), Delivered: upstream.AfterDeltas}
	case c.Stream && c.Place == upstream.InCall:
		return Want{Outcome: Interrupted, Least: 1, Most: 1, Text: c.Place.Begun(), Delivered: -1}
	case c.Bad == BadFirst:
		return Want{Outcome: Whole, Least: 2, Most: maxAttempts, Text: c.Place.Text()}
	case c.Bad == BadTwo: // A repeat by the client begins a request of its own.
		return Want{Outcome: Whole, Least: 3, Most: 3, Text: c.Place.Text()}
	}
	return Want{Outcome: Refused, Least: 1, Most: maxAttempts}
}
