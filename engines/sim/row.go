// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"encoding/binary"
	"math/bits"
)

// Odd constants without structure: the fractional bits of the golden ratio and of square roots.
const (
	gamma = 0x9e3779b97f4a7c15
	alpha = 0x6a09e667f3bcc909
	beta  = 0xbb67ae8584caa73b
)

// mix is a bijection of 64 bits in which each input bit moves about half of the output bits.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// origin is the hash of the empty history.
func origin(weights uint64) uint64 { return mix(weights + gamma) }

// follow is the hash of a history and one more id.
func follow(history uint64, id int32) uint64 {
	return mix(history + gamma*(uint64(uint32(id))+1))
}

// word is word i of the stream of seed.
func word(seed uint64, i int) uint64 {
	x := seed + uint64(i)*gamma
	hi, lo := bits.Mul64(x^alpha, x^beta)
	return hi ^ lo
}

// expand fills dst with the stream of seed: the rows' bytes. Words are independent of each other, so that
// their multiplications overlap.
func expand(dst []byte, seed uint64) {
	i := 0
	for ; len(dst) >= 32; dst = dst[32:] {
		binary.LittleEndian.PutUint64(dst[0:8], word(seed, i))
		binary.LittleEndian.PutUint64(dst[8:16], word(seed, i+1))
		binary.LittleEndian.PutUint64(dst[16:24], word(seed, i+2))
		binary.LittleEndian.PutUint64(dst[24:32], word(seed, i+3))
		i += 4
	}
	var tail [8]byte
	for ; len(dst) > 0; i++ {
		binary.LittleEndian.PutUint64(tail[:], word(seed, i))
		dst = dst[copy(dst, tail[:]):]
	}
}
