// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"testing"
	"time"

	"github.com/seguekv/segue/compat"
	"github.com/seguekv/segue/engines/sim"
)

// Settings that change no number must not keep two nodes from pairing.
func TestCase_D6_HarmlessSettingsKeepTheFingerprint(t *testing.T) {
	describe := func(change func(*sim.Config)) compat.Fingerprint {
		c := sim.DefaultConfig()
		change(&c)
		e, err := sim.New(c)
		if err != nil {
			t.Fatal(err)
		}
		d, err := e.Describe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return d.Fingerprint
	}
	base := describe(func(*sim.Config) {})
	for name, change := range map[string]func(*sim.Config){
		"name":           func(c *sim.Config) { c.Model = "other" },
		"step":           func(c *sim.Config) { c.Step = time.Hour },
		"prefill":        func(c *sim.Config) { c.PrefillToken = 0 },
		"context length": func(c *sim.Config) { c.ContextLength = 64 },
		"contexts":       func(c *sim.Config) { c.Contexts = 1 },
		"verify":         func(c *sim.Config) { c.Verify = true },
	} {
		if err := compat.Check(base, describe(change)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*sim.Config){
		"weights": func(c *sim.Config) { c.SeedOfWeights++ },
		"ends":    func(c *sim.Config) { c.EOGEvery = 7 },
		"rows":    func(c *sim.Config) { c.KVBytesPerToken *= 2 },
		"layers":  func(c *sim.Config) { c.Layers /= 2 },
		"chunk":   func(c *sim.Config) { c.Chunk /= 2 },
		"threads": func(c *sim.Config) { c.Threads = 2 },
	} {
		if err := compat.Check(base, describe(change)); err == nil {
			t.Errorf("%s: not refused", name)
		}
	}
}
