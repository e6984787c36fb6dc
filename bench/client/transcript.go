// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Chunk is one event that carried text or token ids.
type Chunk struct {
	// At is when the last byte of the event was read.
	At time.Time
	// First is the output index of IDs[0].
	First int
	IDs   []int32
	Text  string
}

// Last is the highest output index in the chunk, or -1 if it has no ids.
func (c Chunk) Last() int {
	if len(c.IDs) == 0 {
		return -1
	}
	return c.First + len(c.IDs) - 1
}

// Usage is what the server counted.
type Usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// APIError is the error object of an answer.
type APIError struct {
	Message               string `json:"message"`
	Type                  string `json:"type"`
	Code                  string `json:"code"`
	Cause                 string `json:"cause"`
	RequestID             string `json:"request_id"`
	PartialOutput         *bool  `json:"partial_output"`
	DeliveredOutputTokens *int   `json:"delivered_output_tokens"`
	Retryable             *bool  `json:"retryable"`
}

func (e *APIError) Error() string { return fmt.Sprintf("%s: %s", e.Code, e.Message) }

// maxProblems bounds the list kept per transcript; one problem is already a failure.
const maxProblems = 8

// Transcript is one answer as it was received.
type Transcript struct {
	// Session and Granted are the X-Segue-Session and X-Segue-Protection headers.
	Session, Granted string
	Status           int
	Begun, Ended     time.Time
	Chunks           []Chunk
	// IDs are the distinct ids of the events in order of appearance.
	IDs          []string
	Roles, Dones int
	Finishes     int
	Finish       string
	Usage        *Usage
	Err          *APIError
	// Problems are violations of the protocol, the first few.
	Problems []string

	chat    bool
	counted bool // the final usage came: only [DONE] or an error may follow
	tokens  []int32
	text    strings.Builder
}

// Tokens are the output ids received, in order. The caller must not change them.
func (t *Transcript) Tokens() []int32 { return t.tokens }

// Text is the text received.
func (t *Transcript) Text() string { return t.text.String() }

// Complete reports whether the answer is whole and correct in form.
func (t *Transcript) Complete() bool {
	return t.Status == 200 && t.Err == nil && len(t.Problems) == 0 && t.Finishes == 1 && t.Dones == 1
}

// Failure describes an answer that is not Complete, and is empty for one that is.
func (t *Transcript) Failure() string {
	switch {
	case t.Complete():
		return ""
	case t.Err != nil:
		return fmt.Sprintf("status %d, error %v after %d tokens", t.Status, t.Err, len(t.tokens))
	default:
		return fmt.Sprintf("status %d, after %d tokens: %s", t.Status, len(t.tokens), strings.Join(t.Problems, "; "))
	}
}

// TokensPerSecond is the rate at the client between the first and the last chunk with ids, the tokens of the first
// chunk excluded. It is 0 when there are fewer than two such chunks.
func (t *Transcript) TokensPerSecond() float64 {
	var first, last *Chunk
	for i := range t.Chunks {
		if len(t.Chunks[i].IDs) == 0 {
			continue
		}
		if first == nil {
			first = &t.Chunks[i]
		}
		last = &t.Chunks[i]
	}
	if first == nil || !last.At.After(first.At) {
		return 0
	}
	return float64(len(t.tokens)-len(first.IDs)) / last.At.Sub(first.At).Seconds()
}

func (t *Transcript) problem(format string, args ...any) {
	if len(t.Problems) < maxProblems {
		t.Problems = append(t.Problems, fmt.Sprintf(format, args...))
	}
}

// readRefusal reads the body of an answer that is not 200.
func (t *Transcript) readRefusal(body io.Reader) {
	defer func() { t.Ended = time.Now() }()
	var answer struct {
		Error *APIError `json:"error"`
	}
	data, err := io.ReadAll(io.LimitReader(body, maxEvent))
	if err == nil {
		err = json.Unmarshal(data, &answer)
	}
	if err != nil || answer.Error == nil {
		t.problem("status %d without an error object: %.100q", t.Status, data)
		return
	}
	t.Err = answer.Error
}

// read consumes the event stream and judges its form.
func (t *Transcript) read(body io.Reader, onChunk func(Chunk)) {
	events := newEventReader(body)
	for {
		data, err := events.next()
		at := time.Now()
		if err != nil {
			t.Ended = at
			t.judgeEnd(err)
			return
		}
		switch {
		case t.Dones > 0 && string(data) == "[DONE]":
			t.Dones++
			t.problem("[DONE] more than once")
		case t.Dones > 0:
			t.problem("event after [DONE]")
		case t.Err != nil:
			if string(data) == "[DONE]" {
				t.Dones++
			}
			t.problem("event after the error: %.60q", data)
		case string(data) == "[DONE]":
			t.Dones++
		default:
			if c, ok := t.event(data, at); ok {
				t.Chunks = append(t.Chunks, c)
				if onChunk != nil {
					onChunk(c)
				}
			}
		}
	}
}

// judgeEnd looks at the whole once no more events can come.
func (t *Transcript) judgeEnd(err error) {
	if !errors.Is(err, io.EOF) {
		t.problem("transport: %v", err)
	}
	if t.chat && t.Roles != 1 && (t.Err == nil || len(t.Chunks) > 0) {
		t.problem("%d role chunks instead of 1", t.Roles)
	}
	if len(t.IDs) > 1 {
		t.problem("%d ids instead of 1", len(t.IDs))
	}
	if t.Err != nil {
		return
	}
	if t.Finishes != 1 {
		t.problem("%d finish reasons instead of 1", t.Finishes)
	}
	if t.Dones != 1 {
		t.problem("%d [DONE] instead of 1", t.Dones)
	}
	switch u := t.Usage; {
	case u == nil:
		t.problem("no usage although it was asked for")
	case u.CompletionTokens != len(t.tokens):
		t.problem("%d token ids where the usage counts %d", len(t.tokens), u.CompletionTokens)
	}
}
