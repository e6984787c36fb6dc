// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"errors"
	"fmt"
)

// ErrBadBody: a request body is not one JSON object.
var ErrBadBody = errors.New("openai: the request body is not one JSON object")

// Options say what a server is asked for beside what the client wrote.
type Options struct {
	// Stream is whether the answer is streamed. A stream always includes usage at its end.
	Stream bool
	// ContinuousUsage asks for usage in every chunk (vLLM, SGLang), which makes token counts exact.
	ContinuousUsage bool
}

// Prepare is the request as it is sent upstream: body with another model, stream and stream_options. Every other byte
// stays. A member that stands twice is kept once, at its first place.
func Prepare(body []byte, model string, o Options) ([]byte, error) {
	stream, options := []byte("false"), []byte(nil)
	if o.Stream {
		have, err := member(body, "stream_options")
		if err != nil {
			return nil, err
		}
		if len(have) == 0 || have[0] != '{' {
			have = []byte("{}")
		}
		set := []setting{{"include_usage", []byte("true")}}
		if o.ContinuousUsage {
			set = append(set, setting{"continuous_usage_stats", []byte("true")})
		}
		if options, err = with(have, set); err != nil {
			return nil, err
		}
		stream = []byte("true")
	}
	return with(body, []setting{{"model", quoted(model)}, {"stream", stream}, {"stream_options", options}})
}

// setting is a member to have; nil: to be without.
type setting struct {
	name  string
	value []byte
}

// member is the value of a top-level member, nil if there is none. The last of several counts, as for most readers.
func member(object []byte, name string) ([]byte, error) {
	s := scanner{b: object}
	s.space()
	m, ok := s.open('{')
	var value []byte
	for ok {
		var more bool
		if more, ok = s.next(&m, '}'); !more || !ok {
			break
		}
		from := s.i
		if ok = s.skip(1); string(m.key) == name {
			value = object[from:s.i]
		}
	}
	if !ok || !s.atEnd() {
		return nil, fmt.Errorf("%w: it ends or breaks at byte %d", ErrBadBody, s.i)
	}
	return value, nil
}

// with copies an object and applies settings.
func with(object []byte, set []setting) ([]byte, error) {
	s := scanner{b: object}
	s.space()
	m, ok := s.open('{')
	out := make([]byte, 0, len(object)+128)
	out = append(out, object[:s.i]...)
	done := make([]bool, len(set))
	kept := 0
	for pos := s.i; ok; {
		var more bool
		if more, ok = s.next(&m, '}'); !ok {
			break
		}
		if !more {
			if s.atEnd() {
				return finishObject(out, object, pos, kept, set, done), nil
			}
			break
		}
		from := s.i
		if ok = s.skip(1); !ok {
			break
		}
		which := -1
		for i := range set {
			if string(m.key) == set[i].name {
				which = i
			}
		}
		if which >= 0 && (done[which] || set[which].value == nil) {
			pos = s.i // The member goes, with what stands before it.
			continue
		}
		lead := object[pos:from]
		if kept == 0 {
			lead = object[m.start:from]
			if m.comma < 0 {
				lead = object[pos:from]
			}
		}
		out = append(out, lead...)
		kept++
		pos = s.i
		if which >= 0 {
			done[which] = true
			out = append(out, set[which].value...)
			continue
		}
		out = append(out, object[from:s.i]...)
	}
	return nil, fmt.Errorf("%w: it ends or breaks at byte %d", ErrBadBody, s.i)
}

func finishObject(out, object []byte, pos, kept int, set []setting, done []bool) []byte {
	for i := range set {
		if done[i] || set[i].value == nil {
			continue
		}
		if kept > 0 {
			out = append(out, ',')
		}
		kept++
		out = append(append(append(append(out, '"'), set[i].name...), `":`...), set[i].value...)
	}
	return append(out, object[pos:]...)
}
