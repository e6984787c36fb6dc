// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package decode

import (
	"errors"
	"fmt"

	"github.com/seguekv/segue/snapshot"
)

// Config is what the loop must know of an engine's contexts. It is the same for all of them.
type Config struct {
	// Geometry is the layout of captured rows and the only one that is accepted in states.
	Geometry snapshot.Geometry
	// ContextLength is the number of positions of a context, prompt and output together.
	ContextLength int
	// Chunk is the number of prompt positions per prefill call. It belongs to an engine's fingerprint.
	Chunk int
}

// Validate reports every problem of the configuration.
func (c Config) Validate() error {
	var errs []error
	if err := c.Geometry.Validate(); err != nil {
		errs = append(errs, err)
	}
	if c.ContextLength < 2 || c.ContextLength > snapshot.MaxTokens {
		errs = append(errs, fmt.Errorf("context length is %d, want 2..%d", c.ContextLength, snapshot.MaxTokens))
	}
	if c.Chunk < 1 {
		errs = append(errs, fmt.Errorf("prefill chunk is %d tokens, want at least 1", c.Chunk))
	}
	return errors.Join(errs...)
}
