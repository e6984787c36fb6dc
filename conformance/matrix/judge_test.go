// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package matrix_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/seguekv/segue/conformance/matrix"
	"github.com/seguekv/segue/conformance/upstream"
)

// attempts are n attempts on alternating upstreams, all over.
func attempts(n int) []upstream.Attempt {
	out := make([]upstream.Attempt, n)
	for i := range out {
		out[i] = upstream.Attempt{Upstream: i % 2, Begun: time.Unix(1, 0), Ended: time.Unix(2, 0), Left: true}
	}
	return out
}

// client is one that shows its user everything.
func client(t *testing.T) matrix.Client {
	t.Helper()
	for _, c := range matrix.Clients() {
		if !c.Bare && !c.Strips && c.Retries {
			return c
		}
	}
	t.Fatal("no such client")
	return matrix.Client{}
}

func failure(kind string, status int, id, code, cause string, partial bool, delivered int) *matrix.Error {
	body := fmt.Sprintf(`{"code":%q,"request_id":%q,"partial_output":%t,"delivered_output_tokens":%d,"retryable":%t,"cause":%q}`, code, id, partial, delivered, !partial, cause)
	e := &matrix.Error{Kind: kind, Class: "E", Code: &code, Message: fmt.Sprintf("request %s after %d output tokens", id, delivered), Body: json.RawMessage(body)}
	if status != 0 {
		e.Status = &status
	}
	return e
}

// lies are changes of a right report, each of which must be noticed.
type lie struct {
	name   string
	change func(*matrix.Result)
}

func check(t *testing.T, c matrix.Case, right func() matrix.Result, seen []upstream.Attempt, lies []lie) {
	t.Helper()
	if found := matrix.Judge(c, right(), seen); len(found) > 0 {
		t.Fatalf("%s: a right report is refused: %q", c, found)
	}
	for _, l := range lies {
		r := right()
		l.change(&r)
		if found := matrix.Judge(c, r, seen); len(found) == 0 {
			t.Errorf("%s: %s isn't noticed", c, l.name)
		}
	}
	if found := matrix.Judge(c, right(), attempts(len(seen)+8)); len(found) == 0 {
		t.Errorf("%s: more attempts aren't noticed", c)
	}
	running := attempts(len(seen))
	running[0].Ended = time.Time{}
	if found := matrix.Judge(c, right(), running); len(found) == 0 {
		t.Errorf("%s: an attempt that goes on isn't noticed", c)
	}
}

func TestJudge_NoticesEveryLieAboutAnInterruption(t *testing.T) {
	c := matrix.Case{N: 1, Client: client(t), Endpoint: matrix.Chat, Stream: true, Ending: upstream.EOF, Place: upstream.After, Bad: matrix.BadFirst}
	stop := "stop"
	right := func() matrix.Result {
		return matrix.Result{
			Text: upstream.After.Begun(), Chunks: 4,
			Error: failure(matrix.KindStream, 0, c.RequestID(), "upstream_decode_interrupted", "eof_no_finish", true, upstream.AfterDeltas),
		}
	}
	check(t, c, right, attempts(1), []lie{
		{"success", func(r *matrix.Result) { r.Error, r.Finish = nil, &stop }},
		{"a finish reason", func(r *matrix.Result) { r.Finish = &stop }},
		{"lost text", func(r *matrix.Result) { r.Text = r.Text[:2] }},
		{"a second generation", func(r *matrix.Result) { r.Text += upstream.After.Text() }},
		{"an executable call", func(r *matrix.Result) { r.Calls = []matrix.Call{{ID: "c", Name: "n", Arguments: "{}"}} }},
		{"a transport error", func(r *matrix.Result) { r.Error.Kind = matrix.KindTransport }},
		{"another count", func(r *matrix.Result) {
			r.Error = failure(matrix.KindStream, 0, c.RequestID(), "upstream_decode_interrupted", "eof_no_finish", true, 2)
		}},
		{"another request", func(r *matrix.Result) {
			r.Error = failure(matrix.KindStream, 0, "req_2_c", "upstream_decode_interrupted", "eof_no_finish", true, 3)
		}},
		{"another code", func(r *matrix.Result) {
			r.Error = failure(matrix.KindStream, 0, c.RequestID(), "upstream_unavailable", "eof_no_finish", true, 3)
		}},
		{"another cause", func(r *matrix.Result) {
			r.Error = failure(matrix.KindStream, 0, c.RequestID(), "upstream_decode_interrupted", "stall", true, 3)
		}},
		{"no partial output", func(r *matrix.Result) {
			r.Error = failure(matrix.KindStream, 0, c.RequestID(), "upstream_decode_interrupted", "eof_no_finish", false, 3)
		}},
	})
}

