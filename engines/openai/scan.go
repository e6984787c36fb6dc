// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"bytes"
	"encoding/json"
)

// maxDepth bounds nesting, and with it the stack that reading a value takes.
const maxDepth = 256

// scanner walks over JSON and accepts exactly what encoding/json calls valid, up to maxDepth.
type scanner struct {
	b []byte
	i int
}

// members iterates over one object or array, whose opening byte is behind the scanner.
type members struct {
	n      int // ordinal of the current member
	comma  int // offset of the comma before it; -1 for the first
	start  int // offset of the key, or of the element
	key    []byte
	closed int // offset of the closing byte, once next is false
}

func (s *scanner) space() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\n' || s.b[s.i] == '\t' || s.b[s.i] == '\r') {
		s.i++
	}
}

// open consumes the opening byte c and prepares the iteration.
func (s *scanner) open(c byte) (members, bool) {
	if s.i >= len(s.b) || s.b[s.i] != c {
		return members{}, false
	}
	s.i++
	return members{n: -1, comma: -1}, true
}

// next moves to the next member: after it the scanner is at its value. more is false at the closing byte.
func (s *scanner) next(m *members, closing byte) (more, ok bool) {
	s.space()
	if s.i >= len(s.b) {
		return false, false
	}
	if s.b[s.i] == closing {
		m.closed = s.i
		m.n++
		s.i++
		return false, true
	}
	if m.n >= 0 {
		if s.b[s.i] != ',' {
			return false, false
		}
		m.comma = s.i
		s.i++
		s.space()
	}
	m.n++
	m.start = s.i
	if closing == ']' {
		return true, true
	}
	if !s.text() {
		return false, false
	}
	m.key = unquoted(s.b[m.start:s.i])
	s.space()
	if s.i >= len(s.b) || s.b[s.i] != ':' {
		return false, false
	}
	s.i++
	s.space()
	return true, true
}

// skip passes one value.
func (s *scanner) skip(depth int) bool {
	if s.i >= len(s.b) || depth > maxDepth {
		return false
	}
	switch c := s.b[s.i]; c {
	case '{', '[':
		m, _ := s.open(c)
		closing := c + 2 // '{' and '}', '[' and ']' are two apart.
		for {
			more, ok := s.next(&m, closing)
			if !more || !ok {
				return ok
			}
			if !s.skip(depth + 1) {
				return false
			}
		}
	case '"':
		return s.text()
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	}
	return s.number()
}

func (s *scanner) literal(w string) bool {
	if len(s.b)-s.i < len(w) || string(s.b[s.i:s.i+len(w)]) != w {
		return false
	}
	s.i += len(w)
	return true
}

// text passes a string.
func (s *scanner) text() bool {
	if s.i >= len(s.b) || s.b[s.i] != '"' {
		return false
	}
	b := s.b
	for i := s.i + 1; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			s.i = i + 1
			return true
		case c < ' ':
			return false
		case c == '\\':
			i++
			if i >= len(b) {
				return false
			}
			switch b[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				for range 4 {
					i++
					if i >= len(b) || !isHex(b[i]) {
						return false
					}
				}
			default:
				return false
			}
		}
	}
	return false
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func (s *scanner) number() bool {
	if s.i < len(s.b) && s.b[s.i] == '-' {
		s.i++
	}
	switch {
	case s.i < len(s.b) && s.b[s.i] == '0':
		s.i++
	case !s.digits():
		return false
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if !s.digits() {
			return false
		}
	}
	if s.i < len(s.b) && (s.b[s.i] == 'e' || s.b[s.i] == 'E') {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		return s.digits()
	}
	return true
}

func (s *scanner) digits() bool {
	from := s.i
	for s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > from
}

// atEnd passes white space and reports that nothing follows.
func (s *scanner) atEnd() bool {
	s.space()
	return s.i == len(s.b)
}

// unquoted is the content of a string. It only copies when there is an escape.
func unquoted(quoted []byte) []byte {
	raw := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	var text string
	if json.Unmarshal(quoted, &text) != nil {
		return raw
	}
	return []byte(text)
}

func isNull(value []byte) bool { return string(value) == "null" }

// isText reports a string that isn't empty.
func isText(value []byte) bool { return len(value) > 2 && value[0] == '"' }

// isFilled reports a string, array or object that isn't empty.
func isFilled(value []byte) bool {
	switch {
	case len(value) < 2:
		return false
	case value[0] == '"':
		return len(value) > 2
	case value[0] == '[' || value[0] == '{':
		return len(bytes.TrimSpace(value[1:len(value)-1])) > 0
	}
	return false
}

// count reads an integer from 0 to 1<<31-1.
func count(value []byte) (int, bool) {
	if len(value) == 0 || len(value) > 10 {
		return 0, false
	}
	n := 0
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, n <= 1<<31-1
}
