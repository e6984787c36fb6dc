// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"bytes"
	"unicode/utf8"
)

// Template writes the content chunks of one answer without ids. It holds as long as its envelope doesn't change.
type Template struct {
	before, after []byte
}

// Template renders what all content chunks share.
func (e *Envelope) Template() *Template {
	const marker = "\u2063segue\u2063" // in no model's name by chance, and not escaped
	whole := e.Content(marker, Tokens{})
	at := bytes.LastIndex(whole, []byte(marker))
	return &Template{before: whole[:at:at], after: whole[at+len(marker):]}
}

// Append appends Envelope.Content(text, Tokens{}) to dst. text is valid UTF-8.
func (t *Template) Append(dst, text []byte) []byte {
	dst = append(dst, t.before...)
	dst = appendEscaped(dst, text)
	return append(dst, t.after...)
}

const hexDigits = "0123456789abcdef"

// appendEscaped appends what stands between the quotes of a JSON string, as encode writes it.
func appendEscaped(dst, text []byte) []byte {
	from := 0
	for i := 0; i < len(text); {
		c := text[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRune(text[i:])
			switch {
			case r == utf8.RuneError && size == 1:
				dst = append(append(dst, text[from:i]...), `\ufffd`...)
				from = i + size
			case r == '\u2028' || r == '\u2029':
				dst = append(append(append(dst, text[from:i]...), `\u202`...), hexDigits[r&0xf])
				from = i + size
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, text[from:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
		}
		i++
		from = i
	}
	return append(dst, text[from:]...)
}
