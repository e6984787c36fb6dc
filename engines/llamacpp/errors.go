// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package llamacpp

import (
	"errors"
	"fmt"
)

// ErrBlob means that bytes are not a state blob of the expected layout.
var ErrBlob = errors.New("llamacpp: state blob refused")

// PartError is a part of the engine that is missing or unusable on this machine.
type PartError struct {
	// Part is what is missing: "engine host", "library", "model", "libffi".
	Part string
	// Path is where it was looked for; empty when there is no single place.
	Path string
	// Problem is what is wrong with it.
	Problem string
	// Hint is what to do next, for example "run: make deps".
	Hint string
}

func (e *PartError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("llamacpp: %s: %s; %s", e.Part, e.Problem, e.Hint)
	}
	return fmt.Sprintf("llamacpp: %s %s: %s; %s", e.Part, e.Path, e.Problem, e.Hint)
}
