// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import (
	"fmt"
	"slices"

	"github.com/seguekv/segue/engines"
)

// maxTextEnd bounds the cumulative text of a run in bytes.
const maxTextEnd = 1 << 40

// sequence checks that the events of one run follow each other as engines.Sink promises. The host uses it
// so that an engine's mistake ends one run, the agent so that a host's mistake ends the link.
type sequence struct {
	d        *engines.Description
	rowBytes int
	capture  bool
	// restored are the output ids of the state that the run continues; nil for a fresh run.
	restored []int32

	prompt   int // ids; 0 before Prompt
	filled   int // positions computed by prefill
	tokens   int
	finished bool
}

func newSequence(d *engines.Description, job engines.Job) sequence {
	s := sequence{d: d, rowBytes: d.Geometry.RowBytes(), capture: job.Capture}
	if job.From != nil {
		s.restored = job.From.Output
		s.prompt = len(job.From.Prompt)
		s.filled = s.prompt
	}
	return s
}

func (s *sequence) promptIDs(ids []int32) error {
	switch {
	case s.prompt > 0:
		return fmt.Errorf("prompt of %d ids comes after a prompt", len(ids))
	case len(ids) == 0 || len(ids) > s.d.ContextLength:
		return fmt.Errorf("prompt has %d ids, want 1..%d", len(ids), s.d.ContextLength)
	}
	for i, id := range ids {
		if id < 0 || int(id) >= s.d.Vocabulary {
			return fmt.Errorf("prompt id %d at index %d is not in the vocabulary of %d", id, i, s.d.Vocabulary)
		}
	}
	s.prompt = len(ids)
	return nil
}

func (s *sequence) prefilled(first, count, bytes int) error {
	want := 0
	if s.capture {
		want = count * s.rowBytes
	}
	switch {
	case s.tokens > 0:
		return fmt.Errorf("prefill of position %d comes after token 0", first)
	case first != s.filled:
		return fmt.Errorf("prefill starts at position %d, want %d", first, s.filled)
	case count < 1 || count > s.prompt-first:
		return fmt.Errorf("prefill of %d positions from %d, prompt has %d", count, first, s.prompt)
	case bytes != want:
		return fmt.Errorf("prefill of %d positions has %d bytes of rows, want %d", count, bytes, want)
	}
	s.filled += count
	return nil
}

func (s *sequence) token(t *engines.Token, bytes int) error {
	restored := s.tokens < len(s.restored)
	want := 0
	if s.capture && s.tokens > 0 && !restored {
		want = s.rowBytes
	}
	switch {
	case s.finished:
		return fmt.Errorf("token %d comes after the last token", t.Index)
	case s.prompt == 0 || s.filled != s.prompt:
		return fmt.Errorf("token %d comes when %d of %d prompt positions are prefilled", t.Index, s.filled, s.prompt)
	case t.Index != s.tokens:
		return fmt.Errorf("token has index %d, want %d", t.Index, s.tokens)
	case s.prompt+t.Index > s.d.ContextLength:
		return fmt.Errorf("token %d after %d prompt ids is beyond the context of %d", t.Index, s.prompt, s.d.ContextLength)
	case t.ID < 0 || int(t.ID) >= s.d.Vocabulary:
		return fmt.Errorf("token %d has id %d, vocabulary %d", t.Index, t.ID, s.d.Vocabulary)
	case t.Restored != restored:
		return fmt.Errorf("token %d has restored=%v, %d tokens are restored", t.Index, t.Restored, len(s.restored))
	case restored && t.ID != s.restored[t.Index]:
		return fmt.Errorf("restored token %d has id %d, the state has %d", t.Index, t.ID, s.restored[t.Index])
	case bytes != want:
		return fmt.Errorf("token %d has a row of %d bytes, want %d", t.Index, bytes, want)
	case len(t.Text) > textBytes:
		return fmt.Errorf("token %d has %d bytes of text, limit %d", t.Index, len(t.Text), textBytes)
	case t.TextEnd < len(t.Text) || t.RawEnd < t.TextEnd || t.RawEnd > maxTextEnd:
		return fmt.Errorf("token %d has %d bytes of text up to %d of %d", t.Index, len(t.Text), t.TextEnd, t.RawEnd)
	case !slices.Contains([]engines.Finish{engines.FinishNone, engines.FinishStop, engines.FinishLength}, t.Finish):
		return fmt.Errorf("token %d has unknown finish %q", t.Index, t.Finish)
	}
	s.tokens++
	s.finished = t.Finish != engines.FinishNone
	return nil
}
