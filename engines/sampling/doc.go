// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package sampling draws output tokens from logits.
//
// It owns the sampling parameters, their effect and the randomness. It doesn't own end-of-generation
// rules, stop strings or text (engines/text).
//
// A draw is a pure function of the parameters, the prompt ids (only when a repetition penalty is set), the
// ids accepted so far and the logits. So a sampler is rebuilt elsewhere by New, SetPrompt and an Accept for
// each recorded output id, and its explicit state is (seed, number of draws).
//
// Order of operations, the same for every engine:
//
//	logit bias → repetition penalty → presence and frequency penalty → ban → temperature → top-k → top-p → min-p → draw
//
// Candidates have one total order, adjusted logit descending, then id ascending; every cut is a prefix of
// that order. Probabilities are integers: a candidate's weight is its probability relative to the likeliest
// one, in units of 2^-40, so sums don't depend on the order of summation. The distance to the likeliest one is
// rounded to 2^-18 powers of two before (a relative error of at most 1.4e-6, about that of float32 logits);
// a candidate whose weight rounds to 0 is never drawn. The draw walks the kept candidates by ascending id.
// Nothing depends on how a platform rounds.
//
// Randomness is Philox4x32-10 with the seed as key and the number of the draw as counter: one 64-bit value
// per output token. A greedy draw uses none, and counts all the same.
//
// INVARIANT: State().Draws equals the number of accepted ids.
//
// A Sampler belongs to one goroutine at a time. The package starts no goroutines.
package sampling
