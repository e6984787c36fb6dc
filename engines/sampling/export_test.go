// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling

// Parts that the reference implementation shares, each tested by itself.
var (
	Philox4x32 = philox4x32
	Uniform    = uniform
	Weight     = weight
	// StepsPerLogit is what a difference between logits is multiplied by for Weight.
	StepsPerLogit = stepsPerLogit
)

const (
	WeightBits = weightBits
	HeapLimit  = heapLimit
)
