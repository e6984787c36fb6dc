// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling

import (
	"math"
	"slices"
	"sort"
)

// Logits are the scores of the candidates for one output token. The sampler only reads them.
type Logits struct {
	// IDs are the candidates' ids, each at most once, in any order; nil: Values[i] is the logit of id i.
	IDs []int32
	// Values that are NaN or infinite are no candidates.
	Values []float32
}

func (l Logits) id(i int) int32 {
	if l.IDs == nil {
		return int32(i)
	}
	return l.IDs[i]
}

func finite(v float32) bool {
	return math.Float32bits(v)&0x7f800000 != 0x7f800000
}

// ascending returns l with its ids in ascending order, in scratch when they aren't.
func (l Logits) ascending(scratch *Logits) Logits {
	if l.IDs == nil || slices.IsSorted(l.IDs) {
		return l
	}
	scratch.IDs = append(scratch.IDs[:0], l.IDs...)
	scratch.Values = append(scratch.Values[:0], l.Values...)
	sort.Sort((*byID)(scratch))
	return *scratch
}

type byID Logits

func (l *byID) Len() int           { return len(l.IDs) }
func (l *byID) Less(i, j int) bool { return l.IDs[i] < l.IDs[j] }
func (l *byID) Swap(i, j int) {
	l.IDs[i], l.IDs[j] = l.IDs[j], l.IDs[i]
	l.Values[i], l.Values[j] = l.Values[j], l.Values[i]
}

// best returns the key of the first candidate of the order.
func (l Logits) best(banned func(id int32) bool) (key uint64, ok bool) {
	floor := float32(math.Inf(-1))
	for i, v := range l.Values {
		if !(v >= floor) || !finite(v) {
			continue
		}
		if k := keyOf(v, l.id(i)); (!ok || k > key) && (banned == nil || !banned(l.id(i))) {
			floor, key, ok = v, k, true
		}
	}
	return key, ok
}

// lowest returns the lowest id that isn't banned, or the lowest of all.
func (l Logits) lowest(banned func(id int32) bool) int32 {
	var free, all int32
	anyFree := false
	for i := range l.Values {
		id := l.id(i)
		if i == 0 || id < all {
			all = id
		}
		if (!anyFree || id < free) && (banned == nil || !banned(id)) {
			free, anyFree = id, true
		}
	}
	if anyFree {
		return free
	}
	return all
}
