// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/seguekv/segue/engines/decode"
	"github.com/seguekv/segue/snapshot"
)

// Limits of Config.
const (
	maxContexts = 4096
	maxThreads  = 4096
	maxChunk    = 8192
)

// elementType is that of the rows' elements, which mean nothing.
const elementType = "sim"

// Config is the shape and the speed of the pseudo-model.
type Config struct {
	// Model is the name clients ask for.
	Model string `yaml:"model"`
	// SeedOfWeights stands for the weights: engines with different seeds are different models.
	SeedOfWeights uint64 `yaml:"seed_of_weights"`
	// Step is the time of one decode step, from 0.
	Step time.Duration `yaml:"step"`
	// PrefillToken is the time per prompt token, from 0.
	PrefillToken time.Duration `yaml:"prefill_token"`
	// KVBytesPerToken is the size of a token's row: a multiple of twice the number of layers.
	KVBytesPerToken int `yaml:"kv_bytes_per_token"`
	Layers          int `yaml:"layers"`
	// ContextLength is in tokens, prompt and output together.
	ContextLength int `yaml:"context_length"`
	// Contexts is how many runs may be active at once; whoever configures the engine gives it, and Threads.
	Contexts int `yaml:"-"`
	// Chunk is the number of prompt tokens per prefill chunk.
	Chunk int `yaml:"chunk"`
	// Threads is in the fingerprint and has no other effect.
	Threads int `yaml:"-"`
	// Verify reads the whole cache again at every step: slow, and finds damage done after a row was written.
	Verify bool `yaml:"verify"`
	// EOGEvery makes about one in so many tokens the end of a greedy generation; 0 = the model never ends one.
	EOGEvery int `yaml:"eog_every"`
}

// DefaultConfig plays an 8B model on a fast accelerator.
func DefaultConfig() Config {
	return Config{
		Model:           "sim",
		SeedOfWeights:   1,
		Step:            7 * time.Millisecond,
		PrefillToken:    time.Millisecond,
		KVBytesPerToken: 128 << 10,
		Layers:          32,
		ContextLength:   8192,
		Contexts:        4,
		Chunk:           64,
		Threads:         1,
	}
}

// Validate reports every problem, by key.
func (c Config) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	within := func(key string, v, low, high int) bool {
		if v < low || v > high {
			bad(key, "is %d, want %d..%d", v, low, high)
			return false
		}
		return true
	}
	if c.Model == "" {
		bad("model", "is empty; give the name clients ask for")
	}
	if c.Step < 0 {
		bad("step", "is %v, want 0 or more", c.Step)
	}
	if c.PrefillToken < 0 {
		bad("prefill_token", "is %v, want 0 or more", c.PrefillToken)
	}
	layers := within("layers", c.Layers, 1, snapshot.MaxLayers)
	if bytes := within("kv_bytes_per_token", c.KVBytesPerToken, 1, snapshot.MaxRowBytes); bytes && layers && c.KVBytesPerToken%(2*c.Layers) != 0 {
		bad("kv_bytes_per_token", "is %d, want a multiple of %d (a K and a V row in each of %d layers)", c.KVBytesPerToken, 2*c.Layers, c.Layers)
	}
	within("context_length", c.ContextLength, 2, snapshot.MaxTokens)
	within("contexts", c.Contexts, 1, maxContexts)
	within("chunk", c.Chunk, 1, maxChunk)
	within("threads", c.Threads, 1, maxThreads)
	if c.EOGEvery < 0 {
		bad("eog_every", "is %d, want 0 or more", c.EOGEvery)
	}
	return errors.Join(errs...)
}

// geometry is the canonical row layout.
func (c Config) geometry() snapshot.Geometry {
	half := c.KVBytesPerToken / (2 * c.Layers)
	g := snapshot.Geometry{Layers: make([]snapshot.LayerRows, c.Layers)}
	for i := range g.Layers {
		g.Layers[i] = snapshot.LayerRows{KBytes: half, VBytes: half, KType: elementType, VType: elementType}
	}
	return g
}

func (c Config) loop() decode.Config {
	return decode.Config{Geometry: c.geometry(), ContextLength: c.ContextLength, Chunk: c.Chunk}
}
