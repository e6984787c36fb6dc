// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling_test

import (
	"testing"

	"github.com/seguekv/segue/engines/sampling"
)

// The vectors are the published known answers of philox4x32-10.
func TestPhilox_KnownAnswers(t *testing.T) {
	const m = 0xffffffff
	for _, c := range []struct {
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{m, m, m, m}, [2]uint32{m, m}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{
			[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
			[2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		},
	} {
		if got := sampling.Philox4x32(c.ctr, c.key); got != c.want {
			t.Errorf("philox4x32(%x, %x) = %x, want %x", c.ctr, c.key, got, c.want)
		}
	}
}

func TestUniform_DependsOnSeedAndDraw(t *testing.T) {
	seen := map[uint64]bool{}
	for _, seed := range []uint64{0, 1, 1 << 32, 1 << 63} {
		for _, draw := range []uint64{0, 1, 1 << 32, 1 << 63} {
			u := sampling.Uniform(seed, draw)
			if seen[u] {
				t.Errorf("uniform(%d, %d) repeats %x", seed, draw, u)
			}
			seen[u] = true
		}
	}
}
