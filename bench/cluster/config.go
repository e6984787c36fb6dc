// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/seguekv/segue/engines/llamacpp"
)

// Kinds of engine.
const (
	EngineLlamaCPP = "llamacpp"
	EngineSim      = "sim"
)

// Engine says what the nodes compute with. Both nodes get the same.
type Engine struct {
	// Kind is EngineLlamaCPP or EngineSim.
	Kind string
	// Model is the GGUF file and Library the directory with libllama.so; llamacpp only.
	Model, Library string
	// Threads per engine; 0 leaves the agent's default.
	Threads int
	// Step, PrefillToken, KVBytesPerToken, Layers and ContextLength describe the pseudo-model of the sim engine;
	// zero leaves the agent's default.
	Step, PrefillToken      time.Duration
	KVBytesPerToken, Layers int
	ContextLength           int
}

// Config describes a cluster.
type Config struct {
	// Binary is the segue program; its engine hosts are found beside it by the agent.
	Binary string
	// Dir receives configuration and log files. It must exist.
	Dir string
	// Nodes are the ids of the agents, at least one.
	Nodes  []string
	Engine Engine
	// ReadyTimeout bounds each start and restart.
	ReadyTimeout time.Duration
	// OnStep is told of each part of the set-up when it is done.
	OnStep func(Step)
	// Logf receives what is being waited for and other progress, one line per call.
	Logf func(format string, args ...any)
}

// Step is one part of the set-up and how long it took.
type Step struct {
	Name  string
	Took  time.Duration
	Where string // address
}

func (s Step) String() string {
	return fmt.Sprintf("%6.2f s  %-13s %s", s.Took.Seconds(), s.Name, s.Where)
}

// Validate reports every problem of the configuration, and for missing files what to do about them.
func (c Config) Validate() error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Binary == "" || c.Dir == "" || c.Logf == nil || c.OnStep == nil || c.ReadyTimeout <= 0 {
		add("cluster needs a binary, a directory, progress functions and a ready timeout")
	}
	if len(c.Nodes) == 0 {
		add("cluster needs at least one node")
	}
	problems = append(problems, c.Engine.Validate())
	return errors.Join(problems...)
}

// Validate reports every problem of the engine's settings.
func (e Engine) Validate() error {
	var problems []error
	switch e.Kind {
	case EngineSim:
	case EngineLlamaCPP:
		if info, err := os.Stat(e.Model); err != nil || info.IsDir() {
			problems = append(problems, fmt.Errorf("model file %q not found: run `make deps`, or give your own with --model", e.Model))
		}
		if _, err := os.Stat(filepath.Join(e.Library, "libllama.so")); err != nil {
			problems = append(problems, fmt.Errorf("libllama.so not found in %q: run `make deps`, or give your own directory with --llama-lib", e.Library))
		}
	default:
		problems = append(problems, fmt.Errorf("unknown engine %q: use llamacpp or sim", e.Kind))
	}
	if e.Threads < 0 || e.Step < 0 || e.PrefillToken < 0 || e.KVBytesPerToken < 0 || e.Layers < 0 || e.ContextLength < 0 {
		problems = append(problems, errors.New("engine settings must not be negative"))
	}
	return errors.Join(problems...)
}

// CachedParts returns the model file and library directory that `make deps` puts into the cache. Nothing is checked.
func CachedParts() (model, library string) {
	var c llamacpp.Config
	return c.ModelPath(), c.LibraryPath()
}

// agentYAML is the configuration file of a node. Addresses and the id are flags, so that a restart can repeat them.
func (e Engine) agentYAML() string {
	var b strings.Builder
	line := func(indent int, key, value string) {
		fmt.Fprintf(&b, "%s%s: %s\n", strings.Repeat("  ", indent), key, value)
	}
	number := func(indent int, key string, n int) {
		if n > 0 {
			line(indent, key, strconv.Itoa(n))
		}
	}
	duration := func(indent int, key string, d time.Duration) {
		if d > 0 {
			line(indent, key, d.String())
		}
	}
	b.WriteString("agent:\n  engine:\n")
	line(2, "kind", e.Kind)
	number(2, "threads", e.Threads)
	if e.Kind == EngineLlamaCPP {
		line(2, "model", strconv.Quote(e.Model))
		line(2, "library", strconv.Quote(e.Library))
		number(2, "context_length", e.ContextLength)
		return b.String()
	}
	if e.Step > 0 || e.PrefillToken > 0 || e.KVBytesPerToken > 0 || e.Layers > 0 || e.ContextLength > 0 {
		b.WriteString("    sim:\n")
		duration(3, "step", e.Step)
		duration(3, "prefill_token", e.PrefillToken)
		number(3, "kv_bytes_per_token", e.KVBytesPerToken)
		number(3, "layers", e.Layers)
		number(3, "context_length", e.ContextLength)
	}
	return b.String()
}
