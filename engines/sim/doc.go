// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package sim is a deterministic pseudo-model with real bytes: an engine that needs no weights, plays a
// model of any shape and speed, and notices every wrong byte in its cache.
//
// A token's KV row is a stream of bytes expanded from a hash of the ids up to it. The cache keeps rows in
// blocks of snapshot.BlockRows and digests what it holds: a row when it is written or loaded, a block when
// its last row is, always from the bytes in the cache and never from what should be there. The candidates
// for the next token are a function of all these digests, so one missing, stale, swapped or flipped byte
// changes the very next token, in greedy mode too. Config.Verify digests the whole cache again at each step.
//
// The package owns the pseudo-model, its vocabulary, tokenizer and contexts. The token loop is
// engines/decode's and the sampler engines/sampling's, the same code that real engines run. It doesn't
// imitate numerics: the fingerprint names them, but thread counts or chunk sizes change no byte.
//
// A step takes Config.Step, slept from the moment the loop asks for it; a prefill chunk takes
// Config.PrefillToken for each of its tokens. Sleeps end with the run's context.
//
// The package starts no goroutine.
package sim
