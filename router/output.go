// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seguekv/segue/router/openai"
)

// attemptsTrailer comes after a stream, for clients and proxies that read trailers.
const attemptsTrailer = http.TrailerPrefix + headerAttempts

// extendEvery is how old a write's deadline may be.
const extendEvery = 250 * time.Millisecond

// contentTypeJSON is of answers in one piece.
const contentTypeJSON = "application/json"

// output is where a session's answer goes. An error of any method means that the client is gone.
type output interface {
	// content hands over text, which isn't empty, with the ids whose whole text is out with it.
	content(text []byte, t openai.Tokens) error
	// finish ends the answer; t has the ids that no content carried.
	finish(reason string, u openai.Usage, t openai.Tokens) error
	// relay hands over one event of a server's stream, or its whole answer, ready for the client.
	relay(payload []byte) error
	// relayed ends an answer whose every part was handed over.
	relayed() error
	// fail ends the answer with an error: an HTTP error while nothing is written, else an event. An answer in
	// one piece that is partly written has no place for it.
	fail(e *openai.Error, u openai.Usage) error
	// keepAlive shows the client, and proxies, that the answer is still coming.
	keepAlive() error
	// reset forgets text that was handed over but not written, for a retry.
	reset()
	// streams reports whether content is written at once.
	streams() bool
}

// client writes to one HTTP response, each write within a deadline.
type client struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	stall time.Duration
	// extended is when the deadline was last set, by how much extendedBy.
	extended   time.Time
	extendedBy time.Duration
	// tape, when there is one, gets a copy of what is written of the answer.
	tape *tape
	// attempts, when set, counts the attempts so far.
	attempts func() int
	// ending, when set, is called once, with the whole answer on tape and before its last bytes are written.
	ending func()
}

// newClient also takes back a deadline left on a reused connection.
func newClient(w http.ResponseWriter, stall time.Duration) *client {
	c := &client{w: w, rc: http.NewResponseController(w), stall: stall}
	c.extend()
	return c
}

// extend gives the next write c.stall, or up to extendEvery less: to set a deadline costs as much as a small write.
func (c *client) extend() {
	now := time.Now()
	if c.stall == c.extendedBy && now.Sub(c.extended) < extendEvery {
		return
	}
	c.extended, c.extendedBy = now, c.stall
	// Not every writer has deadlines; one without them blocks as long as its client.
	_ = c.rc.SetWriteDeadline(now.Add(c.stall))
}

// count sets a header, or a trailer, to the number of attempts.
func (c *client) count(name string) {
	if c.attempts != nil {
		c.w.Header().Set(name, strconv.Itoa(c.attempts()))
	}
}

// last hands the end of an answer to the socket.
func (c *client) last(b []byte) error {
	c.tape.add(b)
	if c.ending != nil {
		c.ending()
		c.ending = nil
	}
	return c.send(b)
}

// write hands b to the socket.
func (c *client) write(b []byte) error {
	c.tape.add(b)
	return c.send(b)
}

func (c *client) send(b []byte) error {
	c.extend()
	if _, err := c.w.Write(b); err != nil {
		return err
	}
	return c.rc.Flush()
}

// writeJSON is a whole response.
func (c *client) writeJSON(status int, body []byte) error {
	h := c.w.Header()
	h.Set("Content-Type", contentTypeJSON)
	c.count(headerAttempts)
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	c.w.WriteHeader(status)
	return c.last(append(body, '\n'))
}

// writeError is a whole response.
func (c *client) writeError(e *openai.Error) error {
	h := c.w.Header()
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((e.RetryAfter+time.Second-1)/time.Second)))
	}
	if e.Final || e.Status >= 500 || e.Status == http.StatusTooManyRequests {
		h.Set("X-Should-Retry", strconv.FormatBool(e.Retryable && !e.Final))
	}
	return c.writeJSON(e.Status, e.Body())
}

// tape is a copy of an answer, for a repeat of its request. A nil tape copies nothing.
type tape struct {
	limit int
	bytes []byte
	// over: the answer was longer than the limit.
	over bool
}

func (t *tape) add(b []byte) {
	if t == nil || t.over {
		return
	}
	if len(t.bytes)+len(b) > t.limit {
		t.bytes, t.over = nil, true
		return
	}
	t.bytes = append(t.bytes, b...)
}

// collected is an answer in one piece. Nothing is written before its end, so any failure before that can be
// repaired.
type collected struct {
	client   *client
	envelope *openai.Envelope
	granted  func() string
	ids      bool
	text     strings.Builder
	tokens   []int32
	// begun: the answer is being written.
	begun bool
}

