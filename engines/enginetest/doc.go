// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package enginetest is the conformance suite of engines.Engine: an engine is supported when Run passes.
// It holds no test of one engine and knows no model; it judges by what an engine says of itself, what its
// sinks receive and what its counters count.
//
// Recorder is the sink that the suite is made of, for others to use: it checks the order and the lengths of
// everything it receives, keeps copies, and makes the state at any boundary of what it recorded.
//
// The suite makes two engines with one factory, as two processes of one build on one model, and carries
// states from the first to the second. Its subtests run one after the other, so that counters can be
// compared before and after.
package enginetest
