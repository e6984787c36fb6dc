// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package decode is the token loop of engines whose sampling is ours: it turns a Model, which computes
// positions and hands out logits and rows, into what engines.Engine promises of a Run.
//
// It owns the order of events, boundaries, capture into borrowed buffers, the replay of a restored state
// through sampler and text, cancellation and the counters. It doesn't own contexts (the engine hands one
// in for each run), the model's arithmetic or a state's digests.
//
// A fresh run:
//
//	render → Prompt → { prefill a chunk → capture → Prefilled } … → draw 0 → Token 0
//	       → { step token i-1 at P+i-1 → draw i → capture that row → Token i } …
//
// A restored run at boundary n emits tokens 0 … n-1 from the record and goes on with the step of token
// n-1 at position P+n-1, the one which the first engine would have computed next. When one of the recorded
// tokens finishes the request, nothing is loaded and nothing is computed.
//
// Invariants: events are contiguous; no position a restored state covers is computed again (counted as
// ReplayedDecodeSteps if it ever were); a state that doesn't fit is refused before the first event.
//
// The package starts no goroutine.
package decode
