// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"errors"
	"fmt"
)

var (
	// ErrUnavailable means that the storage fails or is too slow: what was asked for isn't durable. Journal.Healthy
	// says why.
	ErrUnavailable = errors.New("journal: storage is not available")
	// ErrFull means that a bound of Options is reached.
	ErrFull = errors.New("journal: full")
	// ErrFinished means that the request has already ended.
	ErrFinished = errors.New("journal: the request has ended")
	// ErrClosed means that Run has returned.
	ErrClosed = errors.New("journal: closed")
	// ErrInvalid means input that no record can hold.
	ErrInvalid = errors.New("journal: invalid")
	// ErrLocked means that another process has the file.
	ErrLocked = errors.New("journal: another router uses it")
	// ErrFormat means a file, or a record in it, that this version doesn't read.
	ErrFormat = errors.New("journal: unreadable format")
	// ErrNotClaimed means a result for an action that nobody claimed.
	ErrNotClaimed = errors.New("journal: the action was never claimed")
)

// RunningError says that the key's request has not ended.
type RunningError struct{ Request Request }

func (e *RunningError) Error() string {
	return "a request with this Idempotency-Key is still running: " + e.Request.RequestID
}

// PayloadError says that the key was used with another request body.
type PayloadError struct{ Request Request }

func (e *PayloadError) Error() string {
	return "this Idempotency-Key was used with another request body, in request " + e.Request.RequestID
}

// FinishedError says that the key's request has finished. Answer is nil when none was retained.
type FinishedError struct {
	Request Request
	Answer  *Answer
}

func (e *FinishedError) Error() string {
	return "the request with this Idempotency-Key has finished: " + e.Request.RequestID
}

// InterruptedError says that the key's request failed when output had been or may have been delivered. Request.Error
// is the recorded error object.
type InterruptedError struct{ Request Request }

func (e *InterruptedError) Error() string {
	return fmt.Sprintf("the request with this Idempotency-Key was interrupted after %d output tokens: %s",
		e.Request.Delivered, e.Request.RequestID)
}

// ArgumentsError says that the action was claimed with other arguments.
type ArgumentsError struct{ Request, Call string }

func (e *ArgumentsError) Error() string {
	return "the action " + e.Request + ":" + e.Call + " was claimed with other arguments"
}