func (c *collected) content(text []byte, t openai.Tokens) error {
	c.text.Write(text)
	c.tokens = append(c.tokens, t.IDs...)
	return nil
}

func (c *collected) finish(reason string, u openai.Usage, t openai.Tokens) error {
	c.begun = true
	c.client.w.Header().Set(headerProtection, c.granted())
	c.tokens = append(c.tokens, t.IDs...)
	ids := c.tokens
	if !c.ids {
		ids = nil
	}
	return c.client.writeJSON(http.StatusOK, c.envelope.Whole(c.text.String(), reason, u, ids))
}

func (c *collected) fail(e *openai.Error, _ openai.Usage) error {
	if c.begun {
		return errCut
	}
	return c.client.writeError(e)
}

func (c *collected) relay(payload []byte) error {
	c.begun = true
	c.client.w.Header().Set(headerProtection, c.granted())
	return c.client.writeJSON(http.StatusOK, payload)
}

func (c *collected) relayed() error { return nil }

func (c *collected) keepAlive() error { return nil }

func (c *collected) reset() {
	c.text.Reset()
	c.tokens = nil
}

func (c *collected) streams() bool { return false }

// streamed is an answer as server-sent events, one write and flush each.
type streamed struct {
	client   *client
	envelope *openai.Envelope
	granted  func() string
	ids      bool
	// opened: the headers are out. role: the role chunk is.
	opened, role bool
	// doneAfterError: the terminator follows an error too.
	doneAfterError bool
	template       *openai.Template
	buf            []byte
}

func (s *streamed) open() {
	if s.opened {
		return
	}
	s.opened = true
	h := s.client.w.Header()
	h.Set("Content-Type", openai.ContentType)
	streamHeaders(h)
	h.Set(headerProtection, s.granted())
	s.client.w.WriteHeader(http.StatusOK)
}

// streamHeaders ask proxies to pass every piece on at once, and as it is.
func streamHeaders(h http.Header) {
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
}

func (s *streamed) event(payload []byte) error {
	s.open()
	s.buf = openai.AppendEvent(s.buf[:0], payload)
	return s.client.write(s.buf)
}

// begin writes the one role chunk.
func (s *streamed) begin() error {
	if s.role {
		return nil
	}
	s.role = true
	if role := s.envelope.Role(); role != nil {
		return s.event(role)
	}
	return nil
}

func (s *streamed) tokens(t openai.Tokens) openai.Tokens {
	if !s.ids {
		return openai.Tokens{}
	}
	return t
}

func (s *streamed) content(text []byte, t openai.Tokens) error {
	if err := s.begin(); err != nil {
		return err
	}
	if s.ids {
		return s.event(s.envelope.Content(string(text), t))
	}
	if s.template == nil {
		s.template = s.envelope.Template() // the envelope is fixed from here on
	}
	s.open()
	s.buf = s.template.Append(append(s.buf[:0], openai.EventBegin...), text)
	s.buf = append(s.buf, openai.EventEnd...)
	return s.client.write(s.buf)
}

func (s *streamed) finish(reason string, u openai.Usage, t openai.Tokens) error {
	if err := s.begin(); err != nil {
		return err
	}
	s.open()
	s.buf = openai.AppendEvent(s.buf[:0], s.envelope.Finish(reason, s.tokens(t)))
	if s.envelope.IncludeUsage {
		s.buf = openai.AppendEvent(s.buf, s.envelope.Usage(u))
	}
	s.buf = append(s.buf, openai.Done...)
	s.client.count(attemptsTrailer)
	return s.client.last(s.buf)
}

func (s *streamed) relay(payload []byte) error { return s.event(payload) }

func (s *streamed) relayed() error {
	s.open()
	s.client.count(attemptsTrailer)
	return s.client.last([]byte(openai.Done))
}

func (s *streamed) fail(e *openai.Error, u openai.Usage) error {
	if !s.opened {
		return s.client.writeError(e)
	}
	if s.envelope.IncludeUsage {
		if err := s.event(s.envelope.Usage(u)); err != nil {
			return err
		}
	}
	s.client.count(attemptsTrailer)
	s.buf = openai.AppendEvent(s.buf[:0], e.Body())
	if s.doneAfterError {
		s.buf = append(s.buf, openai.Done...)
	}
	return s.client.write(s.buf)
}

func (s *streamed) keepAlive() error {
	s.open()
	return s.client.send([]byte(openai.KeepAlive))
}

func (s *streamed) reset()        {}
func (s *streamed) streams() bool { return true }
