// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/seguekv/segue/compat"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/engines/sim"
)

func TestConfig_ReadsEveryKey(t *testing.T) {
	const file = `
model: other
seed_of_weights: 7
step: 250us
prefill_token: 2ms
kv_bytes_per_token: 4096
layers: 8
context_length: 2048
chunk: 16
verify: true
eog_every: 50
`
	want := sim.Config{
		Model: "other", SeedOfWeights: 7, Step: 250 * time.Microsecond, PrefillToken: 2 * time.Millisecond,
		KVBytesPerToken: 4096, Layers: 8, ContextLength: 2048, Contexts: 4, Chunk: 16, Threads: 1, Verify: true, EOGEvery: 50,
	}
	got := sim.DefaultConfig()
	d := yaml.NewDecoder(strings.NewReader(file))
	d.KnownFields(true)
	if err := d.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("configuration (-want +got):\n%s", d)
	}
	if err := got.Validate(); err != nil {
		t.Errorf("Validate: %v", err)
	}
}

func TestConfig_ValidateReportsAllProblems(t *testing.T) {
	if err := sim.DefaultConfig().Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	bad := sim.Config{Step: -1, PrefillToken: -1, EOGEvery: -1}
	err := bad.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, key := range []string{
		"model", "step", "prefill_token", "kv_bytes_per_token", "layers", "context_length", "contexts", "chunk", "threads", "eog_every",
	} {
		if !strings.Contains("\n"+err.Error(), "\n"+key+": ") {
			t.Errorf("%s isn't in %q", key, err)
		}
	}
	odd := sim.DefaultConfig()
	odd.KVBytesPerToken = 1000
	if err := odd.Validate(); err == nil || !strings.Contains(err.Error(), "multiple of 64") {
		t.Errorf("1000 bytes in 32 layers: %v", err)
	}
	if _, err := sim.New(odd); err == nil {
		t.Error("New takes a bad configuration")
	}
}

func TestEngine_FingerprintNamesWhatDiffers(t *testing.T) {
	base := mustDescribe(t, newEngine(t, quick())).Fingerprint
	if err := base.Validate(); err != nil {
		t.Errorf("Validate: %v", err)
	}
	for _, c := range []struct {
		name   string
		change func(c *sim.Config)
		want   []string
	}{
		{"Same", func(c *sim.Config) {
			c.Contexts, c.ContextLength, c.Step, c.Verify, c.Model = 1, 99, 1, true, "renamed"
		}, nil},
		{"Weights", func(c *sim.Config) { c.SeedOfWeights++ }, []string{"weights_digest"}},
		{"End", func(c *sim.Config) { c.EOGEvery = 5 }, []string{"weights_digest"}},
		{"Threads", func(c *sim.Config) { c.Threads++ }, []string{"threads"}},
		{"Chunk", func(c *sim.Config) { c.Chunk++ }, []string{"micro_batch", "prefill_chunk"}},
		{"Layers", func(c *sim.Config) { c.Layers *= 2 }, []string{"layers", "head_dim"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := quick()
			c.change(&cfg)
			err := compat.Check(mustDescribe(t, newEngine(t, cfg)).Fingerprint, base)
			var got []string
			if m, ok := errors.AsType[*compat.MismatchError](err); ok {
				got = m.Fields()
			} else if err != nil {
				t.Fatal(err)
			}
			slices.Sort(got)
			slices.Sort(c.want)
			if !slices.Equal(got, c.want) {
				t.Errorf("mismatches %q, want %q", got, c.want)
			}
		})
	}
}

func TestEngine_WeightsDecideTheTokens(t *testing.T) {
	run := func(c sim.Config) []int32 {
		e := newEngine(t, c)
		r := enginetest.NewRecorder(mustDescribe(t, e).Geometry, true)
		if err := e.Run(t.Context(), engines.Job{Capture: true, Request: greedy(3)}, r); err != nil {
			t.Fatal(err)
		}
		return r.IDs()
	}
	a, b := quick(), quick()
	b.SeedOfWeights++
	if x, y := run(a), run(b); x[0] == y[0] {
		t.Errorf("two models begin with %d", x[0])
	}
}
