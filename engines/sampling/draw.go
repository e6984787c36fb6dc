// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling

import (
	"math"
	"math/bits"
)

// weigh computes the weight of every logit: 0 for those that are no candidates or banned. It returns the sum,
// and false when there is no candidate.
func (s *Sampler) weigh(l Logits, banned func(id int32) bool) (uint64, bool) {
	key, ok := l.best(banned)
	if !ok {
		return 0, false
	}
	best, steps := float64(keyValue(key)), stepsPerLogit(s.p.Temperature)
	if cap(s.weights) < len(l.Values) {
		s.weights = make([]uint64, len(l.Values))
	}
	s.weights = s.weights[:len(l.Values)]
	var sum uint64
	for i, v := range l.Values {
		// Banned and infinite logits may lie above the best.
		w := weight(float64((best - float64(v)) * steps))
		if w > 0 && (banned != nil && banned(l.id(i)) || !finite(v)) {
			w = 0
		}
		s.weights[i] = w
		sum += w
	}
	return sum, true
}

// gather collects the candidates that weigh at least lightest, by ascending id.
func (s *Sampler) gather(l Logits, lightest uint64) {
	s.cands = s.cands[:0]
	if cap(s.cands) < len(l.Values) {
		s.cands = make([]candidate, 0, len(l.Values))
	}
	for i, w := range s.weights {
		if w >= lightest {
			s.cands = append(s.cands, candidate{key: keyOf(l.Values[i], l.id(i)), weight: w})
		}
	}
}

// gatherTop collects the first k candidates of the order, by ascending id. Those with weight 0 are left out.
func (s *Sampler) gatherTop(l Logits, k int, banned func(id int32) bool) {
	h := s.keys[:0]
	floor, first := float32(math.Inf(-1)), uint64(0)
	for i, v := range l.Values {
		if v < floor || !finite(v) {
			continue
		}
		key := keyOf(v, l.id(i))
		full := len(h) == k
		if full && key < h[0] || banned != nil && banned(l.id(i)) {
			continue
		}
		if full {
			h[0] = key
			h.down(0)
		} else {
			h = append(h, key)
			h.up(len(h) - 1)
		}
		if len(h) == k {
			floor = keyValue(h[0])
		}
		first = max(first, key)
	}
	s.keys = h
	best, steps := float64(keyValue(first)), stepsPerLogit(s.p.Temperature)
	s.cands = s.cands[:0]
	for _, key := range h {
		if w := weight(float64((best - float64(keyValue(key))) * steps)); w > 0 {
			s.cands = append(s.cands, candidate{key: key, weight: w})
		}
	}
	sortByID(s.cands)
}

// part is the target of top-p: the share p of sum, at least 1.
func part(p float64, sum uint64) uint64 {
	return min(max(uint64(math.Ceil(p*float64(sum))), 1), sum)
}

// lightest is the smallest weight that min-p keeps.
func (s *Sampler) lightest() uint64 {
	const one = 1 << weightBits
	return min(max(uint64(math.Ceil(s.p.MinP*one)), 1), one)
}

// drawWeights draws from all weights that min-p keeps; sum is that of all weights.
func (s *Sampler) drawWeights(l Logits, sum uint64) int32 {
	lightest := s.lightest()
	if lightest > 1 {
		for i, w := range s.weights {
			if w < lightest {
				s.weights[i] = 0
				sum -= w
			}
		}
	}
	at, _ := bits.Mul64(uniform(s.p.Seed, s.draws), sum)
	for i, w := range s.weights {
		if at < w {
			return l.id(i)
		}
		at -= w
	}
	panic("sampling: weights don't hold the best candidate")
}

// drawCandidates draws from the candidates that min-p keeps.
func (s *Sampler) drawCandidates(lightest uint64) int32 {
	var sum uint64
	for i := range s.cands {
		if s.cands[i].weight >= lightest {
			sum += s.cands[i].weight
		}
	}
	at, _ := bits.Mul64(uniform(s.p.Seed, s.draws), sum)
	for i := range s.cands {
		w := s.cands[i].weight
		if w < lightest {
			continue
		}
		if at < w {
			return keyID(s.cands[i].key)
		}
		at -= w
	}
	panic("sampling: candidates don't hold the best one")
}
