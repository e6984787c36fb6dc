// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling

import "math/bits"

// Constants of Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3).
const (
	philoxM0     = 0xD2511F53
	philoxM1     = 0xCD9E8D57
	philoxW0     = 0x9E3779B9
	philoxW1     = 0xBB67AE85
	philoxRounds = 10
)

func philox4x32(ctr [4]uint32, key [2]uint32) [4]uint32 {
	for range philoxRounds {
		hi0, lo0 := bits.Mul32(philoxM0, ctr[0])
		hi1, lo1 := bits.Mul32(philoxM1, ctr[2])
		ctr = [4]uint32{hi1 ^ ctr[1] ^ key[0], lo1, hi0 ^ ctr[3] ^ key[1], lo0}
		key[0] += philoxW0
		key[1] += philoxW1
	}
	return ctr
}

// uniform is 64 random bits, a pure function of the seed and the number of the draw.
func uniform(seed, draw uint64) uint64 {
	r := philox4x32([4]uint32{uint32(draw), uint32(draw >> 32)}, [2]uint32{uint32(seed), uint32(seed >> 32)})
	return uint64(r[1])<<32 | uint64(r[0])
}
