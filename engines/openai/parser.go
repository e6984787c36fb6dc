// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// DefaultEventLimit bounds a line and an event, in bytes.
const DefaultEventLimit = 4 << 20

const (
	firstBuffer = 4 << 10
	emptyReads  = 100
	notInBuffer = -1
	notSearched = -2
)

// Event is one event or one comment of a stream. Its bytes are borrowed until the next call of Next.
type Event struct {
	// Data is the event's data lines joined by LF, or a comment's text without the colon.
	Data []byte
	// Name is the event's type; nil when the stream names none.
	Name []byte
	// Comment marks a comment line. It says that the server lives, nothing more.
	Comment bool
}

// Done reports the event that ends a successful stream: its data is [DONE] and nothing else.
func (e Event) Done() bool { return !e.Comment && string(e.Data) == "[DONE]" }

// Parser reads server-sent events. Lines end in LF, CRLF or CR; an event ends at an empty line and is reported
// as soon as that line's first end byte is there. It belongs to one goroutine at a time.
type Parser struct {
	r     io.Reader
	limit int

	// buf[start:end] is unread. lf and cr are the offsets of the next LF and CR in it, or one of the marks
	// above; searched is how far both have been looked for.
	buf        []byte
	start, end int
	searched   int
	lf, cr     int

	data   []byte // data of the event in progress, each line followed by LF
	name   []byte
	gave   bool // data was given out and is cleared by the next call
	skipLF bool // the last line ended in CR: an LF that follows belongs to it
	opened bool // the place of a byte order mark is behind
	err    error
	ended  error // the reader's error; lines before it come first
}

// NewParser reads from r. limit bounds a line and an event's data in bytes; 0 means DefaultEventLimit.
func NewParser(r io.Reader, limit int) *Parser {
	if limit <= 0 {
		limit = DefaultEventLimit
	}
	return &Parser{r: r, limit: limit, lf: notSearched, cr: notSearched}
}

// Next returns the next event or comment. The error is io.EOF after the last whole event, ErrUnfinished when
// the input ended inside one, ErrTooLong, or the reader's own; it is the same in all later calls.
func (p *Parser) Next() (Event, error) {
	if p.gave {
		p.data, p.name, p.gave = p.data[:0], p.name[:0], false
	}
	for p.err == nil {
		line, err := p.line()
		if err != nil {
			p.err = err
			break
		}
		if len(line) == 0 {
			if len(p.data) == 0 {
				p.name = p.name[:0]
				continue
			}
			p.gave = true
			return Event{Data: p.data[:len(p.data)-1], Name: nonEmpty(p.name)}, nil
		}
		if line[0] == ':' {
			return Event{Data: line[1:], Comment: true}, nil
		}
		if err := p.field(line); err != nil {
			p.err = err
		}
	}
	return Event{}, p.err
}

func nonEmpty(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}

func (p *Parser) field(line []byte) error {
	name, value, _ := bytes.Cut(line, []byte{':'})
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch string(name) {
	case "data":
		if len(p.data)+len(value) > p.limit {
			return p.tooLong()
		}
		p.data = append(append(p.data, value...), '\n')
	case "event":
		p.name = append(p.name[:0], value...)
	}
	return nil
}

// line returns the next line without its end.
func (p *Parser) line() ([]byte, error) {
	for {
		if p.begin() {
			if at := p.lineEnd(); at >= 0 {
				line := p.buf[p.start:at]
				p.skipLF = p.buf[at] == '\r'
				p.start = at + 1
				if len(line) > p.limit {
					return nil, p.tooLong()
				}
				return line, nil
			}
		}
		if p.end-p.start > p.limit {
			return nil, p.tooLong()
		}
		if p.ended != nil {
			return nil, p.last()
		}
		p.fill()
	}
}

// begin consumes what may stand before a line; false: more bytes are needed to know.
func (p *Parser) begin() bool {
	if p.skipLF && p.start < p.end {
		if p.buf[p.start] == '\n' {
			p.start++
		}
		p.skipLF = false
	}
	if p.opened {
		return true
	}
	have := p.buf[p.start:p.end]
	mark := []byte("\xef\xbb\xbf")
	if len(have) < len(mark) && bytes.HasPrefix(mark, have) && p.ended == nil {
		return false
	}
	p.opened = true
	if bytes.HasPrefix(have, mark) {
		p.start += len(mark)
	}
	return true
}

// lineEnd is the offset of the byte that ends the line at start, negative when it isn't there yet. Each byte is searched once for each of the
// two ends, however many lines the buffer holds.
func (p *Parser) lineEnd() int {
	from := max(p.searched, p.start)
	p.lf = search(p.buf[:p.end], p.lf, p.start, from, '\n')
	p.cr = search(p.buf[:p.end], p.cr, p.start, from, '\r')
	p.searched = p.end
	if p.lf < 0 || p.cr >= 0 && p.cr < p.lf {
		return p.cr
	}
	return p.lf
}

func search(b []byte, known, start, from int, c byte) int {
	switch {
	case known >= start:
		return known
	case known != notInBuffer:
		// The known one is consumed: everything behind it is still to be searched.
		from = start
	}
	at := bytes.IndexByte(b[from:], c)
	if at < 0 {
		return notInBuffer
	}
	return from + at
}

// fill makes room and reads once.
func (p *Parser) fill() {
	if p.start == p.end {
		p.shift()
	}
	if p.end == len(p.buf) {
		if p.start > 0 {
			p.shift()
		}
		if p.end == len(p.buf) {
			grown := make([]byte, min(max(firstBuffer, 2*len(p.buf)), max(firstBuffer, p.limit+2)))
			copy(grown, p.buf[:p.end])
			p.buf = grown
		}
	}
	for range emptyReads {
		n, err := p.r.Read(p.buf[p.end:])
		p.end += n
		if err != nil {
			p.ended = err
		}
		if n > 0 || err != nil {
			return
		}
	}
	p.ended = io.ErrNoProgress
}

func (p *Parser) shift() {
	copy(p.buf, p.buf[p.start:p.end])
	p.end -= p.start
	p.searched = max(p.searched-p.start, 0)
	p.lf, p.cr = moved(p.lf, p.start), moved(p.cr, p.start)
	p.start = 0
}

func moved(at, by int) int {
	switch {
	case at < 0:
		return at
	case at < by:
		return notSearched
	}
	return at - by
}

// last is the error after the last line.
func (p *Parser) last() error {
	if errors.Is(p.ended, io.EOF) && (p.end > p.start || len(p.data) > 0) {
		return ErrUnfinished
	}
	return p.ended
}

func (p *Parser) tooLong() error {
	return fmt.Errorf("%w of %d bytes: raise the limit, or the server is no event stream", ErrTooLong, p.limit)
}
