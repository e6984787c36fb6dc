// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

// chunk is what tests look at in an event.
type chunk struct {
	ID      string          `json:"id"`
	Object  string          `json:"object"`
	Error   json.RawMessage `json:"error"`
	Usage   json.RawMessage `json:"usage"`
	Choices []struct {
		Text  string `json:"text"`
		Delta struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"delta"`
		FinishReason string  `json:"finish_reason"`
		TokenIDs     []int32 `json:"token_ids"`
		TokenIndex   *int    `json:"token_index"`
	} `json:"choices"`
}

// transcript is a whole stream, read and checked against the rules that hold for all.
type transcript struct {
	raw      string
	comments int
	chunks   []chunk
	text     string
	ids      []int32
	finish   string
	roles    int
	done     bool
	err      *errorObject
	usage    string
}

type errorObject struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Type      string `json:"type"`
	Param     string `json:"param"`
	RequestID string `json:"request_id"`
	Partial   bool   `json:"partial_output"`
	Delivered int    `json:"delivered_output_tokens"`
	Retryable bool   `json:"retryable"`
	Cause     string `json:"cause"`
	Detail    string `json:"detail"`
}

func (w *world) stream(resp *http.Response) *transcript {
	w.t.Helper()
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(resp.Body)
		w.t.Fatalf("status %d: %s", resp.StatusCode, body)
	}
	tr := &transcript{}
	var raw bytes.Buffer
	scanner := bufio.NewScanner(io.TeeReader(resp.Body, &raw))
	blank := true
	for scanner.Scan() {
		line := scanner.Text()
		switch {
		case line == "":
			blank = true
			continue
		case !blank:
			w.t.Errorf("two lines without a blank one between them: %q", line)
		case tr.done || tr.err != nil:
			w.t.Errorf("after the end: %q", line)
		case strings.HasPrefix(line, ":"):
			tr.comments++
		case line == "data: [DONE]":
			tr.done = true
		default:
			w.chunk(tr, strings.TrimPrefix(line, "data: "))
		}
		blank = false
	}
	if err := scanner.Err(); err != nil {
		w.t.Errorf("read stream: %v", err)
	}
	if !blank {
		w.t.Errorf("the last event has no blank line")
	}
	tr.raw = raw.String()
	if !tr.done && tr.err == nil {
		w.t.Errorf("silent end: %q", tr.raw)
	}
	return tr
}

func (w *world) chunk(tr *transcript, data string) {
	w.t.Helper()
	var c chunk
	if err := json.Unmarshal([]byte(data), &c); err != nil {
		w.t.Errorf("event %q: %v", data, err)
		return
	}
	if strings.Contains(data, `"error":null`) {
		w.t.Errorf("null error in a healthy chunk: %q", data)
	}
	if c.Error != nil {
		tr.err = &errorObject{}
		if err := json.Unmarshal(c.Error, tr.err); err != nil {
			w.t.Errorf("error event %q: %v", data, err)
		}
		if c.Choices != nil {
			w.t.Errorf("error event with choices: %q", data)
		}
		return
	}
	if len(tr.chunks) > 0 && c.ID != tr.chunks[0].ID {
		w.t.Errorf("id changes from %s to %s", tr.chunks[0].ID, c.ID)
	}
	tr.chunks = append(tr.chunks, c)
	if len(c.Choices) == 0 {
		tr.usage = string(c.Usage)
		return
	}
	choice := c.Choices[0]
	if choice.Delta.Role != "" {
		tr.roles++
	}
	if choice.TokenIndex != nil && *choice.TokenIndex != len(tr.ids) {
		w.t.Errorf("token_index %d, want %d", *choice.TokenIndex, len(tr.ids))
	}
	tr.ids = append(tr.ids, choice.TokenIDs...)
	tr.text += choice.Delta.Content + choice.Text
	if choice.FinishReason != "" {
		tr.finish = choice.FinishReason
	}
}

// failure reads an HTTP error.
func (w *world) failure(resp *http.Response) errorObject {
	w.t.Helper()
	defer resp.Body.Close()
	var body struct {
		Error errorObject `json:"error"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		w.t.Fatalf("status %d: %v", resp.StatusCode, err)
	}
	if body.Error.RequestID != resp.Header.Get("X-Request-Id") {
		w.t.Errorf("request_id %q, header %q", body.Error.RequestID, resp.Header.Get("X-Request-Id"))
	}
	return body.Error
}

// reading reads a stream in the background and returns how to wait for it.
func (w *world) reading(resp *http.Response) func() *transcript {
	done := make(chan *transcript, 1)
	go func() { done <- w.stream(resp) }()
	return func() *transcript { return <-done }
}
