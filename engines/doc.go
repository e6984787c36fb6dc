// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package engines is the interface between an agent and an inference engine.
//
// It owns the words both sides use: Engine, Description, Job, Sink, Token, Finish, Facts, Request and its
// validation, wire form and digest, and the errors a caller branches on. It doesn't own engines
// (engines/sim, engines/llamacpp, engines/link), sampling (engines/sampling), text (engines/text), the token
// loop (engines/decode), or the definition of "supported" (engines/enginetest).
//
// Nouns: a run is one generation on one context. Boundary n means that n output tokens are known and the
// rows of positions 0 … P+n-2 exist. A row is the K and V of one position in the canonical layout of
// snapshot.Geometry.
//
// A Request that passed Validate is within the limits of this package; nothing below checks them again.
//
// The package starts no goroutines.
package engines
