// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"bytes"
	"encoding/json"
)

// ContentType is that of a stream.
const ContentType = "text/event-stream; charset=utf-8"

// Whole events.
const (
	// KeepAlive is a comment: clients skip it, proxies see traffic.
	KeepAlive = ": keep-alive\n\n"
	// Done ends a successful stream.
	Done = "data: [DONE]\n\n"
	// EventBegin and EventEnd stand around one line of JSON.
	EventBegin = "data: "
	EventEnd   = "\n\n"
)

// AppendEvent appends payload, one line of JSON, as one event.
func AppendEvent(dst, payload []byte) []byte {
	dst = append(dst, EventBegin...)
	dst = append(dst, payload...)
	return append(dst, EventEnd...)
}

// encode is json.Marshal without HTML escapes. v is one of this package's types, which always encode.
func encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("openai: encode: " + err.Error())
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
