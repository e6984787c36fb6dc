// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling

import "github.com/seguekv/segue/snapshot"

// heapLimit is the largest top-k that is selected by a heap; above it a radix selection is faster.
const heapLimit = 256

// Sampler draws the output tokens of one run. It belongs to one goroutine at a time.
type Sampler struct {
	p     Params
	draws uint64
	adj   adjustments

	// Scratch, reused by every draw.
	values  []float32
	sorted  Logits
	keys    heap
	weights []uint64
	cands   []candidate
	sel     selector
}

// New returns a sampler before its first draw. It copies what it keeps of p, which should be valid
// (Params.Validate); out-of-range values give poor tokens, never a panic.
func New(p Params) *Sampler {
	s := &Sampler{p: p, adj: newAdjustments(p)}
	s.p.LogitBias = nil
	return s
}

// SetPrompt gives the prompt's ids, for the repetition penalty. Call it once, before the first draw; ids
// isn't kept.
func (s *Sampler) SetPrompt(ids []int32) { s.adj.addPrompt(ids) }

// Accept takes the next recorded output id instead of drawing one.
func (s *Sampler) Accept(id int32) {
	s.adj.addOutput(id)
	s.draws++
}

// State is the whole state beside the ids: the seed and the number of output tokens so far.
func (s *Sampler) State() snapshot.Sampler {
	return snapshot.Sampler{Seed: s.p.Seed, Draws: s.draws}
}

// Sample draws output token number State().Draws and accepts it. banned ids aren't drawn; it may be nil,
// must be a pure function, and is asked only about ids that matter. When no candidate is left (every one is
// banned or has no finite logit) the lowest id that isn't banned is drawn, or the lowest of all. Without any
// logits it returns -1 and accepts nothing.
func (s *Sampler) Sample(l Logits, banned func(id int32) bool) int32 {
	if l.IDs != nil {
		n := min(len(l.IDs), len(l.Values))
		l.IDs, l.Values = l.IDs[:n], l.Values[:n]
	}
	if len(l.Values) == 0 {
		return -1
	}
	id, ok := s.draw(s.adj.adjust(l, &s.values), banned)
	if !ok {
		id = l.lowest(banned)
	}
	s.Accept(id)
	return id
}

// draw returns false when there is no candidate.
func (s *Sampler) draw(l Logits, banned func(id int32) bool) (int32, bool) {
	if !(s.p.Temperature > 0) {
		best, ok := l.best(banned)
		return keyID(best), ok
	}
	l = l.ascending(&s.sorted)
	k, nucleus := s.p.TopK, s.p.TopP > 0 && s.p.TopP < 1
	if k > 0 && k <= heapLimit {
		s.gatherTop(l, k, banned)
	} else {
		sum, ok := s.weigh(l, banned)
		switch {
		case !ok:
			return 0, false
		case k > 0:
			s.gather(l, 1)
			if k < len(s.cands) {
				s.cands = keepFrom(s.cands, s.sel.cut(s.cands, uint64(k), true))
			}
		case nucleus:
			// All candidates lighter than this weigh no more than what top-p drops.
			s.gather(l, (sum-part(s.p.TopP, sum))/uint64(len(l.Values))+1)
			s.cands = keepFrom(s.cands, s.sel.cut(s.cands, part(s.p.TopP, sum), false))
			nucleus = false
		default:
			return s.drawWeights(l, sum), true
		}
	}
	if len(s.cands) == 0 {
		return 0, false
	}
	if nucleus {
		s.cands = keepFrom(s.cands, s.sel.cut(s.cands, part(s.p.TopP, total(s.cands)), false))
	}
	return s.drawCandidates(s.lightest()), true
}
