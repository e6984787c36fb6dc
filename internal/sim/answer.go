// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Answer is one answer as a client received it.
type Answer struct {
	Session string
	Status  int
	// Begun is when the request was sent, Ended when the last byte was read or the client left, both since the world's
	// start.
	Begun, Ended time.Duration
	IDs          []int32
	Text         string
	Finish       string
	Finishes     int
	Dones, Roles int
	// Names are the distinct ids of the events.
	Names []string
	Usage *AnswerUsage
	Err   *AnswerError
	// Broken is how the transport ended, if not by a clean end.
	Broken error
	// Keyed: the request had an Idempotency-Key. Repeat: it was used before. Replayed: the router says that it is a kept
	// answer.
	Keyed, Repeat, Replayed bool
	// Left: the client went away by itself.
	Left bool
	// Problems are violations of the form.
	Problems []string
	// Chunks counts events with content.
	Chunks int
}

// AnswerUsage is the usage object.
type AnswerUsage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// AnswerError is the error object.
type AnswerError struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Cause     string `json:"cause"`
	Detail    string `json:"detail"`
	Partial   bool   `json:"partial_output"`
	Delivered *int   `json:"delivered_output_tokens"`
	Retryable bool   `json:"retryable"`
}

// content reports an answer that brought output.
func (a *Answer) content() bool { return a.Status == 200 && (a.Text != "" || len(a.IDs) > 0) }

// Whole reports an answer that claims to be complete.
func (a *Answer) Whole() bool { return a.Status == 200 && a.Err == nil && a.Dones > 0 }

func (a *Answer) problem(format string, args ...any) {
	if len(a.Problems) < 8 {
		a.Problems = append(a.Problems, fmt.Sprintf(format, args...))
	}
}

type answerEvent struct {
	ID      string          `json:"id"`
	Object  string          `json:"object"`
	Error   json.RawMessage `json:"error"`
	Usage   *AnswerUsage    `json:"usage"`
	Choices []answerChoice  `json:"choices"`
}

type answerChoice struct {
	Text  string `json:"text"`
	Delta struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"delta"`
	Message      *struct{ Role, Content string } `json:"message"`
	FinishReason *string                         `json:"finish_reason"`
	IDs          []int32                         `json:"token_ids"`
	First        *int                            `json:"token_index"`
}

// readWhole takes in an answer in one piece, or an error in place of any answer.
func (a *Answer) readWhole(body io.Reader, chat bool) {
	data, err := io.ReadAll(body)
	if err != nil {
		a.Broken = err
		return
	}
	var e answerEvent
	if err := json.Unmarshal(data, &e); err != nil {
		a.problem("bad JSON: %v: %.80q", err, data)
		return
	}
	if a.Status != 200 {
		if e.Error == nil {
			a.problem("status %d without an error object", a.Status)
			return
		}
		a.failure(e.Error)
		return
	}
	if len(e.Choices) != 1 || e.Choices[0].FinishReason == nil {
		a.problem("no answer in %.80q", data)
		return
	}
	c := e.Choices[0]
	a.IDs, a.Finish, a.Finishes, a.Dones, a.Usage = c.IDs, *c.FinishReason, 1, 1, e.Usage
	a.Names = []string{e.ID}
	if chat {
		if c.Message == nil || c.Message.Role != "assistant" {
			a.problem("no message in %.80q", data)
			return
		}
		a.Text, a.Roles = c.Message.Content, 1
	} else {
		a.Text = c.Text
	}
	a.spelling(a.Text, data)
}

// stream takes in an event stream. next is called before each event is waited for, got with the ids it brought: false
// ends the reading.
func (a *Answer) stream(body io.Reader, chat bool, next func(), got func(first int, ids []int32) bool) {
	in := bufio.NewReaderSize(body, 4<<10)
	inEvent := false
	next()
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) && !inEvent && len(line) == 0 {
				return
			}
			a.Broken = err
			if errors.Is(err, io.EOF) {
				a.Broken = io.ErrUnexpectedEOF
			}
			return
		}
		line = bytes.TrimSuffix(line, []byte("\n"))
		switch {
		case len(line) == 0:
			inEvent = false
			continue
		case inEvent:
			a.problem("two lines without a blank one between: %.60q", line)
		case a.Dones > 0 || a.Err != nil:
			a.problem("after the end: %.60q", line)
		}
		inEvent = true
		if line[0] == ':' {
			continue
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok {
			a.problem("unknown line %.60q", line)
			continue
		}
		before := len(a.IDs)
		a.event(data, chat)
		if !got(before, a.IDs[before:]) {
			return
		}
		next()
	}
}

func (a *Answer) event(data []byte, chat bool) {
	if string(data) == "[DONE]" {
		a.Dones++
		return
	}
	var e answerEvent
	if err := json.Unmarshal(data, &e); err != nil {
		a.problem("bad JSON %.60q: %v", data, err)
		return
	}
	if e.Error != nil {
		a.failure(e.Error)
		return
	}
	if e.ID != "" && !slices.Contains(a.Names, e.ID) {
		a.Names = append(a.Names, e.ID)
	}
	if e.Usage != nil {
		a.Usage = e.Usage
	}
	if len(e.Choices) == 0 {
		return
	}
	c := e.Choices[0]
	text := c.Text
	if chat {
		text = c.Delta.Content
	}
	if c.Delta.Role != "" {
		a.Roles++
		if a.Text != "" || len(a.IDs) > 0 {
			a.problem("role chunk in mid-stream")
		}
	}
	if (text != "" || len(c.IDs) > 0) && a.Finishes > 0 {
		a.problem("output after the finish")
	}
	if len(c.IDs) > 0 && (c.First == nil || *c.First != len(a.IDs)) {
		a.problem("token_index is not %d", len(a.IDs))
	}
	if text != "" || len(c.IDs) > 0 {
		a.Chunks++
	}
	a.spelling(text, data)
	a.Text += text
	a.IDs = append(a.IDs, c.IDs...)
	if c.FinishReason != nil {
		a.Finishes++
		a.Finish = *c.FinishReason
	}
}

// spelling finds text that isn't UTF-8: the JSON decoder puts U+FFFD for it.
func (a *Answer) spelling(text string, wire []byte) {
	if !utf8.Valid(wire) {
		a.problem("invalid UTF-8 on the wire")
	}
	if n := strings.Count(text, "\ufffd"); n > bytes.Count(wire, []byte("\ufffd"))+bytes.Count(bytes.ToLower(wire), []byte(`\ufffd`)) {
		a.problem("part of a character in %.60q", text)
	}
}

func (a *Answer) failure(raw json.RawMessage) {
	a.Err = &AnswerError{}
	if err := json.Unmarshal(raw, a.Err); err != nil || a.Err.Code == "" {
		a.problem("bad error object %.80q", raw)
	}
}
