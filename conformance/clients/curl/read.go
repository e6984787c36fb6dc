// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"encoding/json"
	"strings"

	"github.com/seguekv/segue/conformance/matrix"
)

// chunk is a chunk of a stream, or a whole answer.
type chunk struct {
	Error   json.RawMessage `json:"error"`
	Usage   *matrix.Usage   `json:"usage"`
	Choices []struct {
		Text   string  `json:"text"`
		Finish *string `json:"finish_reason"`
		Delta  part    `json:"delta"`
		// Message is that of a whole answer.
		Message part `json:"message"`
	} `json:"choices"`
}

type part struct {
	Content *string `json:"content"`
	Calls   []struct {
		Index    int    `json:"index"`
		ID       string `json:"id"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

const done = "[DONE]"

// read makes a result of a body, as a strict client does: an answer without its terminator is an error.
func read(t matrix.Task, w *matrix.Wire, body []byte) matrix.Result {
	var r matrix.Result
	var a answer
	stream := t.Stream && w.Status == 200
	if !stream {
		if w.Status != 0 {
			w.Events = []string{string(body)}
			a.take(body)
		}
	} else {
		w.Events, w.Rest = split(string(body))
		for _, e := range w.Events {
			if e != done {
				r.Chunks++
				a.take([]byte(e))
			}
		}
	}
	r.Text, r.Finish, r.Usage, r.Error = a.text.String(), a.finish, a.usage, a.err
	if r.Error != nil && w.Status != 200 {
		r.Error.Kind, r.Error.Status = matrix.KindStatus, &w.Status
	}
	if r.Error == nil && stream && (len(w.Events) == 0 || w.Events[len(w.Events)-1] != done) {
		r.Error = &matrix.Error{Kind: matrix.KindTransport, Class: "curl", Message: "the stream ended without its terminator"}
	}
	if r.Finish != nil && *r.Finish == "tool_calls" {
		r.Calls = a.calls
	} else {
		r.Partial = a.calls
	}
	return r
}

// split cuts a stream into the data of its events. Comments are left out.
func split(s string) (events []string, rest string) {
	frames := strings.Split(s, "\n\n")
	for _, f := range frames[:len(frames)-1] {
		var data []string
		for l := range strings.SplitSeq(f, "\n") {
			if v, ok := strings.CutPrefix(l, "data:"); ok {
				data = append(data, strings.TrimPrefix(v, " "))
			}
		}
		if data != nil {
			events = append(events, strings.Join(data, "\n"))
		}
	}
	return events, frames[len(frames)-1]
}

// answer is what has come of one answer.
type answer struct {
	text   strings.Builder
	finish *string
	usage  *matrix.Usage
	calls  []matrix.Call
	err    *matrix.Error
}

func (a *answer) take(b []byte) {
	var c chunk
	if err := json.Unmarshal(b, &c); err != nil {
		a.err = &matrix.Error{Kind: matrix.KindOther, Class: "curl", Message: "not JSON: " + err.Error()}
		return
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		var e struct {
			Message string  `json:"message"`
			Code    *string `json:"code"`
		}
		if err := json.Unmarshal(c.Error, &e); err != nil {
			e.Message = err.Error()
		}
		a.err = &matrix.Error{Kind: matrix.KindStream, Class: "curl", Code: e.Code, Message: e.Message, Body: c.Error}
	}
	if c.Usage != nil {
		a.usage = c.Usage
	}
	if len(c.Choices) == 0 {
		return
	}
	choice := c.Choices[0]
	a.text.WriteString(choice.Text)
	if choice.Finish != nil {
		a.finish = choice.Finish
	}
	for _, p := range []part{choice.Delta, choice.Message} {
		if p.Content != nil {
			a.text.WriteString(*p.Content)
		}
		for i, f := range p.Calls {
			a.fragment(max(i, f.Index), f.ID, f.Function.Name, f.Function.Arguments)
		}
	}
}

// maxCalls bounds the tool calls of one answer.
const maxCalls = 64

func (a *answer) fragment(i int, id, name, arguments string) {
	for len(a.calls) <= i && i < maxCalls {
		a.calls = append(a.calls, matrix.Call{})
	}
	if i < len(a.calls) {
		a.calls[i].ID += id
		a.calls[i].Name += name
		a.calls[i].Arguments += arguments
	}
}
