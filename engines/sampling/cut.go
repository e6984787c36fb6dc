// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling

import (
	"cmp"
	"slices"
)

const (
	digitBits = 11
	// smallCut is the number of candidates up to which sorting is faster than counting.
	smallCut = 256
)

// selector finds cuts in the total order. Large sets aren't sorted: a most-significant-digit radix selection
// is linear in the number of candidates whatever the logits are.
type selector struct {
	sums [1 << digitBits]uint64
	rest []candidate
}

// cut returns the key of the last candidate of the shortest prefix of the order whose weights sum up to at
// least target. counted takes 1 for each weight. The candidates stay untouched; target must be in
// 1 … the sum of all.
func (s *selector) cut(c []candidate, target uint64, counted bool) uint64 {
	for left := uint(64); left > 0 && len(c) > smallCut; {
		width := min(left, digitBits)
		left -= width
		mask := uint64(1)<<width - 1
		clear(s.sums[:])
		for i := range c {
			w := c[i].weight
			if counted {
				w = 1
			}
			s.sums[c[i].key>>left&mask] += w
		}
		d := mask
		for d > 0 && s.sums[d] < target {
			target -= s.sums[d]
			d--
		}
		n := 0
		if cap(s.rest) < len(c) {
			s.rest = make([]candidate, len(c))
		}
		rest := s.rest[:len(c)]
		for i := range c {
			if c[i].key>>left&mask == d {
				rest[n] = c[i]
				n++
			}
		}
		c = rest[:n]
	}
	return s.cutSorted(c, target, counted)
}

func (s *selector) cutSorted(c []candidate, target uint64, counted bool) uint64 {
	s.rest = append(s.rest[:0], c...)
	slices.SortFunc(s.rest, func(a, b candidate) int { return cmp.Compare(b.key, a.key) })
	last := uint64(0)
	for i := range s.rest {
		w := s.rest[i].weight
		if counted {
			w = 1
		}
		last = s.rest[i].key
		if w >= target {
			break
		}
		target -= w
	}
	return last
}
