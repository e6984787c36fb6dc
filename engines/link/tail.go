// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import (
	"bytes"
	"io"
	"strings"
)

// maxLine bounds the line that tail keeps, in bytes.
const maxLine = 512

// tail passes output on and keeps its last line that isn't blank. It isn't safe for concurrent use.
type tail struct {
	out  io.Writer
	last []byte // complete line
	open []byte // line that has begun
}

// Write implements io.Writer. It never fails, since a child must not die of its log.
func (t *tail) Write(p []byte) (int, error) {
	_, _ = t.out.Write(p)
	for rest := p; len(rest) > 0; {
		line, after, complete := bytes.Cut(rest, []byte("\n"))
		t.open = append(t.open, line[:min(len(line), maxLine-len(t.open))]...)
		rest = after
		if !complete {
			break
		}
		if len(bytes.TrimSpace(t.open)) > 0 {
			t.last = append(t.last[:0], t.open...)
		}
		t.open = t.open[:0]
	}
	return len(p), nil
}

// line is the last line, at most maxLine bytes, an unfinished one included.
func (t *tail) line() string {
	b := t.open
	if len(bytes.TrimSpace(b)) == 0 {
		b = t.last
	}
	return strings.ToValidUTF8(string(bytes.TrimSpace(b)), "\uFFFD")
}
