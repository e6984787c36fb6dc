// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package matrix

import "encoding/json"

// Task is one request that a driver makes: a line of JSON on its standard input.
type Task struct {
	// ID comes back in the result; a driver works on several tasks at once.
	ID      int    `json:"id"`
	BaseURL string `json:"base_url"` // ends in /v1
	APIKey  string `json:"api_key"`
	// Endpoint is "chat" or "completions".
	Endpoint Endpoint `json:"endpoint"`
	Stream   bool     `json:"stream"`
	Model    string   `json:"model"`
	// Prompt is the one user message, or the prompt.
	Prompt string `json:"prompt"`
	// Tools offers the function get_weather.
	Tools bool `json:"tools"`
	// MaxRetries is the client's own; nil is its default.
	MaxRetries *int `json:"max_retries"`
	// RequestID is sent as X-Request-Id.
	RequestID string `json:"request_id"`
}

// Result is what the client's user sees: a line of JSON on the driver's standard output.
type Result struct {
	ID     int     `json:"id"`
	Text   string  `json:"text"`
	Finish *string `json:"finish_reason"`
	// Calls are tool calls that an agent would execute, Partial those of which only a part came.
	Calls   []Call `json:"tool_calls"`
	Partial []Call `json:"partial_calls"`
	Usage   *Usage `json:"usage"`
	Chunks  int    `json:"chunks"`
	Error   *Error `json:"error"`
	// Wire is what curl saw beside that; other drivers leave it out.
	Wire *Wire `json:"wire,omitempty"`
}

// Call is a tool call.
type Call struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Usage is in tokens.
type Usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// Kinds of Error.
const (
	// KindStatus is the client's error for an HTTP status, KindStream for an error event in a stream.
	KindStatus = "status"
	KindStream = "stream"
	// KindTransport is a broken connection, KindOther anything else.
	KindTransport = "transport"
	KindOther     = "other"
)

// Error is what the client threw.
type Error struct {
	Kind    string  `json:"kind"`
	Class   string  `json:"class"`
	Status  *int    `json:"status"`
	Code    *string `json:"code"`
	Message string  `json:"message"`
	// Body is the error object, or what the client keeps of it.
	Body json.RawMessage `json:"body"`
}

// Wire is an answer as it came over the connection.
type Wire struct {
	// Exit is curl's exit code.
	Exit    int                 `json:"exit"`
	Status  int                 `json:"status"`
	Headers map[string][]string `json:"headers"`
	// Trailers are header lines after the body.
	Trailers map[string][]string `json:"trailers"`
	// Events are the data of the stream's events, or the one body; Rest is what follows the last blank line.
	Events []string `json:"events"`
	Rest   string   `json:"rest"`
}
