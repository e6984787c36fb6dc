// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package client

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"
	"unicode/utf8"
)

// event is one JSON event of either endpoint.
type event struct {
	ID      string          `json:"id"`
	Object  string          `json:"object"`
	Error   json.RawMessage `json:"error"`
	Choices []choice        `json:"choices"`
	Usage   *Usage          `json:"usage"`
}

type choice struct {
	Index int `json:"index"`
	Delta *struct {
		Role    *string `json:"role"`
		Content *string `json:"content"`
	} `json:"delta"`
	Text         *string `json:"text"`
	FinishReason *string `json:"finish_reason"`
	TokenIDs     []int32 `json:"token_ids"`
	TokenIndex   *int    `json:"token_index"`
}

// event takes in one event and returns the chunk it carries, if any.
func (t *Transcript) event(data []byte, at time.Time) (Chunk, bool) {
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		t.problem("bad JSON: %v", err)
		return Chunk{}, false
	}
	if !utf8.Valid(data) {
		t.problem("invalid UTF-8 on the wire")
	}
	if e.Error != nil {
		t.errorEvent(e)
		return Chunk{}, false
	}
	t.envelope(e)
	if e.Usage != nil {
		t.usage(e)
	}
	if len(e.Choices) == 0 {
		if e.Usage == nil {
			t.problem("event with neither choices nor usage")
		}
		t.counted = true
		return Chunk{}, false
	}
	if t.counted {
		t.problem("output after the final usage")
	}
	if len(e.Choices) > 1 || e.Choices[0].Index != 0 {
		t.problem("more than one choice")
	}
	return t.choice(e.Choices[0], data, at)
}

func (t *Transcript) errorEvent(e event) {
	var ae APIError
	if err := json.Unmarshal(e.Error, &ae); err != nil || bytes.Equal(e.Error, []byte("null")) || ae.Code == "" {
		t.problem("error member without an error object: %.60q", e.Error)
		return
	}
	if len(e.Choices) > 0 {
		t.problem("error event with choices")
	}
	if t.Finishes > 0 {
		t.problem("error event after the finish")
	}
	t.Err = &ae
}

func (t *Transcript) envelope(e event) {
	want := "text_completion"
	if t.chat {
		want = "chat.completion.chunk"
	}
	if e.Object != want {
		t.problem("object %q instead of %q", e.Object, want)
	}
	if e.ID == "" {
		t.problem("event without id")
	} else if !slices.Contains(t.IDs, e.ID) {
		t.IDs = append(t.IDs, e.ID)
	}
}

func (t *Transcript) usage(e event) {
	switch u := e.Usage; {
	case t.Usage != nil && *t.Usage != *u:
		t.problem("two different usages")
	case u.TotalTokens != u.PromptTokens+u.CompletionTokens:
		t.problem("usage does not add up: %+v", *u)
	}
	t.Usage = e.Usage
}

func (t *Transcript) choice(c choice, data []byte, at time.Time) (Chunk, bool) {
	out := Chunk{At: at, First: len(t.tokens), IDs: c.TokenIDs}
	if t.chat {
		if c.Delta == nil {
			t.problem("choice without delta")
		} else {
			t.role(c.Delta.Role)
			if c.Delta.Content != nil {
				out.Text = *c.Delta.Content
			}
		}
	} else if c.Text != nil {
		out.Text = *c.Text
	}
	carries := out.Text != "" || len(out.IDs) > 0
	if carries && t.Finishes > 0 {
		t.problem("output after the finish")
	}
	if out.Text != "" {
		t.content(out, data)
	}
	if len(out.IDs) > 0 {
		t.indexes(c)
	}
	if c.FinishReason != nil {
		t.Finishes++
		t.Finish = *c.FinishReason
	}
	return out, carries
}

func (t *Transcript) role(role *string) {
	if role == nil || *role == "" {
		return
	}
	t.Roles++
	if *role != "assistant" {
		t.problem("role %q", *role)
	}
	if t.Roles > 1 || len(t.tokens) > 0 || t.text.Len() > 0 {
		t.problem("role chunk in mid-stream")
	}
}

// content takes in text. A chunk may have text and no ids: the beginning of a token whose last character is not
// complete goes out before the id, which comes with the rest.
func (t *Transcript) content(c Chunk, data []byte) {
	if brokenText(c.Text, data) {
		t.problem("part of a character at index %d", len(t.tokens))
	}
	t.text.WriteString(c.Text)
}

func (t *Transcript) indexes(c choice) {
	switch {
	case c.TokenIndex == nil:
		t.problem("token ids without token_index at index %d", len(t.tokens))
	case *c.TokenIndex != len(t.tokens):
		t.problem("token_index %d instead of %d", *c.TokenIndex, len(t.tokens))
	}
	t.tokens = append(t.tokens, c.TokenIDs...)
}

// brokenText reports text in which the JSON decoder had to put U+FFFD for something that was not a character: the wire
// has fewer spellings of U+FFFD than the decoded text.
func brokenText(text string, wire []byte) bool {
	decoded := bytes.Count([]byte(text), []byte("\ufffd"))
	if decoded == 0 {
		return false
	}
	spelled := bytes.Count(wire, []byte("\ufffd")) + bytes.Count(bytes.ToLower(wire), []byte(`\ufffd`))
	return decoded > spelled
}
