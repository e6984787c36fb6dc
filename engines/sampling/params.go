// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling

// Params are the sampling parameters of a request. The zero value of a field has the meaning given here;
// the router fills in the API's defaults before it gets this far.
type Params struct {
	// Temperature 0 is greedy: the highest logit after bias and penalties, ties to the lower id. Range 0..2.
	Temperature float64
	// TopK keeps the k likeliest; 0 = all. At most 2^31-1.
	TopK int
	// TopP keeps the smallest set whose probability reaches it; 1 (or 0) = all. Range 0..1.
	TopP float64
	// MinP drops what is less likely than MinP times the likeliest; 0 = off. Range 0..1.
	MinP float64
	// RepetitionPenalty divides positive and multiplies negative logits of ids in prompt or output; 1 (or 0) = off.
	// Range 0..10.
	RepetitionPenalty float64
	// PresencePenalty is subtracted once, FrequencyPenalty per occurrence, for ids in the output. Range -2..2.
	PresencePenalty, FrequencyPenalty float64
	// LogitBias is added first. Range -100..100 per id; at most 1024 entries.
	LogitBias map[int32]float64
	Seed      uint64
}
