// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

// kind says what a mark stands for.
type kind uint8

const (
	markID kind = iota
	markCreated
	markModel
	markFingerprint
	markUsage
	markError
	markTopEnd
	markRole
	markToolCalls
	markFunctionCall
	markDeltaEnd
	markCallID
	markCallName
	markFunctionEnd
	markCallEnd
)

// mark is a place that a rewrite may change: a member, or the end of an object. Marks are in the order of their
// offsets.
type mark struct {
	kind kind
	n    int // the member's ordinal in its object; at an end, the number of members
	// A member is data[start:end], its value data[value:end]; before is the offset of the comma before it or
	// -1, after the offset behind the comma after it or 0. At an end all are the closing byte's.
	before, start, value, end, after int
	choice, call                     int // positions in Choices and calls
}

// reader fills a chunk in one pass.
type reader struct {
	scanner
	c     *Chunk
	shape bool // the JSON is fine so far, but not a chunk's
}

func (r *reader) bad() bool {
	r.shape = true
	return false
}

// object iterates over an object's members. Its mark, if the last member has one, learns of the comma behind it.
type object struct {
	members
	marked int // index of the current member's mark + 1
}

func (r *reader) more(o *object) (more, ok bool) {
	more, ok = r.next(&o.members, '}')
	if o.marked > 0 && more {
		r.c.marks[o.marked-1].after = o.comma + 1
	}
	o.marked = 0
	return more, ok
}

// take passes the current member's value and returns it.
func (r *reader) take(depth int) ([]byte, bool) {
	from := r.i
	if !r.skip(depth) {
		return nil, false
	}
	return r.b[from:r.i], true
}

// mark notes the current member, whose value begins at the scanner. Its end is set by close.
func (r *reader) mark(o *object, k kind, choice, call int) int {
	r.c.marks = append(r.c.marks, mark{
		kind: k, n: o.n, before: o.comma, start: o.start, value: r.i, choice: choice, call: call,
	})
	o.marked = len(r.c.marks)
	return o.marked - 1
}

func (r *reader) finish(o *object, k kind, choice, call int) {
	r.c.marks = append(r.c.marks, mark{
		kind: k, n: o.n, before: -1, start: o.closed, value: o.closed, end: o.closed, choice: choice, call: call,
	})
}

func topKind(key []byte) (kind, bool) {
	switch string(key) {
	case "id":
		return markID, true
	case "created":
		return markCreated, true
	case "model":
		return markModel, true
	case "system_fingerprint":
		return markFingerprint, true
	case "usage":
		return markUsage, true
	case "error":
		return markError, true
	}
	return 0, false
}

func (r *reader) top() bool {
	m, ok := r.open('{')
	o := object{members: m}
	for ok {
		var more bool
		if more, ok = r.more(&o); !more || !ok {
			break
		}
		k, known := topKind(o.key)
		switch {
		case known:
			at := r.mark(&o, k, 0, 0)
			var v []byte
			v, ok = r.take(1)
			r.c.marks[at].end = r.i
			switch {
			case !ok:
			case k == markError && !isNull(v):
				r.c.Error = v
			case k == markUsage:
				r.usage(v)
			}
		case string(o.key) == "choices":
			ok = r.choices()
		case string(o.key) == "object":
			var v []byte
			if v, ok = r.take(1); string(v) == `"error"` {
				r.c.Error = r.b
			}
		default:
			ok = r.skip(1)
		}
	}
	if ok {
		r.finish(&o, markTopEnd, 0, 0)
	}
	return ok
}

// usage reads the counts of a value that is known to be valid.
func (r *reader) usage(value []byte) {
	s := scanner{b: value}
	m, ok := s.open('{')
	for ok {
		var more bool
		if more, ok = s.next(&m, '}'); !more || !ok {
			return
		}
		from := s.i
		ok = s.skip(2)
		n, is := count(value[from:s.i])
		if !is {
			continue
		}
		u := &r.c.Usage
		switch string(m.key) {
		case "prompt_tokens":
			u.PromptTokens, r.c.HasUsage = n, true
		case "completion_tokens":
			u.CompletionTokens, r.c.HasUsage = n, true
		case "total_tokens":
			u.TotalTokens, r.c.HasUsage = n, true
		}
	}
}

func (r *reader) choices() bool {
	if r.i < len(r.b) && r.b[r.i] == 'n' {
		return r.literal("null")
	}
	m, ok := r.open('[')
	if !ok {
		return r.bad()
	}
	for ok {
		var more bool
		if more, ok = r.next(&m, ']'); !more || !ok {
			return ok
		}
		if len(r.c.Choices) == MaxChoices {
			return r.bad()
		}
		r.c.Choices = append(r.c.Choices, Choice{Index: m.n, call0: len(r.c.calls), call1: len(r.c.calls)})
		ok = r.choice(len(r.c.Choices) - 1)
	}
	return ok
}

func (r *reader) choice(at int) bool {
	m, ok := r.open('{')
	if !ok {
		return r.bad()
	}
	o := object{members: m}
	for ok {
		var more bool
		if more, ok = r.more(&o); !more || !ok {
			break
		}
		if string(o.key) == "delta" || string(o.key) == "message" {
			ok = r.delta(at)
			continue
		}
		var v []byte
		if v, ok = r.take(3); !ok {
			break
		}
		c := &r.c.Choices[at]
		switch string(o.key) {
		case "index":
			n, is := count(v)
			if !is || n >= MaxChoices {
				return r.bad()
			}
			c.Index = n
		case "text":
			c.plain = c.plain || isFilled(v)
		case "finish_reason":
			switch {
			case isText(v):
				c.Finish = v
			case !isNull(v) && string(v) != `""`:
				return r.bad()
			}
		}
	}
	c := &r.c.Choices[at]
	c.ContentBearing = c.ContentBearing || c.plain
	return ok
}

// delta reads a delta or, in a whole answer, a message.
func (r *reader) delta(at int) bool {
	if r.i < len(r.b) && r.b[r.i] == 'n' {
		return r.literal("null")
	}
	m, ok := r.open('{')
	if !ok {
		return r.bad()
	}
	o := object{members: m}
	for ok {
		var more bool
		if more, ok = r.more(&o); !more || !ok {
			break
		}
		switch string(o.key) {
		case "tool_calls":
			mk := r.mark(&o, markToolCalls, at, 0)
			ok = r.toolCalls(at)
			r.c.marks[mk].end = r.i
			continue
		case "function_call":
			mk := r.mark(&o, markFunctionCall, at, 0)
			ok = r.functionCall(at)
			r.c.marks[mk].end = r.i
			continue
		case "role":
			mk := r.mark(&o, markRole, at, 0)
			var v []byte
			v, ok = r.take(4)
			r.c.marks[mk].end = r.i
			r.c.Choices[at].role = r.c.Choices[at].role || isText(v)
			continue
		}
		var v []byte
		if v, ok = r.take(4); ok && deltaContent(o.key, v) {
			r.c.Choices[at].plain = true
		}
	}
	if ok {
		r.c.chat = true
		r.finish(&o, markDeltaEnd, at, 0)
	}
	return ok
}

// deltaContent reports content beside calls: a string in any member, or what the named ones hold.
func deltaContent(key, value []byte) bool {
	switch string(key) {
	case "content", "reasoning_content", "reasoning", "refusal", "audio", "reasoning_details":
		return isFilled(value)
	}
	return isText(value)
}
