// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package engines

import (
	"errors"
	"fmt"
)

var (
	// ErrCanceled means the run's context ended. Nothing is wrong with the engine.
	ErrCanceled = errors.New("engines: run cancelled")
	// ErrNoCapacity means no context is free. Transient.
	ErrNoCapacity = errors.New("engines: no free context")
	// ErrLost means the engine's process is gone. A run elsewhere may continue.
	ErrLost = errors.New("engines: engine lost")
	// ErrNotReady means the engine is starting. Transient.
	ErrNotReady = errors.New("engines: engine not ready")
	// ErrState means a state doesn't fit the engine or itself. Permanent for that state.
	ErrState = errors.New("engines: state refused")
)

// RequestError is a request that can never run here. Permanent.
type RequestError struct {
	// Field is the request's field, as clients name it.
	Field  string
	Reason string
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("engines: invalid %s: %s", e.Field, e.Reason)
}

// PromptTooLongError is a prompt that leaves no room for output. Permanent.
type PromptTooLongError struct {
	Tokens, Limit int
}

func (e *PromptTooLongError) Error() string {
	return fmt.Sprintf("engines: prompt has %d tokens, the context holds %d with at least one output token", e.Tokens, e.Limit)
}
