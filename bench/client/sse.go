// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package client

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxEvent bounds the data of one event and the length of one line.
const maxEvent = 4 << 20

var (
	// errCutEvent is the end of a stream inside an event.
	errCutEvent = errors.New("client: stream ends inside an event")
	errTooLong  = fmt.Errorf("client: event longer than %d bytes", maxEvent)
)

// eventReader splits a server-sent event stream. Lines end in LF, CR or CRLF; comments and fields other than data are
// skipped.
type eventReader struct {
	in      *bufio.Reader
	begun   bool
	afterCR bool
	buf     []byte // the current line
	data    []byte // the current event
}

func newEventReader(r io.Reader) *eventReader {
	return &eventReader{in: bufio.NewReaderSize(r, 32<<10)}
}

// next returns the data of the next event that has any. The slice is valid until the following call. io.EOF means that
// the stream ended between events.
func (r *eventReader) next() ([]byte, error) {
	if !r.begun {
		r.begun = true
		if bom, _ := r.in.Peek(3); bytes.Equal(bom, []byte("\xef\xbb\xbf")) {
			_, _ = r.in.Discard(3)
		}
	}
	r.data = r.data[:0]
	has := false
	for {
		line, err := r.line()
		if err != nil {
			if errors.Is(err, io.EOF) && (has || len(line) > 0) {
				return nil, errCutEvent
			}
			return nil, err
		}
		if len(line) == 0 {
			if has {
				return r.data, nil
			}
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		if string(field) != "data" {
			continue
		}
		value = bytes.TrimPrefix(value, []byte(" "))
		if has {
			r.data = append(r.data, '\n')
		}
		has = true
		if r.data = append(r.data, value...); len(r.data) > maxEvent {
			return nil, errTooLong
		}
	}
}

// line returns the next line without its end. A CR ends a line at once; an LF right behind it belongs to it.
func (r *eventReader) line() ([]byte, error) {
	line := r.buf[:0]
	defer func() { r.buf = line[:0] }()
	for {
		b, err := r.in.ReadByte()
		if err != nil {
			return line, err
		}
		afterCR := r.afterCR
		r.afterCR = b == '\r'
		switch {
		case b == '\n' && afterCR:
			continue
		case b == '\n' || b == '\r':
			return line, nil
		}
		if line = append(line, b); len(line) > maxEvent {
			return nil, errTooLong
		}
	}
}
