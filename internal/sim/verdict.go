// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"fmt"
	"slices"
	"strings"
)

// codeInterrupted is the error code of an answer that has already carried content.
const codeInterrupted = "upstream_decode_interrupted"

// Judge says what is wrong with an answer: nothing, if it is the reference, or a prefix of it with an honest end. An answer
// that its client left, or whose transport broke, needs no end: whether the transport may break is for the caller to
// know.
func Judge(a *Answer, ref *Reference, r Request) []string {
	why := slices.Clone(a.Problems)
	add := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	if n := len(a.IDs); n > len(ref.IDs) || !slices.Equal(a.IDs, ref.IDs[:n]) {
		add("%d ids are no prefix of the reference's %d: they differ from %d on", n, len(ref.IDs), firstDifference(a.IDs, ref.IDs))
		return why
	}
	if !strings.HasPrefix(ref.Text, a.Text) {
		add("the text is no prefix of the reference's: %q, %q", a.Text, ref.Text)
		return why
	}
	if len(a.Names) > 1 {
		add("%d ids of answers", len(a.Names))
	}
	switch {
	case a.Status != 0 && a.Status != 200:
		if len(a.IDs) > 0 || a.Text != "" {
			add("status %d with output", a.Status)
		}
		// To a repeated key the router may tell of the answer that was interrupted.
		if a.Err != nil && !a.Repeat && (a.Err.Delivered != nil && *a.Err.Delivered != 0 || a.Err.Partial) {
			add("status %d tells of output: %+v", a.Status, *a.Err)
		}
	case a.Err != nil:
		why = append(why, judgeError(a, ref)...)
	case a.Dones > 0:
		why = append(why, judgeWhole(a, ref, r)...)
	case a.Finishes > 1 || a.Roles > 1:
		add("%d finish reasons and %d role chunks", a.Finishes, a.Roles)
	case !a.Left && a.Broken == nil:
		add("silent end after %d tokens", len(a.IDs))
	}
	return why
}

func judgeError(a *Answer, ref *Reference) []string {
	var why []string
	add := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	if a.Finishes > 0 || a.Dones > 0 {
		add("an error together with a finish or [DONE]")
	}
	if a.Roles > 1 {
		add("%d role chunks", a.Roles)
	}
	whole := 0
	for whole < len(ref.Whole) && ref.Whole[whole] <= len(a.Text) {
		whole++
	}
	d := 0
	if a.Err.Delivered != nil {
		d = *a.Err.Delivered
	}
	switch {
	case d != len(a.IDs):
		add("the error tells of %d tokens, %d ids came", d, len(a.IDs))
	case d > whole:
		add("the error tells of %d tokens, the text has %d whole ones", d, whole)
	}
	if content := a.Text != "" || len(a.IDs) > 0; a.Err.Partial != content {
		add("partial_output is %v after %d bytes and %d ids", a.Err.Partial, len(a.Text), len(a.IDs))
	} else if content && a.Err.Code != codeInterrupted {
		add("code %s after content", a.Err.Code)
	}
	return why
}

func judgeWhole(a *Answer, ref *Reference, r Request) []string {
	var why []string
	add := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	if a.Dones != 1 || a.Finishes != 1 {
		add("%d finish reasons and %d [DONE]", a.Finishes, a.Dones)
	}
	if len(a.IDs) != len(ref.IDs) {
		add("%d of %d ids", len(a.IDs), len(ref.IDs))
	}
	if a.Text != ref.Text {
		add("%d of %d bytes of text", len(a.Text), len(ref.Text))
	}
	if a.Finish != ref.Finish {
		add("finish %q instead of %q", a.Finish, ref.Finish)
	}
	if r.Chat && a.Roles != 1 {
		add("%d role chunks", a.Roles)
	}
	want := AnswerUsage{len(ref.PromptIDs), len(ref.IDs), len(ref.PromptIDs) + len(ref.IDs)}
	if a.Usage == nil || *a.Usage != want {
		add("usage %+v instead of %+v", a.Usage, want)
	}
	return why
}

func firstDifference(a, b []int32) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
