// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seguekv/segue/agent"
	"github.com/seguekv/segue/engines/llamacpp"
	"github.com/seguekv/segue/engines/sim"
	"github.com/seguekv/segue/router"
)

// config is the one file. Each process reads its own section; unknown keys are errors.
type config struct {
	Router router.Config `yaml:"router"`
	Agent  agentConfig   `yaml:"agent"`
}

// agentConfig is the agent's section.
type agentConfig struct {
	agent.Config   `yaml:",inline"`
	SnapshotMemory size         `yaml:"snapshot_memory"`
	Engine         engineConfig `yaml:"engine"`
	GPU            gpuConfig    `yaml:"gpu"`
}

// engineConfig chooses and sizes the engine.
type engineConfig struct {
	// Kind is "llamacpp" or "sim".
	Kind string `yaml:"kind"`
	// Config is llama.cpp's; threads and contexts hold for every kind.
	llamacpp.Config     `yaml:",inline"`
	ReservedForTakeover int        `yaml:"reserved_for_takeover"`
	Sim                 sim.Config `yaml:"sim"`
}

func defaultConfig() config {
	a := agent.DefaultConfig()
	return config{
		Router: router.DefaultConfig(),
		Agent: agentConfig{
			Config: a, SnapshotMemory: size(a.SnapshotMemory), GPU: gpuConfig{Helper: gpuAuto, Devices: []string{}},
			Engine: engineConfig{
				Kind: "llamacpp", Config: llamacpp.DefaultConfig(),
				ReservedForTakeover: a.ReservedForTakeover, Sim: sim.DefaultConfig(),
			},
		},
	}
}

// agent is the agent's configuration with everything in its place.
func (c config) agent() agent.Config {
	a := c.Agent.Config
	a.SnapshotMemory = int64(c.Agent.SnapshotMemory)
	a.ReservedForTakeover = c.Agent.Engine.ReservedForTakeover
	return a
}

// sim is the sim engine's configuration; threads and contexts are the engine's.
func (e engineConfig) sim() sim.Config {
	s := e.Sim
	s.Threads, s.Contexts = e.Threads, e.Contexts
	return s
}

// validateAgent reports all problems of the agent's section.
func (c config) validateAgent() error {
	e := c.Agent.Engine
	errs := []error{c.agent().Validate()}
	switch e.Kind {
	case "llamacpp":
		errs = append(errs, prefix("agent.engine.", e.Config.Validate()))
	case "sim":
		errs = append(errs, prefix("agent.engine.sim.", e.sim().Validate()))
	default:
		errs = append(errs, fmt.Errorf("agent.engine.kind: %q is unknown, want llamacpp or sim", e.Kind))
	}
	if e.ReservedForTakeover >= e.Contexts {
		errs = append(errs, fmt.Errorf("agent.engine.reserved_for_takeover: %d of %d contexts leaves none for new sessions", e.ReservedForTakeover, e.Contexts))
	}
	return errors.Join(errs...)
}

// prefix puts a key prefix before each problem.
func prefix(p string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s%s", p, strings.ReplaceAll(err.Error(), "\n", "\n"+p))
}

// load reads defaults, then the file (if path isn't empty), then the environment (SEGUE_AGENT_LISTEN for
// agent.listen), then overrides of the form key=value.
func load(path string, environ, overrides []string) (config, error) {
	c := defaultConfig()
	if path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return c, fmt.Errorf("read configuration: %w", err)
		}
		if err := decode(b, &c); err != nil {
			return c, fmt.Errorf("%s: %w; the keys are those of segue.example.yaml", path, err)
		}
	}
	keys, err := keys()
	if err != nil {
		return c, err
	}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "SEGUE_AGENT_") && !strings.HasPrefix(name, "SEGUE_ROUTER_") {
			continue
		}
		key, ok := keys[name]
		if !ok {
			return c, fmt.Errorf("environment variable %s fits no configuration key: see segue config print", name)
		}
		if err := override(&c, key, value); err != nil {
			return c, fmt.Errorf("%s=%q: %w", name, value, err)
		}
	}
	for _, kv := range overrides {
		key, value, ok := strings.Cut(kv, "=")
		if !ok {
			return c, fmt.Errorf("--set %q: want KEY=VALUE, for example router.window=16", kv)
		}
		if err := override(&c, key, value); err != nil {
			return c, fmt.Errorf("--set %s: %w", kv, err)
		}
	}
	return c, nil
}

// decode reads YAML over c. Keys that aren't in the file keep their value; unknown ones fail with their line.
func decode(b []byte, c *config) error {
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// override sets one key, given as a.b.c, from a YAML value.
func override(c *config, key, value string) error {
	var b strings.Builder
	parts := strings.Split(key, ".")
	for i, p := range parts {
		fmt.Fprintf(&b, "%s%s:", strings.Repeat("  ", i), p)
		if i < len(parts)-1 {
			b.WriteByte('\n')
		}
	}
	fmt.Fprintf(&b, " %s\n", value)
	return decode([]byte(b.String()), c)
}

// keys maps the name of each key's environment variable to the key.
func keys() (map[string]string, error) {
	b, err := yaml.Marshal(defaultConfig())
	if err != nil {
		return nil, fmt.Errorf("list configuration keys: %w", err)
	}
	var tree map[string]any
	if err := yaml.Unmarshal(b, &tree); err != nil {
		return nil, fmt.Errorf("list configuration keys: %w", err)
	}
	out := make(map[string]string)
	var walk func(path []string, v any)
	walk = func(path []string, v any) {
		if m, ok := v.(map[string]any); ok {
			names := make([]string, 0, len(m))
			for k := range m {
				names = append(names, k)
			}
			sort.Strings(names)
			for _, k := range names {
				walk(append(path[:len(path):len(path)], k), m[k])
			}
			return
		}
		out["SEGUE_"+strings.ToUpper(strings.Join(path, "_"))] = strings.Join(path, ".")
	}
	walk(nil, tree)
	return out, nil
}
