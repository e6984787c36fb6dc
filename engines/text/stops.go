// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package text

import "unicode/utf8"

// stops follows all stop strings at once, one byte at a time.
type stops struct {
	patterns []pattern
}

// pattern is a stop string with its Knuth-Morris-Pratt failure function.
type pattern struct {
	s string
	// border[i] is the length of the longest proper prefix of s[:i+1] that is its suffix.
	border []int
	// matched is the length of the longest prefix of s that ends here.
	matched int
}

// newStops skips empty strings, and invalid UTF-8, which valid text never contains.
func newStops(list []string) stops {
	var st stops
	for _, s := range list {
		if s == "" || !utf8.ValidString(s) {
			continue
		}
		p := pattern{s: s, border: make([]int, len(s))}
		for i, k := 1, 0; i < len(s); i++ {
			for k > 0 && s[i] != s[k] {
				k = p.border[k-1]
			}
			if s[i] == s[k] {
				k++
			}
			p.border[i] = k
		}
		st.patterns = append(st.patterns, p)
	}
	return st
}

// next takes one byte of text. It returns the length of the longest stop string that ends with it, or 0.
func (st *stops) next(b byte) int {
	found := 0
	for i := range st.patterns {
		p := &st.patterns[i]
		for p.matched > 0 && p.s[p.matched] != b {
			p.matched = p.border[p.matched-1]
		}
		if p.s[p.matched] == b {
			p.matched++
		}
		if p.matched == len(p.s) {
			found = max(found, len(p.s))
			p.matched = p.border[p.matched-1]
		}
	}
	return found
}

// held is the length of the longest suffix that may become a stop string. It begins with a character,
// because every stop string does.
func (st *stops) held() int {
	n := 0
	for i := range st.patterns {
		n = max(n, st.patterns[i].matched)
	}
	return n
}
