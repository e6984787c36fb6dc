// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// Cause is why an answer ended without success. The values are those of records, metrics and error objects.
type Cause string

// Causes.
const (
	// CauseConnect: no connection was made, so nothing of the request was sent.
	CauseConnect Cause = "connect"
	// CauseReset: the connection broke after it was made.
	CauseReset Cause = "reset"
	// CauseEOFNoFinish: the answer ended cleanly without a finish reason for every choice, or without [DONE].
	CauseEOFNoFinish Cause = "eof_no_finish"
	// CauseStall: a deadline passed.
	CauseStall Cause = "stall"
	// CauseEngineAbort: a finish reason that isn't a success, such as "abort".
	CauseEngineAbort Cause = "engine_abort"
	// CauseEngineErrorEvent: an error object, or an HTTP status that says that the server failed.
	CauseEngineErrorEvent Cause = "engine_error_event"
	// CauseMalformedFrame: not JSON, not UTF-8, over a limit, or content after a finish.
	CauseMalformedFrame Cause = "malformed_frame"
	// CauseInvalidToolJSON: a tool call without a name, or whose arguments aren't JSON.
	CauseInvalidToolJSON Cause = "invalid_tool_json"
	// CauseNoCapacity: status 429.
	CauseNoCapacity Cause = "no_capacity"
	// CauseNotReady: status 503.
	CauseNotReady Cause = "not_ready"
	// CauseInvalidRequest: a 4xx status that any other server would repeat.
	CauseInvalidRequest Cause = "invalid_request"
	// CauseClientGone: the caller's context was cancelled without an *EndError as its cause.
	CauseClientGone Cause = "client_gone"
)

// EndError says how an answer ended without success.
type EndError struct {
	Cause Cause
	// Detail is for people. It holds no prompt, no output and no key.
	Detail string
	// Deterministic: another server with the same model would end the same way, so a retry is useless.
	Deterministic bool
	// Status is the HTTP status of a refusal, or the status an error event names; 0 = none.
	Status int
	// RetryAfter is what the server asks for; 0 = nothing said.
	RetryAfter time.Duration
	// Object is the server's error as it was sent: a JSON value or whatever the body was, cut at
	// Limits.ErrorBody. It is not part of Error(), because servers quote requests in it.
	Object []byte
	// Err is the underlying error, if any.
	Err error
}

// Error is the cause with its detail.
func (e *EndError) Error() string {
	if e.Detail == "" {
		return string(e.Cause)
	}
	return string(e.Cause) + ": " + e.Detail
}

// Unwrap returns Err.
func (e *EndError) Unwrap() error { return e.Err }

// NeverSent reports that nothing of the request left this process.
func (e *EndError) NeverSent() bool { return e.Cause == CauseConnect }

var (
	// ErrUnfinished: the input ended inside a line or an event. What was unfinished is dropped.
	ErrUnfinished = errors.New("openai: stream ends inside an event")
	// ErrTooLong: a line or an event is over the parser's limit.
	ErrTooLong = errors.New("openai: line or event over the limit")
)

func ended(c Cause, format string, args ...any) *EndError {
	return &EndError{Cause: c, Detail: fmt.Sprintf(format, args...)}
}

// readEnd says what an error of a parser or of a body's reader means.
func readEnd(err error) *EndError {
	if e, ok := errors.AsType[*EndError](err); ok {
		return e
	}
	switch {
	case errors.Is(err, io.EOF):
		return &EndError{Cause: CauseEOFNoFinish, Detail: "the stream ends without [DONE]", Err: err}
	case errors.Is(err, ErrUnfinished):
		return &EndError{Cause: CauseEOFNoFinish, Detail: "the stream ends inside an event", Err: err}
	case errors.Is(err, ErrTooLong):
		return &EndError{Cause: CauseMalformedFrame, Detail: "a line or an event is over the limit", Err: err}
	}
	return &EndError{Cause: CauseReset, Detail: "the connection broke", Err: err}
}

// errorObjectLimit bounds EndError.Object of an error event, in bytes.
const errorObjectLimit = 64 << 10

// deterministic reports a status that another server would repeat: 4xx but for time-outs, conflicts and limits.
func deterministic(status int) bool {
	switch status {
	case 408, 409, 425, 429:
		return false
	}
	return status >= 400 && status < 500
}
