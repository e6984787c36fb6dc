// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling

import (
	"cmp"
	"math"
	"slices"
)

// A candidate's key holds its place in the total order, higher first: the adjusted logit, made comparable
// as an integer, above the complement of the id.
type candidate struct {
	key    uint64
	weight uint64
}

func keyOf(v float32, id int32) uint64 {
	if v == 0 {
		v = 0 // -0 equals 0
	}
	b := math.Float32bits(v)
	if b>>31 != 0 {
		b = ^b
	} else {
		b |= 1 << 31
	}
	return uint64(b)<<32 | uint64(^uint32(id))
}

func keyID(key uint64) int32 { return int32(^uint32(key)) }

func keyValue(key uint64) float32 {
	b := uint32(key >> 32)
	if b>>31 != 0 {
		b &^= 1 << 31
	} else {
		b = ^b
	}
	return math.Float32frombits(b)
}

func total(c []candidate) uint64 {
	var sum uint64
	for i := range c {
		sum += c[i].weight
	}
	return sum
}

// keepFrom drops the candidates after key in the order, in place.
func keepFrom(c []candidate, key uint64) []candidate {
	n := 0
	for i := range c {
		if c[i].key >= key {
			c[n] = c[i]
			n++
		}
	}
	return c[:n]
}

func sortByID(c []candidate) {
	slices.SortFunc(c, func(a, b candidate) int { return cmp.Compare(keyID(a.key), keyID(b.key)) })
}

// heap is a min-heap of keys: the root is the last of the best so far.
type heap []uint64

func (h heap) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1] < h[c] {
			c++
		}
		if h[i] <= h[c] {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

func (h heap) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if h[p] <= h[i] {
			return
		}
		h[i], h[p] = h[p], h[i]
		i = p
	}
}
