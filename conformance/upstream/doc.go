// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package upstream is a scripted OpenAI-compatible server: it answers chat and completion requests as real servers do
// when they are well, and ends answers in every way that real servers were seen to end them.
//
// A fleet is several listeners with one script. A request names its case by a word of its prompt (see Key), so that
// the script of a case spans the attempts that a router makes on several upstreams. What arrived is recorded.
//
// The fleet is safe for concurrent use. Its goroutines are those of its HTTP servers, which Close ends.
package upstream
