// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package openai is the client side of an OpenAI-compatible server that has no plug-in. Such a server's state can't
// be captured, so its answers are served under the strict policy: a retry before the first content, an honest
// error after it. This package reads, judges and rewrites answers; it decides nothing about retries.
//
//	Prepare ─► Server.Open ─► Answer.Next ─► Transcript.Push ─► Step.Emit, Step.Content, Step.Tokens
//	                               │               └─ [DONE] ─► Transcript.Final
//	                               └─ error ─► Transcript.End ─► *EndError
//
// An answer is good when [DONE] came as an event of its own, each choice has one of the finish reasons stop, length,
// tool_calls, function_call and content_filter, and each tool call has a name and arguments that are JSON. Everything else is
// an *EndError, however cleanly the connection ended: "abort", an error object, an end without [DONE], a cut call.
// Finish chunks are held until the judgement, so a client never reads a finish that isn't one.
//
// Tool calls are streamed as they come, because clients expect that and run a call only when its arguments are whole.
// With Rules.HoldToolCalls they are held, bounded, until the answer is known to be good: nothing of an answer that only
// calls tools is committed before, so it can be retried to its end. The price is that a client sees no arguments grow.
//
// The envelope is the router's: id, created, model, system_fingerprint, one role per choice, call ids, and usage
// only for who asked for it. Everything else of a chunk is copied byte for byte, except that line ends between JSON
// tokens become spaces.
//
// Parser, Chunk, Rewriter and Transcript do no I/O of their own, read no clock and start no goroutine. Only Server
// and Answer do; neither starts a goroutine beyond those of net/http. Nothing here logs. Limits: each line, event, body,
// held chunk and nesting depth.
package openai
