// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package client

import (
	"fmt"
	"slices"
	"strings"
)

// Outcome is what became of one disturbed answer.
type Outcome string

const (
	// Identical equals the reference in ids, text, finish reason and usage, with one id, one role chunk and one [DONE].
	Identical Outcome = "identical"
	// Refused ends in the interruption error with the right count, after a prefix of the reference.
	Refused Outcome = "refused"
	// Errored is another explicit error, after a prefix of the reference.
	Errored Outcome = "errors"
	// Wrong is anything else.
	Wrong Outcome = "wrong"
)

// CodeInterrupted is the error code of a generation that could not be continued.
const CodeInterrupted = "upstream_decode_interrupted"

// Verdict is an outcome and, unless it is Identical, the reasons.
type Verdict struct {
	Outcome Outcome
	Reasons []string
}

// Judge compares an answer with the reference, which must be Complete.
func Judge(got, reference *Transcript) Verdict {
	if got.Err == nil {
		if why := Differences(got, reference); len(why) > 0 {
			return Verdict{Wrong, why}
		}
		return Verdict{Outcome: Identical}
	}
	if why := notPrefix(got, reference); len(why) > 0 {
		return Verdict{Wrong, why}
	}
	reason := got.Failure()
	if got.Err.Code != CodeInterrupted {
		return Verdict{Errored, []string{reason}}
	}
	if why := badInterruption(got); len(why) > 0 {
		return Verdict{Wrong, append(why, reason)}
	}
	return Verdict{Refused, []string{reason}}
}

// Differences lists what distinguishes two answers, form included; empty means identical.
func Differences(got, want *Transcript) []string {
	var why []string
	add := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	if got.Status != want.Status {
		add("status %d instead of %d", got.Status, want.Status)
	}
	why = append(why, got.Problems...)
	if i := firstDifference(got.tokens, want.tokens); i >= 0 {
		add("ids differ from index %d on (%d and %d tokens)", i, len(got.tokens), len(want.tokens))
	}
	if got.Text() != want.Text() {
		add("texts differ from byte %d on", commonPrefix(got.Text(), want.Text()))
	}
	if got.Finish != want.Finish || got.Finishes != want.Finishes {
		add("finish %q (%d) instead of %q (%d)", got.Finish, got.Finishes, want.Finish, want.Finishes)
	}
	if !sameUsage(got.Usage, want.Usage) {
		add("usage %+v instead of %+v", deref(got.Usage), deref(want.Usage))
	}
	if len(got.IDs) != len(want.IDs) || got.Roles != want.Roles || got.Dones != want.Dones {
		add("%d ids, %d role chunks, %d [DONE] instead of %d, %d, %d",
			len(got.IDs), got.Roles, got.Dones, len(want.IDs), want.Roles, want.Dones)
	}
	return why
}

// notPrefix lists why an answer that ended in an error is not a clean prefix of the reference.
func notPrefix(got, reference *Transcript) []string {
	why := slices.Clone(got.Problems)
	if got.Finishes > 0 || got.Dones > 0 {
		why = append(why, "error together with a finish or [DONE]")
	}
	if n := len(got.tokens); n > len(reference.tokens) || !slices.Equal(got.tokens, reference.tokens[:n]) {
		why = append(why, "the ids before the error are not a prefix of the reference")
	}
	if !strings.HasPrefix(reference.Text(), got.Text()) {
		why = append(why, "the text before the error is not a prefix of the reference")
	}
	return why
}

// badInterruption lists what the interruption error tells wrongly.
func badInterruption(got *Transcript) []string {
	var why []string
	e := got.Err
	delivered := len(got.tokens)
	if e.DeliveredOutputTokens == nil || *e.DeliveredOutputTokens != delivered {
		why = append(why, fmt.Sprintf("the error does not tell the %d delivered tokens", delivered))
	}
	if e.PartialOutput == nil || *e.PartialOutput != (delivered > 0) {
		why = append(why, "the error is wrong about partial output")
	}
	return why
}

func firstDifference(a, b []int32) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	return -1
}

func commonPrefix(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

func sameUsage(a, b *Usage) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func deref(u *Usage) Usage {
	if u == nil {
		return Usage{}
	}
	return *u
}
