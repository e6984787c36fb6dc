// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package lab plays inference servers: what one of them shows of itself while it is idle, decodes, computes a long
// prompt, hangs, restarts, sleeps, loads or dies, in the words of vLLM, SGLang or llama-server.
//
// An Engine is a pure function of a script and a time, apart from what it counts of the requests it got. It is asked in one
// of three ways:
//
//	Play    in virtual time, without a network: script → page text → package scrape → health.Detector
//	Server  over HTTP, in real time
//	Naive   a model of a check that sends a chat request now and then
//
// What an engine shows follows from what real ones were seen to do; its quirks are those in the comment of package
// scrape: vLLM shows nothing of an unchunked prefill, SGLang's gauges are late and stay for 30 s, llama-server
// answers between two batches.
package lab
