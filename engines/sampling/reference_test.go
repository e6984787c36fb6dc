// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling_test

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/seguekv/segue/engines/sampling"
)

// reference is the sampler written down as plainly as possible: all candidates, sorted, one rule after the
// other. It shares the weight function and the generator with the product.
type reference struct {
	p      sampling.Params
	prompt []int32
	output []int32
}

type scored struct {
	id     int32
	logit  float32
	weight uint64
}

func (r *reference) adjusted(id int32, v float32) float32 {
	x := float64(v) + r.p.LogitBias[id]
	if rp := r.p.RepetitionPenalty; rp != 0 && (slices.Contains(r.prompt, id) || slices.Contains(r.output, id)) {
		if x > 0 {
			x /= rp
		} else {
			x *= rp
		}
	}
	n := 0
	for _, o := range r.output {
		if o == id {
			n++
		}
	}
	if n > 0 {
		x -= r.p.PresencePenalty
		x -= float64(r.p.FrequencyPenalty * float64(n))
	}
	return float32(min(max(x, -math.MaxFloat32), math.MaxFloat32))
}

// kept is the set a draw is made from, by likelihood.
func (r *reference) kept(l sampling.Logits, banned func(int32) bool) []scored {
	var c []scored
	for i, v := range l.Values {
		id := int32(i)
		if l.IDs != nil {
			id = l.IDs[i]
		}
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) || banned != nil && banned(id) {
			continue
		}
		c = append(c, scored{id: id, logit: r.adjusted(id, v)})
	}
	slices.SortFunc(c, func(a, b scored) int { return cmp.Or(cmp.Compare(b.logit, a.logit), cmp.Compare(a.id, b.id)) })
	if r.p.Temperature == 0 || len(c) == 0 {
		return c[:min(1, len(c))]
	}
	best, steps := float64(c[0].logit), sampling.StepsPerLogit(r.p.Temperature)
	for i := range c {
		c[i].weight = sampling.Weight((best - float64(c[i].logit)) * steps)
	}
	if k := r.p.TopK; k > 0 {
		c = c[:min(k, len(c))]
	}
	if p := r.p.TopP; p > 0 && p < 1 {
		target, reached, n := uint64(math.Ceil(p*float64(sum(c)))), uint64(0), 0
		for n < len(c) && (n == 0 || reached < target) {
			reached += c[n].weight
			n++
		}
		c = c[:n]
	}
	return slices.DeleteFunc(c, func(s scored) bool {
		return s.weight == 0 || float64(s.weight) < r.p.MinP*(1<<sampling.WeightBits)
	})
}

func (r *reference) sample(l sampling.Logits, banned func(int32) bool) int32 {
	c := r.kept(l, banned)
	slices.SortFunc(c, func(a, b scored) int { return cmp.Compare(a.id, b.id) })
	id := int32(-1)
	if r.p.Temperature == 0 && len(c) > 0 {
		id = c[0].id
	} else if len(c) > 0 {
		at, _ := bits.Mul64(sampling.Uniform(r.p.Seed, uint64(len(r.output))), sum(c))
		for i := 0; id < 0; i++ {
			if at < c[i].weight {
				id = c[i].id
			}
			at -= c[i].weight
		}
	} else {
		id = r.fallback(l, banned)
	}
	r.output = append(r.output, id)
	return id
}

func (r *reference) fallback(l sampling.Logits, banned func(int32) bool) int32 {
	ids := slices.Clone(l.IDs)
	if ids == nil {
		for i := range l.Values {
			ids = append(ids, int32(i))
		}
	}
	slices.Sort(ids)
	if banned != nil {
		if i := slices.IndexFunc(ids, func(id int32) bool { return !banned(id) }); i >= 0 {
			return ids[i]
		}
	}
	return ids[0]
}

func sum(c []scored) uint64 {
	var n uint64
	for _, s := range c {
		n += s.weight
	}
	return n
}
