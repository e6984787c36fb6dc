// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling

import "math"

// adjustment is what changes one id's logit.
type adjustment struct {
	id   int32
	bias float64
	// seen: the id is in the prompt or the output.
	seen bool
	// count is the number of occurrences in the output.
	count int
}

// adjustments are kept per id, in a list for iteration and an index for look-up, so that a draw touches
// only the ids that have one.
type adjustments struct {
	repetition, presence, frequency float64
	list                            []adjustment
	index                           map[int32]int
}

func newAdjustments(p Params) adjustments {
	a := adjustments{
		repetition: p.RepetitionPenalty, presence: p.PresencePenalty, frequency: p.FrequencyPenalty,
		index: make(map[int32]int, len(p.LogitBias)),
	}
	if a.repetition == 0 {
		a.repetition = 1
	}
	for id, b := range p.LogitBias {
		a.of(id).bias = b
	}
	return a
}

func (a *adjustments) of(id int32) *adjustment {
	i, ok := a.index[id]
	if !ok {
		i = len(a.list)
		a.list = append(a.list, adjustment{id: id})
		a.index[id] = i
	}
	return &a.list[i]
}

func (a *adjustments) addPrompt(ids []int32) {
	if a.repetition == 1 {
		return
	}
	for _, id := range ids {
		a.of(id).seen = true
	}
}

func (a *adjustments) addOutput(id int32) {
	if a.repetition == 1 && a.presence == 0 && a.frequency == 0 {
		return
	}
	e := a.of(id)
	e.seen = true
	e.count++
}

// apply returns the adjusted logit. A logit that is not finite stays as it is; a finite one stays finite.
func (a *adjustments) apply(e *adjustment, v float32) float32 {
	if !finite(v) {
		return v
	}
	x := float64(v) + e.bias
	if e.seen && a.repetition != 1 {
		if x > 0 {
			x /= a.repetition
		} else {
			x *= a.repetition
		}
	}
	if e.count > 0 {
		x = x - a.presence - float64(a.frequency*float64(e.count))
	}
	return float32(min(max(x, -math.MaxFloat32), math.MaxFloat32))
}

// adjust returns l with every adjustment applied, in scratch when anything changes.
func (a *adjustments) adjust(l Logits, scratch *[]float32) Logits {
	if len(a.list) == 0 {
		return l
	}
	v := append((*scratch)[:0], l.Values...)
	*scratch = v
	if l.IDs == nil {
		for i := range a.list {
			e := &a.list[i]
			if uint(e.id) < uint(len(v)) {
				v[e.id] = a.apply(e, v[e.id])
			}
		}
	} else {
		for i, id := range l.IDs {
			if j, ok := a.index[id]; ok {
				v[i] = a.apply(&a.list[j], v[i])
			}
		}
	}
	return Logits{IDs: l.IDs, Values: v}
}
