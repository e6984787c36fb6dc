// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package bench measures Segue from outside, as a user would: it starts real processes, speaks HTTP, kills, and
// compares what clients received. Of the product it imports only where `make deps` puts its parts.
//
// It owns the kill campaigns (is a killed stream continued, identically, and how long is the pause), a short one with
// counters of the work that takeovers did, and a long one over all that is sampled and killed, with a log; the overhead
// bench (what protection costs in tokens per second); and the demonstration for people.
//
// Nouns: a reference is the transcript of a request that nobody disturbed; a run is the same request with a kill in
// it; a draw is the random choice of the kill's moment. Subpackage cluster runs the processes, subpackage client
// streams and judges answers.
//
// Invariants: every random choice follows from one seed, which is printed; nothing is cached, so each run computes its
// tokens afresh; results go to stdout as one JSON object, everything for people goes to stderr.
//
// Goroutines: one per concurrent stream and one per armed kill; each is waited for by the function that started it.
package bench
