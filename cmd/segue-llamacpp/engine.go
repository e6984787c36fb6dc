// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"

	"github.com/seguekv/segue/compat"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/decode"
	"github.com/seguekv/segue/engines/llamacpp"
)

// kind is the engine's name in descriptions and fingerprints.
const kind = "llamacpp"

// engine implements engines.Engine over a pool of contexts that are created at start, since creating one
// takes as long as dozens of tokens.
type engine struct {
	description engines.Description
	config      decode.Config
	// free holds the contexts that no run uses; its capacity is the number of contexts.
	free     chan *modelContext
	counters decode.Counters
}

// newEngine creates the contexts of a model and proves on the first of them that a restored state continues
// exactly. The model must outlive the engine.
func newEngine(m *model, c llamacpp.Config) (*engine, error) {
	e := &engine{free: make(chan *modelContext, c.Contexts)}
	if err := e.init(m, c); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *engine) init(m *model, c llamacpp.Config) error {
	if trained := int(m.traits.trainedContext); c.ContextLength > trained {
		return fmt.Errorf("context_length: %d is more than the %d the model is made for", c.ContextLength, trained)
	}
	// Digests need no context: they are computed beside the touching of the contexts' memory.
	var wg sync.WaitGroup
	defer wg.Wait()
	var fp compat.Fingerprint
	var fpErr error
	wg.Go(func() { fp, fpErr = fingerprint(m, c) })

	layout, err := e.fill(m, c)
	if err != nil {
		return err
	}
	wg.Wait()
	if fpErr != nil {
		return fpErr
	}
	e.config = decode.Config{Geometry: layout.Geometry(), ContextLength: c.ContextLength, Chunk: c.PrefillChunk}
	e.description = engines.Description{
		Kind: kind, Model: c.ModelName(), Fingerprint: fp, Geometry: layout.Geometry(),
		ContextLength: c.ContextLength, Contexts: c.Contexts, Vocabulary: m.size(),
	}
	_, err = rand.Read(e.description.Boot[:])
	return err
}

// fill creates the contexts.
func (e *engine) fill(m *model, c llamacpp.Config) (*llamacpp.Layout, error) {
	var layout *llamacpp.Layout
	for i := range c.Contexts {
		next, err := newContext(m, c.ContextLength, c.Threads)
		if err != nil {
			return nil, err
		}
		e.free <- next
		if i > 0 {
			next.layout = layout
			continue
		}
		if err := next.probe(); err != nil {
			return nil, fmt.Errorf("find row layout: %w", err)
		}
		if err := canary(next, next.layout.Geometry()); err != nil {
			return nil, fmt.Errorf("start-up canary: %w", err)
		}
		layout = next.layout
	}
	return layout, nil
}

// close frees the contexts. No run may be active or follow.
func (e *engine) close() {
	for range len(e.free) {
		(<-e.free).free()
	}
}

// Describe implements engines.Engine.
func (e *engine) Describe(context.Context) (*engines.Description, error) {
	d := e.description
	return &d, nil
}

// Run implements engines.Engine.
func (e *engine) Run(ctx context.Context, job engines.Job, sink engines.Sink) error {
	select {
	case c := <-e.free:
		defer func() { e.free <- c }()
		return decode.Run(ctx, e.config, c, &e.counters, job, sink)
	default:
		return engines.ErrNoCapacity
	}
}

// Observe implements engines.Engine.
func (e *engine) Observe(context.Context) (engines.Facts, error) { return e.counters.Facts(), nil }
