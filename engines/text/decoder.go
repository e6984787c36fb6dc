// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package text

import "unicode/utf8"

// decoder turns bytes into valid UTF-8. A maximal prefix of a character that turns out not to become one is
// replaced by one U+FFFD, any other invalid byte by one each.
type decoder struct {
	// partial[:held] is an incomplete character, at most 3 bytes between calls.
	partial [utf8.UTFMax]byte
	held    int
}

// append appends to dst the characters that b completes.
func (d *decoder) append(dst, b []byte) []byte {
	var rest []byte
	for len(b) > 0 && d.held > 0 {
		d.partial[d.held] = b[0]
		b = b[1:]
		dst, rest = d.take(dst, d.partial[:d.held+1])
		d.held = copy(d.partial[:], rest)
	}
	if d.held == 0 {
		dst, rest = d.take(dst, b)
		d.held = copy(d.partial[:], rest)
	}
	return dst
}

// take appends the characters of b to dst and returns the incomplete rest.
func (d *decoder) take(dst, b []byte) (out, rest []byte) {
	for len(b) > 0 {
		if r, size := utf8.DecodeRune(b); r != utf8.RuneError || size > 1 {
			dst = append(dst, b[:size]...)
			b = b[size:]
			continue
		}
		if !utf8.FullRune(b) {
			break
		}
		dst = utf8.AppendRune(dst, utf8.RuneError)
		b = b[badPrefix(b):]
	}
	return dst, b
}

// flush appends U+FFFD for an incomplete character.
func (d *decoder) flush(dst []byte) []byte {
	if d.held > 0 {
		dst = utf8.AppendRune(dst, utf8.RuneError)
		d.held = 0
	}
	return dst
}

// badPrefix is the length of the longest prefix of b that more bytes could have completed, at least 1.
func badPrefix(b []byte) int {
	n := 1
	for n < len(b) && !utf8.FullRune(b[:n+1]) {
		n++
	}
	return n
}
