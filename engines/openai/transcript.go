// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"bytes"
	"errors"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"
)

// DefaultHeldLimit bounds what a transcript keeps of one answer, in bytes.
const DefaultHeldLimit = 4 << 20

// Rules say how an answer is judged.
type Rules struct {
	Envelope Envelope
	// Choices is how many the client asked for; 0 = at least one.
	Choices int
	// HoldToolCalls keeps tool and function calls back until the whole answer is known to be good, and then gives
	// each as one chunk. Until then an answer of calls alone isn't committed, so it may be retried. Other members
	// of a choice in a chunk that held only calls are dropped.
	HoldToolCalls bool
	// Limit bounds the bytes of calls and of held chunks; 0 means DefaultHeldLimit.
	Limit int
}

// Step is what one event means. Its bytes are borrowed until the next call of Push.
type Step struct {
	// Emit is one line of JSON for the client; empty: nothing now.
	Emit []byte
	// Content: Emit bears content, so writing it is the commit point.
	Content bool
	// Progress: the event bore content, whether it is emitted or held.
	Progress bool
	// Tokens is how many output tokens the emitted content stands for: what the server's continuous usage says, else one
	// per content-bearing delta of a choice.
	Tokens int
	// Done: [DONE] came and the answer is good; Final has the rest of it.
	Done bool
}

// Final is what is left to write after the last step. It is the caller's.
type Final struct {
	// Chunks are lines of JSON, in order: held calls, finish chunks, the usage chunk if the client asked for one and
	// the server told its usage.
	Chunks [][]byte
	// Content and Tokens are those of Chunks, as in Step.
	Content bool
	Tokens  int
	// Usage is the server's last word; zero unless UsageKnown.
	Usage      Usage
	UsageKnown bool
}

// Transcript judges one answer. A finish chunk is held until [DONE] came and every choice has an allowed finish reason
// and every call parses. It belongs to one goroutine at a time.
type Transcript struct {
	rules   Rules
	w       *Rewriter
	c       Chunk
	out     []byte
	choices []judged
	held    [][]byte
	size    int // bytes in held and in calls

	heldTokens  int
	heldContent bool
	usage       Usage
	usageKnown  bool
	usageValue  []byte // the last usage object as it was sent
	usageChunk  []byte // the last chunk with nothing else
	err         *EndError
	done        bool
}

// NewTranscript makes the judge of one answer.
func NewTranscript(r Rules) *Transcript {
	if r.Limit <= 0 {
		r.Limit = DefaultHeldLimit
	}
	return &Transcript{rules: r, w: NewRewriter(r.Envelope)}
}

// Restart forgets the answer and begins another attempt of the same request, for a client that has what was emitted.
// Roles aren't written twice. It must not follow a step with Content. If nothing was written, make a new Transcript.
func (t *Transcript) Restart() {
	t.w.restart()
	*t = Transcript{rules: t.rules, w: t.w, c: t.c, out: t.out}
}

// Push takes the answer's next event. The error is an *EndError and final. What follows [DONE] is ignored.
func (t *Transcript) Push(ev Event) (Step, error) {
	switch {
	case t.err != nil:
		return Step{}, t.err
	case t.done || ev.Comment || len(bytes.TrimSpace(ev.Data)) == 0:
		return Step{Done: t.done}, nil
	case ev.Done():
		if t.err = t.complete(); t.err != nil {
			return Step{}, t.err
		}
		t.done = true
		return Step{Done: true}, nil
	}
	step, err := t.chunk(ev)
	if err != nil {
		t.err = err
		return Step{}, err
	}
	return step, nil
}

// End says what the end of the answer's events means: nil after [DONE], else an *EndError for err, which is what Next
// of a Parser or an Answer returned.
func (t *Transcript) End(err error) error {
	switch {
	case t.done:
		return nil
	case t.err == nil:
		t.err = readEnd(err)
	}
	return t.err
}

func (t *Transcript) chunk(ev Event) (Step, *EndError) {
	if err := t.c.Parse(ev.Data); err != nil {
		if string(ev.Name) == "error" {
			return Step{}, errorEvent(ev.Data)
		}
		return Step{}, malformed(err)
	}
	if t.c.Error != nil || string(ev.Name) == "error" {
		return Step{}, errorEvent(cmpOr(t.c.Error, ev.Data))
	}
	if t.c.HasUsage {
		t.noteUsage()
		if len(t.c.Choices) == 0 {
			return Step{}, nil
		}
	}
	hold := false
	var s Step
	for i := range t.c.Choices {
		held, tokens, err := t.judge(i)
		if err != nil {
			return Step{}, err
		}
		hold = hold || held
		s.Tokens += tokens
		s.Progress = s.Progress || t.c.Choices[i].ContentBearing
	}
	if hold {
		if err := t.hold(s); err != nil {
			return Step{}, err
		}
		return Step{Progress: s.Progress}, nil
	}
	s.Content = s.Progress
	if t.rules.HoldToolCalls && t.c.hasCalls() {
		s.Content = t.c.plain()
		if !s.Content {
			t.heldTokens, s.Tokens = t.heldTokens+s.Tokens, 0
			if !t.opens() {
				return s, nil
			}
		}
	}
	t.out = t.w.append(t.out[:0], &t.c, t.rules.HoldToolCalls)
	s.Emit = t.out
	return s, nil
}

