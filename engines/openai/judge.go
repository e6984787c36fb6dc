// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"encoding/json"
	"strconv"
)

// judged is what is known of one choice.
type judged struct {
	seen     bool
	held     bool // a chunk of it is held
	finish   string
	counted  int // tokens, so far
	calls    []judgedCall
	last     int
	function judgedCall
}

// judgedCall is one call so far. Name and arguments are the inside of JSON strings, still escaped: joined they are
// what a client reads, even when a fragment ends inside a character.
type judgedCall struct {
	seen, custom    bool
	name, arguments []byte
}

func (t *Transcript) choice(index int) *judged {
	for len(t.choices) <= index {
		t.choices = append(t.choices, judged{})
	}
	return &t.choices[index]
}

// judge takes choice i of the chunk: whether the chunk must be held, and the tokens the choice's delta stands for.
func (t *Transcript) judge(i int) (held bool, tokens int, _ *EndError) {
	c := &t.c.Choices[i]
	if t.rules.Choices > 0 && c.Index >= t.rules.Choices {
		return false, 0, ended(CauseMalformedFrame, "choice %d was not asked for", c.Index)
	}
	j := t.choice(c.Index)
	j.seen = true
	if j.finish != "" && (c.ContentBearing || c.Finish != nil && string(unquoted(c.Finish)) != j.finish) {
		return false, 0, ended(CauseMalformedFrame, "choice %d goes on after its finish", c.Index)
	}
	if err := t.collect(i, j); err != nil {
		return false, 0, err
	}
	tokens = j.tokens(&t.c, c.ContentBearing)
	if c.Finish != nil && j.finish == "" {
		reason := string(unquoted(c.Finish))
		if !allowed(reason) {
			return false, 0, ended(CauseEngineAbort, "finish reason %s", strconv.Quote(reason[:min(len(reason), 64)]))
		}
		j.finish = reason
		if err := j.check(c.Index); err != nil {
			return false, 0, err
		}
	}
	return j.held || j.finish != "", tokens, nil
}

func allowed(reason string) bool {
	switch reason {
	case "stop", "length", "tool_calls", "function_call", "content_filter":
		return true
	}
	return false
}

// tokens counts. Servers that tell usage with each chunk tell it per choice.
func (j *judged) tokens(c *Chunk, content bool) int {
	if !content {
		return 0
	}
	if c.HasUsage && len(c.Choices) == 1 {
		n := max(c.Usage.CompletionTokens-j.counted, 0)
		j.counted += n
		return n
	}
	j.counted++
	return 1
}

// collect joins the fragments of calls.
func (t *Transcript) collect(i int, j *judged) *EndError {
	calls := t.c.Calls(i)
	for at := range calls {
		k := &calls[at]
		if !k.filled() {
			continue
		}
		n := ordinal(k, len(j.calls), j.last)
		for len(j.calls) <= n {
			j.calls = append(j.calls, judgedCall{})
		}
		j.last = n
		if err := t.join(&j.calls[n], k); err != nil {
			return err
		}
	}
	if c := &t.c.Choices[i]; c.hasFunction {
		return t.join(&j.function, &c.function)
	}
	return nil
}

func (t *Transcript) join(to *judgedCall, k *Call) *EndError {
	to.seen = true
	to.custom = to.custom || k.custom
	if isText(k.name) {
		if piece := k.name[1 : len(k.name)-1]; string(piece) != string(to.name) {
			to.name = append(to.name, piece...)
		}
	}
	if isText(k.arguments) {
		to.arguments = append(to.arguments, k.arguments[1:len(k.arguments)-1]...)
	}
	return t.grow(len(k.name) + len(k.arguments))
}

// check judges the calls of a choice that has finished.
func (j *judged) check(index int) *EndError {
	for n := range j.calls {
		if err := j.calls[n].check(); err != "" {
			return j.badCall("choice %d, tool call %d: %s", index, n, err)
		}
	}
	if j.function.seen {
		if err := j.function.check(); err != "" {
			return j.badCall("choice %d, function call: %s", index, err)
		}
	}
	return nil
}

// badCall: a call that the token limit or a filter cut would be cut again.
func (j *judged) badCall(format string, args ...any) *EndError {
	e := ended(CauseInvalidToolJSON, format, args...)
	e.Deterministic = j.finish == "length" || j.finish == "content_filter"
	return e
}

// check says what is wrong with a call; empty: nothing.
func (k *judgedCall) check() string {
	switch {
	case !k.seen:
		return "is missing"
	case len(k.name) == 0:
		return "has no name"
	case k.custom:
		return ""
	case len(k.arguments) == 0:
		return "has no arguments"
	}
	args := unquoted(inQuotes(k.arguments))
	if !json.Valid(args) {
		return "arguments are not JSON"
	}
	if c := args[len(args)-1]; '0' <= c && c <= '9' {
		return "arguments are a bare number, which may be cut"
	}
	return ""
}

func inQuotes(inside []byte) []byte {
	return append(append(append(make([]byte, 0, len(inside)+2), '"'), inside...), '"')
}

// complete judges the answer at its [DONE].
func (t *Transcript) complete() *EndError {
	if len(t.choices) == 0 {
		return ended(CauseEOFNoFinish, "the answer has no choice")
	}
	for i := range max(len(t.choices), t.rules.Choices) {
		if i >= len(t.choices) || t.choices[i].finish == "" {
			return ended(CauseEOFNoFinish, "choice %d has no finish reason", i)
		}
	}
	return nil
}

// whole gives each call as one chunk, with no envelope.
func (j *judged) whole(index int) [][]byte {
	var out [][]byte
	head := `{"object":"` + chatObject + `","choices":[{"index":` + strconv.Itoa(index) + `,"delta":{`
	const tail = `},"logprobs":null,"finish_reason":null}]}`
	for n := range j.calls {
		k := &j.calls[n]
		kind, input := "function", "arguments"
		if k.custom {
			kind, input = "custom", "input"
		}
		b := []byte(head + `"tool_calls":[{"index":` + strconv.Itoa(n) + `,"id":"","type":"` + kind + `","` + kind + `":{"name":"`)
		b = append(append(b, k.name...), `","`+input+`":"`...)
		out = append(out, append(append(b, k.arguments...), `"}}]`+tail...))
	}
	if k := &j.function; k.seen {
		b := append([]byte(head+`"function_call":{"name":"`), k.name...)
		b = append(append(b, `","arguments":"`...), k.arguments...)
		out = append(out, append(b, `"}`+tail...))
	}
	return out
}

// hasCalls reports any fragment of a call, also an empty one.
func (c *Chunk) hasCalls() bool {
	for i := range c.Choices {
		if c.Choices[i].call1 > c.Choices[i].call0 || c.Choices[i].hasFunction {
			return true
		}
	}
	return false
}

// plain reports content beside calls.
func (c *Chunk) plain() bool {
	for i := range c.Choices {
		if c.Choices[i].plain {
			return true
		}
	}
	return false
}
