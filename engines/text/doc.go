// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package text turns output ids into released text and decides when a run is finished.
//
// It owns UTF-8 hold-back, stop strings, end-of-generation tokens and the token limit. It doesn't own
// tokenizers (the engine gives the bytes of an id) or sampling.
//
// Everything is a pure function of the configuration and the ids pushed so far, so a continuation elsewhere
// pushes the recorded ids again and gets the same text, split at the same places.
//
//	ids → bytes → characters (invalid bytes become U+FFFD) → stop strings → released text
//	      └ at most 3 held          └ a suffix held while it may become a stop string
//
// Invariants:
//   - every Out.Text is valid UTF-8, and the texts joined are the final text;
//   - TextEnd never falls, and TextEnd <= RawEnd; RawEnd falls only when a stop string is dropped;
//   - after the finish TextEnd == RawEnd;
//   - among several stop strings the match that ends first counts, at the same end the longest, however the
//     text is split into tokens.
//
// A Stream belongs to one goroutine at a time. The package starts no goroutines.
package text
