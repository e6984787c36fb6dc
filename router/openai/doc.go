// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package openai is the client's side of the wire: it reads OpenAI-shaped request bodies into
// engines.Request and writes responses, stream chunks, server-sent events and error objects.
//
// It decides nothing about sessions. A request field that would change the meaning of the answer and
// isn't supported is refused with the reason (refused.go); fields without a meaning here are ignored.
// No default system prompt is inserted.
//
// Framing: one JSON object per event, "data: " + object + blank line. A healthy chunk never has a
// top-level "error"; an error event has no "choices".
//
// The package is pure: it does no I/O and starts no goroutine.
package openai
