// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package health decides from facts whether an engine works.
//
// A source reads an engine now and then: is it there, is it the same process as before, how much does it have in
// flight, what do its counters say. A Detector turns each Reading into an Assessment: a verdict with reasons. Slow is
// never sick: what counts is whether anything moves.
//
//	source --Reading--> Detector --Assessment--> whoever acts on it
//	                                  |
//	                                  '--> "send one probe", "drop it"
//
// The package is pure: no I/O, no goroutine, no clock. Package watch drives it, package scrape reads servers over
// HTTP, package gpu judges what a GPU's driver says, Combine joins the two verdicts.
//
// INVARIANT: Unknown follows from the absence of facts only, and changes nothing for whoever acts.
// INVARIANT: a probe is asked for only while nothing is known to be in flight, and at most one is outstanding.
// INVARIANT: counters of two engine processes are never compared.
// INVARIANT: what didn't move while the reader itself stood still loses nothing.
// INVARIANT: an engine that hung stays so until it shows life: it moves, a probe passes, or its process, which had
// fallen silent, speaks again and has nothing to do.
// INVARIANT: one pause is never enough for Hung: it takes Config.Pauses of them and the limit of silence.
package health