func cmpOr(a, b []byte) []byte {
	if a != nil {
		return a
	}
	return b
}

// opens reports a role that the client doesn't have yet.
func (t *Transcript) opens() bool {
	for i := range t.c.Choices {
		if c := &t.c.Choices[i]; c.role && !t.w.choice(c.Index).role {
			return true
		}
	}
	return false
}

// hold keeps the chunk. From then on everything of its choices is held, so that their order stays.
func (t *Transcript) hold(s Step) *EndError {
	if err := t.grow(len(t.c.data)); err != nil {
		return err
	}
	for i := range t.c.Choices {
		t.choice(t.c.Choices[i].Index).held = true
	}
	t.held = append(t.held, bytes.Clone(t.c.data))
	t.heldTokens += s.Tokens
	t.heldContent = t.heldContent || s.Progress
	return nil
}

func (t *Transcript) grow(n int) *EndError {
	if t.size += n; t.size <= t.rules.Limit {
		return nil
	}
	e := ended(CauseMalformedFrame, "calls and held chunks are over %d bytes", t.rules.Limit)
	e.Deterministic = true
	return e
}

func (t *Transcript) noteUsage() {
	t.usage, t.usageKnown = t.c.Usage, true
	if !t.rules.Envelope.IncludeUsage {
		return
	}
	if len(t.c.Choices) == 0 {
		t.usageChunk = append(t.usageChunk[:0], t.c.data...)
		return
	}
	i := slices.IndexFunc(t.c.marks, func(m mark) bool { return m.kind == markUsage })
	t.usageValue = append(t.usageValue[:0], t.c.data[t.c.marks[i].value:t.c.marks[i].end]...)
}

// Final is the rest of a good answer. It is called once, after the step with Done.
func (t *Transcript) Final() Final {
	f := Final{Content: t.heldContent, Tokens: t.heldTokens, Usage: t.usage, UsageKnown: t.usageKnown}
	add := func(chunk []byte, hold bool) {
		if t.c.Parse(chunk) == nil {
			f.Chunks = append(f.Chunks, t.w.append(nil, &t.c, hold))
		}
	}
	if t.rules.HoldToolCalls {
		for i := range t.choices {
			for _, chunk := range t.choices[i].whole(i) {
				f.Content = true
				add(chunk, false)
			}
		}
	}
	for _, chunk := range t.held {
		add(chunk, t.rules.HoldToolCalls)
	}
	switch {
	case len(t.usageChunk) > 0:
		add(t.usageChunk, false)
	case len(t.usageValue) > 0:
		object := "text_completion"
		if t.c.chat {
			object = chatObject
		}
		add(append(append([]byte(`{"object":"`+object+`","choices":[],"usage":`), t.usageValue...), '}'), false)
	}
	return f
}

const chatObject = "chat.completion.chunk"

func malformed(err error) *EndError {
	return &EndError{Cause: CauseMalformedFrame, Detail: bareText(err), Err: err}
}

func bareText(err error) string {
	switch {
	case errors.Is(err, ErrNotUTF8):
		return "an event is not UTF-8"
	case errors.Is(err, ErrBadShape):
		return "an event is JSON, but no chunk"
	}
	return "an event is not one JSON object"
}

// errorEvent reads the server's error object.
func errorEvent(object []byte) *EndError {
	e := &EndError{Cause: CauseEngineErrorEvent, Detail: "the server sent an error object", Object: bytes.Clone(object[:min(len(object), errorObjectLimit)])}
	if !gjson.ValidBytes(object) {
		return e
	}
	for _, path := range []string{"code", "status", "status_code", "error.code"} {
		v := gjson.GetBytes(object, path)
		n, err := strconv.Atoi(v.String())
		if err == nil && n >= 400 && n <= 599 {
			e.Status = n
			e.Detail = "the server sent an error object with status " + strconv.Itoa(n)
			e.Deterministic = deterministic(n)
			break
		}
	}
	return e
}
