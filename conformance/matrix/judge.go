// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package matrix

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/seguekv/segue/conformance/upstream"
)

// verdict collects what is wrong with one case.
type verdict struct {
	c     Case
	want  Want
	r     Result
	found []string
}

func (v *verdict) bad(format string, args ...any) {
	v.found = append(v.found, fmt.Sprintf(format, args...))
}

// Judge compares what a client reported and what the upstreams saw with the expectation, and returns what differs.
func Judge(c Case, r Result, attempts []upstream.Attempt) []string {
	v := &verdict{c: c, want: c.Want(), r: r}
	v.attempts(attempts)
	if r.Text != v.want.Text {
		v.bad("text is %q, want %q", r.Text, v.want.Text)
	}
	switch v.want.Outcome {
	case Whole:
		v.whole()
	case Refused:
		v.refused()
	case Interrupted:
		v.interrupted()
	}
	if r.Wire != nil {
		v.wire(len(attempts))
	}
	return v.found
}

func (v *verdict) attempts(attempts []upstream.Attempt) {
	if n := len(attempts); n < v.want.Least || n > v.want.Most {
		v.bad("%d attempts at the upstreams, want %d to %d", n, v.want.Least, v.want.Most)
	}
	for i, a := range attempts {
		if a.Ended.IsZero() {
			v.bad("attempt %d is still running at its upstream", i)
		}
		if v.c.Ending == upstream.Stall && i < v.c.Bad.attempts() && !a.Left {
			v.bad("attempt %d stalled and wasn't cancelled", i)
		}
		if i == 1 && a.Upstream == attempts[0].Upstream {
			v.bad("attempts 0 and 1 went to the same upstream")
		}
	}
}

// bare reports an answer of which the client's user gets nothing but text.
func (v *verdict) bare() bool { return v.c.Client.Bare && v.c.Stream && v.c.Endpoint == Completions }

func (v *verdict) whole() {
	if v.r.Error != nil {
		v.bad("error %s, want a whole answer", v.r.Error)
		return
	}
	finish := "stop"
	if v.c.Place == upstream.InCall {
		finish = "tool_calls"
	}
	if !v.bare() {
		if v.r.Finish == nil || *v.r.Finish != finish {
			v.bad("finish reason is %s, want %q", text(v.r.Finish), finish)
		}
		n := v.c.Place.Deltas()
		if want := (Usage{upstream.PromptTokens, n, upstream.PromptTokens + n}); v.r.Usage == nil || *v.r.Usage != want {
			v.bad("usage is %+v, want %+v", v.r.Usage, want)
		}
	}
	if v.c.Stream && v.r.Chunks < v.c.Place.Deltas() {
		v.bad("%d chunks for %d pieces of text", v.r.Chunks, v.c.Place.Deltas())
	}
	if len(v.r.Partial) > 0 {
		v.bad("%d partial tool calls in a whole answer", len(v.r.Partial))
	}
	if v.c.Place != upstream.InCall {
		if len(v.r.Calls) > 0 {
			v.bad("%d tool calls, want none", len(v.r.Calls))
		}
		return
	}
	if len(v.r.Calls) != 1 {
		v.bad("%d tool calls, want 1", len(v.r.Calls))
		return
	}
	c := v.r.Calls[0]
	if c.Name != upstream.CallName || !sameJSON(c.Arguments, upstream.CallArguments) {
		v.bad("tool call %s(%s), want %s(%s)", c.Name, c.Arguments, upstream.CallName, upstream.CallArguments)
	}
	if c.ID == "" || c.ID == upstream.CallID {
		v.bad("tool call's id is %q, want one of the router's own", c.ID)
	}
}

// failed checks what both kinds of failure have in common.
func (v *verdict) failed(kind string, codes []string) *Error {
	e := v.r.Error
	if e == nil {
		v.bad("no error: taken as success with finish reason %s", text(v.r.Finish))
		return nil
	}
	if v.r.Finish != nil {
		v.bad("finish reason %q beside an error", *v.r.Finish)
	}
	if len(v.r.Calls) > 0 {
		v.bad("an executable tool call beside an error: %+v", v.r.Calls)
	}
	if e.Kind != kind {
		v.bad("error %s, want one of kind %s", e, kind)
	}
	if e.Code == nil || !slices.Contains(codes, *e.Code) {
		v.bad("error code is %s, want one of %v", text(e.Code), codes)
	}
	return e
}

// object is the router's error object.
type object struct {
	RequestID string `json:"request_id"`
	Partial   *bool  `json:"partial_output"`
	Delivered *int   `json:"delivered_output_tokens"`
	Retryable *bool  `json:"retryable"`
	Cause     string `json:"cause"`
}

// facts checks the error object against the case.
func (v *verdict) facts(e *Error, partial bool, delivered func(int) bool) {
	var o object
	if err := json.Unmarshal(e.Body, &o); err != nil {
		v.bad("error object %s: %v", e.Body, err)
		return
	}
	if o.RequestID != v.c.RequestID() {
		v.bad("request_id is %q, want %q", o.RequestID, v.c.RequestID())
	}
	if o.Partial == nil || *o.Partial != partial {
		v.bad("partial_output is not %t in %s", partial, e.Body)
	}
	if o.Retryable == nil || partial && *o.Retryable {
		v.bad("retryable is missing, or true after output, in %s", e.Body)
	}
	if o.Delivered == nil || !delivered(*o.Delivered) {
		v.bad("delivered_output_tokens is wrong in %s", e.Body)
	}
	if causes := rowOf(v.c.Ending).causes; !slices.Contains(causes, o.Cause) {
		v.bad("cause is %q, want one of %v", o.Cause, causes)
	}
}

func (v *verdict) refused() {
	row := rowOf(v.c.Ending)
	e := v.failed(KindStatus, row.codes)
	if e == nil {
		return
	}
	if e.Status == nil || !slices.Contains(row.status, *e.Status) {
		v.bad("HTTP status of %s, want one of %v", e, row.status)
	}
	v.facts(e, false, func(n int) bool { return n == 0 })
}

func (v *verdict) interrupted() {
	e := v.failed(KindStream, []string{codeInterrupted})
	if e == nil {
		return
	}
	right := func(n int) bool {
		if v.want.Delivered < 0 {
			return n >= upstream.CallDeltas
		}
		return n == v.want.Delivered
	}
	told := func(word string) bool {
		n, err := strconv.Atoi(word)
		return err == nil && right(n)
	}
	if !strings.Contains(e.Message, v.c.RequestID()) {
		v.bad("error message doesn't have the request id %s: %q", v.c.RequestID(), e.Message)
	}
	if words := numberPattern.FindAllString(strings.ReplaceAll(e.Message, v.c.RequestID(), ""), -1); !slices.ContainsFunc(words, told) {
		v.bad("error message doesn't have the number of delivered tokens: %q", e.Message)
	}
	if !v.c.Client.Strips {
		v.facts(e, true, right)
	}
}

var numberPattern = regexp.MustCompile(`\b\d+\b`)

// String is the error in one line.
func (e *Error) String() string {
	if e == nil {
		return "none"
	}
	status := ""
	if e.Status != nil {
		status = " " + strconv.Itoa(*e.Status)
	}
	return fmt.Sprintf("%s (%s%s, code %s): %q", e.Class, e.Kind, status, text(e.Code), e.Message)
}

func text(s *string) string {
	if s == nil {
		return "absent"
	}
	return strconv.Quote(*s)
}

func sameJSON(a, b string) bool {
	var x, y any
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}
