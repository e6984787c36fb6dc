// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"encoding/json"
	"net/http"
	"time"
)

// Codes of error objects that clients branch on.
const (
	CodeInvalidRequest = "invalid_request"
	CodeUnsupported    = "unsupported_parameter"
	CodeContextLength  = "context_length_exceeded"
	CodeModelNotFound  = "model_not_found"
	CodeNotFound       = "not_found"
	CodeBadMethod      = "method_not_allowed"
	CodeTooLarge       = "request_too_large"
	CodeNoCapacity     = "no_capacity"
	CodeUnavailable    = "upstream_unavailable"
	CodeUnprotected    = "protection_unavailable"
	CodeClientGone     = "client_closed_request"
	CodeBadKey         = "invalid_api_key"
	CodeKeyRunning     = "idempotency_key_running"
	CodeKeyReused      = "idempotency_key_reused"
	CodeKeyFinished    = "idempotency_key_finished"
	CodeArguments      = "action_arguments_differ"
	CodeNotClaimed     = "action_not_claimed"
	// CodeInterrupted is the end of a stream that has already carried content.
	CodeInterrupted = "upstream_decode_interrupted"
)

// Error is one error object with its HTTP status. Over HTTP it is the whole body; in a stream it is the
// last event.
type Error struct {
	Status  int
	Message string
	Code    string
	// Param is the request field concerned, as the client spells it.
	Param     string
	RequestID string
	// PartialOutput says that content reached the client's connection before.
	PartialOutput bool
	// Delivered counts output tokens whose whole text was handed to the connection.
	Delivered int
	Retryable bool
	// Final errors tell clients' libraries not to repeat the request by themselves, whatever the status.
	Final bool
	// Recorded is an error object of an earlier answer, which stands for everything above but Status and Final.
	Recorded json.RawMessage
	// Upstream is the message, type, code and param of a server's own error object.
	Upstream *UpstreamError
	// Cause is why the upstream attempt ended, from the router's enumeration.
	Cause string
	// Detail says more about Cause, e.g. why a takeover was refused.
	Detail string
	// RetryAfter is sent as a header when positive, in whole seconds, rounded up.
	RetryAfter time.Duration
}

func (e *Error) Error() string { return e.Message }

// Invalid is a 400 about one request field.
func Invalid(param, message string) *Error {
	return &Error{Status: http.StatusBadRequest, Code: CodeInvalidRequest, Param: param, Message: message}
}

// Unsupported is a 400 about a field that would change the answer's meaning.
func Unsupported(param, message string) *Error {
	return &Error{Status: http.StatusBadRequest, Code: CodeUnsupported, Param: param, Message: message}
}

func (e *Error) kind() string {
	switch {
	case e.Status == http.StatusUnauthorized:
		return "authentication_error"
	case e.Status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case e.Status >= 400 && e.Status < 500:
		return "invalid_request_error"
	}
	return "server_error"
}

// Body is the JSON object {"error": {…}}.
func (e *Error) Body() []byte {
	if e.Recorded != nil {
		return encode(struct {
			Error json.RawMessage `json:"error"`
		}{e.Recorded})
	}
	var o struct {
		Error errorObject `json:"error"`
	}
	o.Error = errorObject{
		Message: e.Message, Type: e.kind(), Code: e.Code, Param: e.Param, RequestID: e.RequestID,
		PartialOutput: e.PartialOutput, Delivered: e.Delivered, Retryable: e.Retryable,
		Cause: e.Cause, Detail: e.Detail,
	}
	e.Upstream.apply(&o.Error)
	return encode(o)
}

type errorObject struct {
	Code          string `json:"code"`
	Message       string `json:"message"`
	Type          string `json:"type"`
	Param         string `json:"param,omitempty"`
	RequestID     string `json:"request_id"`
	PartialOutput bool   `json:"partial_output"`
	Delivered     int    `json:"delivered_output_tokens"`
	Retryable     bool   `json:"retryable"`
	Cause         string `json:"cause,omitempty"`
	Detail        string `json:"detail,omitempty"`
}

var _ json.Marshaler = (*Error)(nil)

// MarshalJSON is the inner object, without the "error" wrapper.
func (e *Error) MarshalJSON() ([]byte, error) {
	body := e.Body()
	const wrap = len(`{"error":`)
	return body[wrap : len(body)-1], nil
}
