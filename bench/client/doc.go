// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package client is a strict streaming client of an OpenAI-compatible API, and the judge of what it received.
//
// It is lenient about nothing: whatever a careless client library would swallow (a second role chunk, another id,
// text after the finish, a missing index, half a character, an end without [DONE]) is recorded as a problem of the
// transcript. It knows nothing of the server's code.
//
// Nouns: a Call is one request; a Transcript is everything that one answer consisted of, with the time of each chunk;
// a Verdict compares a transcript with the transcript of the undisturbed run.
//
// Goroutines: none of its own.
package client
