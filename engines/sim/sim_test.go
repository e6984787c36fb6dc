// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"testing"
	"time"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/engines/sim"
)

// quick is a small model that takes no time.
func quick() sim.Config {
	c := sim.DefaultConfig()
	c.Step, c.PrefillToken = 0, 0
	c.KVBytesPerToken, c.Layers = 256, 4
	c.ContextLength = 1024
	c.Chunk = 32
	return c
}

func newEngine(t testing.TB, c sim.Config) *sim.Engine {
	t.Helper()
	e, err := sim.New(c)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return e
}

func TestEngine_Conforms(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(c *sim.Config)
	}{
		{"Quick", func(*sim.Config) {}},
		{"Timed", func(c *sim.Config) { c.Step, c.PrefillToken = time.Millisecond/2, 10*time.Microsecond }},
		{"OneContext", func(c *sim.Config) { c.Contexts = 1 }},
		{"SmallestRows", func(c *sim.Config) { c.KVBytesPerToken, c.Layers = 6, 3 }},
		{"Verify", func(c *sim.Config) { c.Verify = true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := quick()
			c.change(&cfg)
			enginetest.Run(t, func(t *testing.T) engines.Engine { return newEngine(t, cfg) },
				enginetest.Options{Deterministic: true, FullContext: true})
		})
	}
}
