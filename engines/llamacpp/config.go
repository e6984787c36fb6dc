// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package llamacpp

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Limits of a configuration.
const (
	MaxThreads       = 1024
	MaxContexts      = 1024
	MaxContextLength = 1 << 20
	// BatchSize is n_batch and n_ubatch of every context: the largest prefill chunk.
	BatchSize = 512
)

// Config configures one engine host.
type Config struct {
	// Model is the path of a GGUF file; empty is the one in the cache.
	Model string `yaml:"model"`
	// Library is the folder with libllama.so and its companions; empty is the one in the cache.
	Library string `yaml:"library"`
	// Name is the model's name for clients; empty derives it from the path of the model.
	Name string `yaml:"name"`
	// Threads compute each context. More than one changes the numerics, and with them the fingerprint.
	Threads int `yaml:"threads"`
	// Contexts is how many runs may be active at once. Each takes the memory of a full context.
	Contexts int `yaml:"contexts"`
	// ContextLength is the largest number of prompt and output tokens of a run.
	ContextLength int `yaml:"context_length"`
	// PrefillChunk is the number of prompt tokens computed at once; part of the fingerprint. Range 1..512.
	PrefillChunk int `yaml:"prefill_chunk"`
}

// DefaultConfig is a host with the cached model, one thread and four contexts of 4096 tokens.
func DefaultConfig() Config {
	return Config{Threads: 1, Contexts: 4, ContextLength: 4096, PrefillChunk: 64}
}

// Validate reports all values out of range. It doesn't look for files: CheckModel and CheckLibrary do.
func (c Config) Validate() error {
	var errs []error
	in := func(key string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s: %d is not in %d..%d", key, v, low, high))
		}
	}
	in("threads", c.Threads, 1, MaxThreads)
	in("contexts", c.Contexts, 1, MaxContexts)
	in("context_length", c.ContextLength, 16, MaxContextLength)
	in("prefill_chunk", c.PrefillChunk, 1, BatchSize)
	if len(c.Name) > 256 || strings.ContainsAny(c.Name, " \t\r\n") {
		errs = append(errs, fmt.Errorf("name: %q has white space or more than 256 bytes", c.Name))
	}
	return errors.Join(errs...)
}

// ModelPath is Model, or the place of the cached model.
func (c Config) ModelPath() string {
	return cmp.Or(c.Model, filepath.Join(CacheDir(), modelFolder, "model.gguf"))
}

// LibraryPath is Library, or the place of the cached library.
func (c Config) LibraryPath() string {
	return cmp.Or(c.Library, filepath.Join(CacheDir(), libraryFolder))
}

// ModelName is Name, or the model file's name without ".gguf", or the folder's name where the file is just
// "model.gguf".
func (c Config) ModelName() string {
	if c.Name != "" {
		return c.Name
	}
	p := c.ModelPath()
	if abs, err := filepath.Abs(p); err == nil {
		p = abs
	}
	if base := strings.TrimSuffix(filepath.Base(p), ".gguf"); base != "model" {
		return base
	}
	return filepath.Base(filepath.Dir(p))
}

// Args are the arguments of the engine host, without its name.
func (c Config) Args() []string {
	args := []string{
		"--model", c.ModelPath(),
		"--llama-lib", c.LibraryPath(),
		"--threads", strconv.Itoa(c.Threads),
		"--contexts", strconv.Itoa(c.Contexts),
		"--context-length", strconv.Itoa(c.ContextLength),
		"--chunk", strconv.Itoa(c.PrefillChunk),
	}
	if c.Name != "" {
		args = append(args, "--name", c.Name)
	}
	return args
}

// Names of the folders that "make deps" fills.
const (
	libraryFolder = "llamacpp-v0.5.0"
	modelFolder   = "smollm2-135m-instruct-q4_1"
)

// CacheDir is where "make deps" puts parts: $SEGUE_CACHE, or segue in the user's cache folder.
func CacheDir() string {
	if d := os.Getenv("SEGUE_CACHE"); d != "" {
		return d
	}
	if d := os.Getenv("XDG_CACHE_HOME"); d != "" {
		return filepath.Join(d, "segue")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "."
	}
	return filepath.Join(home, ".cache", "segue")
}
