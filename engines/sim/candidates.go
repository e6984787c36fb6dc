// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import "github.com/seguekv/segue/engines/sampling"

const (
	// proposals is the number of candidates for each token, one from each of so many equal ranges of ids.
	proposals = 64
	span      = (vocabulary - words) / proposals

	// One range in regularEvery proposes one of two fixed ids, below regularTop: words that come back, for
	// penalties and biases to act on, and that hardly ever lead.
	regularEvery = 4
	regularTop   = 7
	// restTop and eogTop lead; the others stay below topOfAll.
	topOfAll = 8
	restTop  = 16
	eogTop   = 32
)

// candidates are the logits of one context.
type candidates struct {
	ids    [proposals]int32
	values [proposals]float32
}

// derive makes the candidates that follow a cache with this digest, whose newest id is last. The result is
// valid until the next call.
func (c *candidates) derive(digest uint64, last int32, eogEvery int) sampling.Logits {
	for j := range proposals {
		r := word(digest, j)
		low := int32(words + j*span)
		top := float32(topOfAll)
		if j%regularEvery == 0 {
			c.ids[j] = low + classes/2 + classes*int32(r&1)
			top = regularTop
		} else {
			c.ids[j] = low + int32(uint64(uint32(r))*span>>32)
			if k := c.ids[j] % classes; k > classRest && k <= classRest+3 {
				// The rest of a character is proposed only after its beginning.
				c.ids[j] += classes / 2
			}
		}
		c.values[j] = float32(r>>40) / (1 << 24) * top
	}
	r := word(digest, proposals)
	// One beginning of a character in eight stays without its rest.
	if k := lacks(last); k > 0 && r&7 != 0 {
		j := 1 + int(r>>8%(proposals/regularEvery))*regularEvery
		c.ids[j] += int32(classRest+k) - c.ids[j]%classes
		c.values[j] = restTop
	}
	if eogEvery > 0 && r>>16%uint64(eogEvery) == 0 {
		c.ids[0], c.values[0] = eog, eogTop
	}
	return sampling.Logits{IDs: c.ids[:], Values: c.values[:]}
}
