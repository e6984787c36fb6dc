// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"bytes"
	"slices"
)

// splice copies a chunk and changes marked places. Offsets before pos are done.
type splice struct {
	w    *Rewriter
	c    *Chunk
	dst  []byte
	pos  int
	hold bool // calls are left out

	// Members taken out of the object in progress, by nesting.
	top, delta, call, function int
	// What the top level has.
	id, created, model, fingerprint bool

	at     *writtenCall // the call in progress
	number int          // and its ordinal
	first  bool         // its id is still to be written
}

// append writes the chunk that c holds. hold leaves tool and function calls out.
func (w *Rewriter) append(dst []byte, c *Chunk, hold bool) []byte {
	from := len(dst)
	s := splice{w: w, c: c, dst: slices.Grow(dst, len(c.data)+len(w.id)+len(w.model)+len(w.fingerprint)+128), hold: hold}
	for i := range c.marks {
		if m := &c.marks[i]; m.start >= s.pos {
			s.mark(m)
		}
	}
	s.dst = append(s.dst, c.data[s.pos:]...)
	oneLine(s.dst[from:])
	return s.dst
}

// oneLine turns line ends, which stand between JSON's tokens only, into spaces.
func oneLine(b []byte) {
	for _, c := range []byte("\n\r") {
		for {
			i := bytes.IndexByte(b, c)
			if i < 0 {
				break
			}
			b[i] = ' '
		}
	}
}

func (s *splice) mark(m *mark) {
	switch m.kind {
	case markID:
		s.id = true
		s.replace(m, s.w.id)
	case markCreated:
		s.created = true
		s.replace(m, s.w.created)
	case markModel:
		s.model = true
		s.replace(m, s.w.model)
	case markFingerprint:
		s.fingerprint = true
		if s.w.fingerprint == nil {
			s.remove(m, &s.top)
			return
		}
		s.replace(m, s.w.fingerprint)
	case markError:
		if isNull(s.c.data[m.value:m.end]) {
			s.remove(m, &s.top)
		}
	case markUsage:
		s.usage(m)
	case markTopEnd:
		s.topEnd(m)
	case markRole:
		s.role(m)
	case markToolCalls, markFunctionCall:
		if s.hold {
			s.remove(m, &s.delta)
		}
	case markDeltaEnd:
		if to := s.w.choice(s.c.Choices[m.choice].Index); !to.role {
			to.role = true
			s.insert(m, s.delta, `"role":`, []byte(`"assistant"`))
		}
		s.delta = 0
	case markCallID, markCallName, markFunctionEnd, markCallEnd:
		s.callMark(m)
	}
}

func (s *splice) usage(m *mark) {
	e := &s.w.e
	switch {
	case s.w.whole:
	case !e.IncludeUsage && !e.ContinuousUsage:
		s.remove(m, &s.top)
	case len(s.c.Choices) > 0 && !e.ContinuousUsage:
		s.replace(m, []byte("null"))
	}
}

func (s *splice) topEnd(m *mark) {
	for _, f := range [...]struct {
		have  bool
		name  string
		value []byte
	}{
		{s.id, `"id":`, s.w.id},
		{s.created, `"created":`, s.w.created},
		{s.model, `"model":`, s.w.model},
		{s.fingerprint, `"system_fingerprint":`, s.w.fingerprint},
	} {
		if !f.have && f.value != nil {
			s.insert(m, s.top, f.name, f.value)
			s.top-- // One more member stands before the next.
		}
	}
}

// role keeps the first role of a choice and drops later ones.
func (s *splice) role(m *mark) {
	to := s.w.choice(s.c.Choices[m.choice].Index)
	if to.role {
		s.remove(m, &s.delta)
		return
	}
	to.role = true
	if !isText(s.c.data[m.value:m.end]) {
		s.replace(m, []byte(`"assistant"`))
	}
}

// callMark handles the places inside a tool call. A function call has no id; its marks have call -1.
func (s *splice) callMark(m *mark) {
	to := s.w.choice(s.c.Choices[m.choice].Index)
	if m.call < 0 {
		if m.kind == markCallName {
			s.name(m, &to.named)
		} else {
			s.function = 0
		}
		return
	}
	if s.at == nil {
		s.enter(to, &s.c.calls[m.call])
	}
	switch m.kind {
	case markCallID:
		if s.first {
			s.first = false
			s.replace(m, s.callID(m.choice))
			return
		}
		s.remove(m, &s.call)
	case markCallName:
		s.name(m, &s.at.name)
	case markFunctionEnd:
		s.function = 0
	case markCallEnd:
		if s.first {
			s.insert(m, s.call, `"id":`, s.callID(m.choice))
		}
		s.at, s.call = nil, 0
	}
}

// enter begins a fragment. A fragment with nothing in it doesn't open a call.
func (s *splice) enter(to *written, k *Call) {
	n := ordinal(k, len(to.calls), to.last)
	for len(to.calls) <= n {
		to.calls = append(to.calls, writtenCall{})
	}
	to.last = n
	s.at, s.number = &to.calls[n], n
	s.first = !s.at.opened && k.filled()
	s.at.opened = s.at.opened || s.first
}

func (s *splice) callID(choice int) []byte {
	return quoted(CallID(s.w.e.Tenant, s.w.e.Session, s.c.Choices[choice].Index, s.number))
}

// name drops a name that the client has already: clients join the pieces.
func (s *splice) name(m *mark, have *[]byte) {
	value := s.c.data[m.value:m.end]
	if !isText(value) {
		return
	}
	piece := value[1 : len(value)-1]
	if bytes.Equal(piece, *have) {
		s.remove(m, &s.function)
		return
	}
	*have = append(*have, piece...)
}

func (s *splice) upTo(at int) {
	s.dst = append(s.dst, s.c.data[s.pos:at]...)
	s.pos = at
}

func (s *splice) replace(m *mark, value []byte) {
	s.upTo(m.value)
	s.dst = append(s.dst, value...)
	s.pos = m.end
}

// remove takes a member out together with one comma, if it has one.
func (s *splice) remove(m *mark, removed *int) {
	from, to := m.start, m.end
	switch {
	case m.n > *removed:
		from = m.before
	case m.after > 0:
		to = m.after
	}
	*removed++
	s.upTo(from)
	s.pos = to
}

// insert adds a member at an object's end.
func (s *splice) insert(end *mark, removed int, name string, value []byte) {
	s.upTo(end.start)
	if end.n > removed {
		s.dst = append(s.dst, ',')
	}
	s.dst = append(append(s.dst, name...), value...)
}
