// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package restart

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// mostOutput is how much of a command's output is kept, in bytes: the last of it.
const mostOutput = 4096

// tail keeps the last bytes written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
	cut  bool
}

// Write takes all of p.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if len(p) > mostOutput {
		p, t.cut = p[len(p)-mostOutput:], true
	}
	if over := len(t.kept) + len(p) - mostOutput; over > 0 {
		t.kept, t.cut = append(t.kept[:0], t.kept[over:]...), true
	}
	t.kept = append(t.kept, p...)
	return n, nil
}

// String is the kept text in one line, without what would control a terminal.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.kept
	for t.cut && len(b) > 0 && !utf8.RuneStart(b[0]) {
		b = b[1:]
	}
	s := strings.TrimSpace(printable(string(b)))
	if t.cut {
		return "…" + s
	}
	return s
}

// printable has a blank for each line's end, and a question mark for what isn't text.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return '?'
	}, s)
}
