// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/decode"
)

var _ engines.Engine = (*Engine)(nil)

// Engine is one simulated engine process. Its zero value isn't usable.
type Engine struct {
	loop        decode.Config
	description engines.Description
	counters    decode.Counters
	// free holds the models, one a context, that no run uses. Its capacity is the number of contexts.
	free chan *model
}

// New returns an engine with a boot id of its own.
func New(c Config) (*Engine, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("validate sim configuration: %w", err)
	}
	e := &Engine{
		loop: c.loop(),
		description: engines.Description{
			Kind:          "sim",
			Model:         c.Model,
			Fingerprint:   c.fingerprint(),
			Geometry:      c.geometry(),
			ContextLength: c.ContextLength,
			Contexts:      c.Contexts,
			Vocabulary:    vocabulary,
		},
		free: make(chan *model, c.Contexts),
	}
	if _, err := rand.Read(e.description.Boot[:]); err != nil {
		return nil, fmt.Errorf("make boot id: %w", err)
	}
	for range c.Contexts {
		e.free <- newModel(c)
	}
	return e, nil
}

// Describe returns a copy whose geometry is shared and read-only.
func (e *Engine) Describe(context.Context) (*engines.Description, error) {
	d := e.description
	return &d, nil
}

// Run implements engines.Engine.
func (e *Engine) Run(ctx context.Context, job engines.Job, sink engines.Sink) error {
	select {
	case m := <-e.free:
		m.ctx = ctx
		defer func() {
			m.ctx = nil
			m.cache.reset()
			e.free <- m
		}()
		return decode.Run(ctx, e.loop, m, &e.counters, job, sink)
	default:
		return fmt.Errorf("%w: all %d are in use; try another engine or again later", engines.ErrNoCapacity, cap(e.free))
	}
}

// Observe implements engines.Engine.
func (e *Engine) Observe(context.Context) (engines.Facts, error) {
	return e.counters.Facts(), nil
}