func TestJudge_NoticesEveryLieAboutARefusal(t *testing.T) {
	c := matrix.Case{N: 1, Client: client(t), Endpoint: matrix.Completions, Stream: true, Ending: upstream.Stall, Place: upstream.Before, Bad: matrix.BadAll}
	right := func() matrix.Result {
		return matrix.Result{Error: failure(matrix.KindStatus, 504, c.RequestID(), "upstream_unavailable", "stall", false, 0)}
	}
	check(t, c, right, attempts(2), []lie{
		{"success", func(r *matrix.Result) { r.Error = nil }},
		{"text", func(r *matrix.Result) { r.Text = "Grüße" }},
		{"another status", func(r *matrix.Result) { *r.Error.Status = 500 }},
		{"an event instead of a status", func(r *matrix.Result) { r.Error.Kind = matrix.KindStream }},
		{"output tokens", func(r *matrix.Result) {
			r.Error = failure(matrix.KindStatus, 504, c.RequestID(), "upstream_unavailable", "stall", false, 1)
		}},
		{"no error object", func(r *matrix.Result) { r.Error.Body = nil }},
	})
	same := attempts(2)
	same[1].Upstream = same[0].Upstream
	if found := matrix.Judge(c, right(), same); len(found) == 0 {
		t.Error("two attempts on one upstream aren't noticed")
	}
	left := attempts(2)
	left[1].Left = false
	if found := matrix.Judge(c, right(), left); len(found) == 0 {
		t.Error("a stalled attempt that nobody cancelled isn't noticed")
	}
}

func TestJudge_NoticesEveryLieAboutAWholeAnswer(t *testing.T) {
	c := matrix.Case{N: 1, Client: client(t), Endpoint: matrix.Chat, Ending: upstream.CutCall, Place: upstream.InCall, Bad: matrix.BadFirst}
	right := func() matrix.Result {
		finish, n := "tool_calls", upstream.InCall.Deltas()
		return matrix.Result{
			Text: upstream.InCall.Text(), Finish: &finish, Usage: &matrix.Usage{Prompt: upstream.PromptTokens, Completion: n, Total: upstream.PromptTokens + n},
			Calls: []matrix.Call{{ID: "call_1", Name: upstream.CallName, Arguments: upstream.CallArguments}},
		}
	}
	check(t, c, right, attempts(2), []lie{
		{"an error", func(r *matrix.Result) { r.Error = &matrix.Error{Kind: matrix.KindOther} }},
		{"no finish reason", func(r *matrix.Result) { r.Finish = nil }},
		{"no usage", func(r *matrix.Result) { r.Usage = nil }},
		{"usage of two attempts", func(r *matrix.Result) { r.Usage.Completion *= 2 }},
		{"cut arguments", func(r *matrix.Result) { r.Calls[0].Arguments = upstream.BegunCall() }},
		{"a call twice", func(r *matrix.Result) { r.Calls = append(r.Calls, r.Calls[0]) }},
		{"the upstream's call id", func(r *matrix.Result) { r.Calls[0].ID = upstream.CallID }},
		{"a partial call beside it", func(r *matrix.Result) { r.Partial = r.Calls }},
	})
	if found := matrix.Judge(c, right(), attempts(1)); len(found) == 0 {
		t.Error("a whole answer of a bad attempt isn't noticed")
	}
}
