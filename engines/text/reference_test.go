// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package text_test

import (
	"strings"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/text"
)

// result is what a whole run gives.
type result struct {
	Text   string
	Tokens int
	Finish engines.Finish
}

// reference decides the run from the whole text so far, again after each token: all bytes, decoded in one go,
// cut at the first stop string.
func reference(c text.Config, ids []int32) result {
	var bytes []byte
	for i, id := range ids {
		finish := engines.FinishNone
		switch {
		case !c.EOG(id):
			bytes = append(bytes, c.Piece(id)...)
		case !c.IgnoreEOS && i >= c.MinTokens:
			finish = engines.FinishStop
		}
		if finish == engines.FinishNone && c.MaxTokens > 0 && i+1 == c.MaxTokens {
			finish = engines.FinishLength
		}
		decoded := decode(bytes, finish != engines.FinishNone)
		if end, ok := firstStop(decoded, c.Stops); ok {
			return result{decoded[:end], i + 1, engines.FinishStop}
		}
		if finish != engines.FinishNone {
			return result{decoded, i + 1, finish}
		}
	}
	return result{decode(bytes, false), len(ids), engines.FinishNone}
}

// firstStop is the start of the match that ends first, the longest of those.
func firstStop(s string, stops []string) (int, bool) {
	for end := 1; end <= len(s); end++ {
		longest := ""
		for _, stop := range stops {
			if strings.HasSuffix(s[:end], stop) && len(stop) > len(longest) {
				longest = stop
			}
		}
		if longest != "" {
			return end - len(longest), true
		}
	}
	return 0, false
}

// decode is the UTF-8 decoder of the WHATWG Encoding Standard with error mode "replacement"; an incomplete
// character at the end is replaced only when the stream ends there.
func decode(b []byte, end bool) string {
	var out strings.Builder
	point, seen, needed := rune(0), 0, 0
	low, high := byte(0x80), byte(0xBF)
	for i := 0; i < len(b); i++ {
		c := b[i]
		if needed == 0 {
			switch {
			case c <= 0x7F:
				out.WriteByte(c)
			case c >= 0xC2 && c <= 0xDF:
				needed, point = 1, rune(c&0x1F)
			case c >= 0xE0 && c <= 0xEF:
				if c == 0xE0 {
					low = 0xA0
				}
				if c == 0xED {
					high = 0x9F
				}
				needed, point = 2, rune(c&0xF)
			case c >= 0xF0 && c <= 0xF4:
				if c == 0xF0 {
					low = 0x90
				}
				if c == 0xF4 {
					high = 0x8F
				}
				needed, point = 3, rune(c&0x7)
			default:
				out.WriteString("\uFFFD")
			}
			continue
		}
		inside := c >= low && c <= high
		low, high = 0x80, 0xBF
		if !inside {
			point, seen, needed = 0, 0, 0
			i-- // read this byte again as a first one
			out.WriteString("\uFFFD")
			continue
		}
		point = point<<6 | rune(c&0x3F)
		if seen++; seen == needed {
			out.WriteRune(point)
			point, seen, needed = 0, 0, 0
		}
	}
	if needed > 0 && end {
		out.WriteString("\uFFFD")
	}
	return out.String()
}
