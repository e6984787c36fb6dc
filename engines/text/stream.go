// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package text

import "github.com/seguekv/segue/engines"

// Config says how ids become text and when a run is finished.
type Config struct {
	// Piece is the bytes of an id, possibly a fragment of a character. It must be a pure function; the
	// result is only read, and only during the call of Push.
	Piece func(id int32) []byte
	// EOG reports whether an id ends a generation; nil: none does. Such an id has no text.
	EOG func(id int32) bool
	// Stops are stop strings. Empty ones and invalid UTF-8 never match.
	Stops []string
	// MaxTokens is the number of output tokens after which the run is finished; 0 = no limit.
	MaxTokens int
	// MinTokens: an end-of-generation id among the first MinTokens tokens doesn't finish the run. Stop
	// strings do.
	MinTokens int
	// IgnoreEOS: end-of-generation ids don't finish the run.
	IgnoreEOS bool
}

// Out is what one id releases.
type Out struct {
	// Text is valid UTF-8, possibly empty. It is valid until the next Push.
	Text []byte
	// TextEnd is the cumulative length of released text, RawEnd of produced text including what is held
	// back: bytes of an incomplete character and a suffix that may become a stop string.
	TextEnd, RawEnd int
	Finish          engines.Finish
}

// Stream is the text of one run. It belongs to one goroutine at a time.
type Stream struct {
	c     Config
	dec   decoder
	stops stops
	// text is decoded text that isn't released yet, after what the last Out borrowed.
	text     []byte
	released int // of text, by the last Push
	tokens   int
	end      int // cumulative length of released text
	finish   engines.Finish
}

// New returns a stream before its first id.
func New(c Config) *Stream {
	return &Stream{c: c, stops: newStops(c.Stops)}
}

// Push takes the next output id. The result is a pure function of the ids pushed so far. Every id counts as
// an output token. A stop string and an end-of-generation id give FinishStop, also when the token limit is
// reached at the same token; the stop string itself and the text after it are dropped. After the finish Push
// changes nothing and repeats the finish.
func (s *Stream) Push(id int32) Out {
	s.text = append(s.text[:0], s.text[s.released:]...)
	s.released = 0
	if s.finish != engines.FinishNone {
		return s.out()
	}
	s.tokens++
	from := len(s.text)
	finish := engines.FinishNone
	if s.c.EOG != nil && s.c.EOG(id) {
		if !s.c.IgnoreEOS && s.tokens > s.c.MinTokens {
			finish = engines.FinishStop
		}
	} else {
		s.text = s.dec.append(s.text, s.c.Piece(id))
	}
	if finish == engines.FinishNone && s.c.MaxTokens > 0 && s.tokens >= s.c.MaxTokens {
		finish = engines.FinishLength
	}
	if finish != engines.FinishNone {
		s.text = s.dec.flush(s.text)
	}
	if s.cutAtStop(from) {
		finish = engines.FinishStop
	}
	s.finish = finish
	s.released = len(s.text)
	if finish == engines.FinishNone {
		s.released -= s.stops.held()
	}
	s.end += s.released
	return s.out()
}

// cutAtStop feeds text[from:] to the stop strings and cuts before the first match.
func (s *Stream) cutAtStop(from int) bool {
	if len(s.stops.patterns) == 0 {
		return false
	}
	for i, b := range s.text[from:] {
		if n := s.stops.next(b); n > 0 {
			s.text = s.text[:from+i+1-n]
			s.dec.held = 0
			return true
		}
	}
	return false
}

func (s *Stream) out() Out {
	return Out{
		Text: s.text[:s.released:s.released], TextEnd: s.end,
		RawEnd: s.end + len(s.text) - s.released + s.dec.held, Finish: s.finish,
	}
}
