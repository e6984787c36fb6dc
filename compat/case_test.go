// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package compat_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/compat"
)

// Tests named TestCase_<number> show that a failure which another product was reported for doesn't happen here.

// An adapter is its content and its scale. It has no name in the fingerprint, so that two adapters can't share a cache
// because somebody gave them the same one.
func TestCase_D1_AdaptersAreTheirContent(t *testing.T) {
	with := func(list ...compat.Adapter) compat.Fingerprint {
		f := full()
		f.Adapters = list
		return f
	}
	one, two := compat.Adapter{Digest: digest(6), Scale: 1}, compat.Adapter{Digest: digest(7), Scale: 1}
	for name, other := range map[string]compat.Fingerprint{
		"other weights, same scale": with(two),
		"none":                      with(),
		"another one in front":      with(two, one),
		"another one behind":        with(one, two),
		"twice":                     with(one, one),
		"another scale":             with(compat.Adapter{Digest: digest(6), Scale: 0.5}),
		"the negative scale":        with(compat.Adapter{Digest: digest(6), Scale: -1}),
	} {
		for _, pair := range [][2]compat.Fingerprint{{with(one), other}, {other, with(one)}} {
			mismatch, ok := errors.AsType[*compat.MismatchError](compat.Check(pair[0], pair[1]))
			if !ok || !slices.Equal(mismatch.Fields(), []string{"adapters"}) {
				t.Errorf("%s: %v, want a refusal by the field adapters", name, mismatch)
			}
		}
		if other.Digest() == with(one).Digest() {
			t.Errorf("%s: the same digest", name)
		}
	}
	if err := compat.Check(with(one), with(one)); err != nil {
		t.Error(err)
	}
}

// What an operator may change, as a table: each change alone is refused by the name of its field. What isn't in the
// fingerprint (names, addresses, limits, speed) can't refuse; engines/sim and cmd/segue-llamacpp test that side.
func TestCase_D6_SingleFieldChangesAreRefusedByName(t *testing.T) {
	for _, c := range []struct {
		what, field string
		change      func(*compat.Fingerprint)
	}{
		{"K cache in 8 bits", "kv_type_k", func(f *compat.Fingerprint) { f.KVTypeK = "q8_0" }},
		{"V cache in 4 bits", "kv_type_v", func(f *compat.Fingerprint) { f.KVTypeV = "q4_0" }},
		{"rope base", "rope_base", func(f *compat.Fingerprint) { f.RopeBase *= 2 }},
		{"rope scale", "rope_scale", func(f *compat.Fingerprint) { f.RopeScale = 0.25 }},
		{"yarn", "rope_scaling", func(f *compat.Fingerprint) { f.RopeScaling = "yarn factor=4" }},
		{"rope kind", "rope_type", func(f *compat.Fingerprint) { f.RopeType = "neox" }},
		{"block layout", "block_layout", func(f *compat.Fingerprint) { f.BlockLayout = "rows/2" }},
		{"back end", "isa", func(f *compat.Fingerprint) { f.ISA = "sm_90" }},
		{"flash attention", "flash_attention", func(f *compat.Fingerprint) { f.FlashAttention = false }},
		{"tokenizer", "tokenizer_digest", func(f *compat.Fingerprint) { f.Tokenizer[9]++ }},
		{"chat template", "chat_template_digest", func(f *compat.Fingerprint) { f.ChatTemplate[9]++ }},
		{"adapter scale", "adapters", func(f *compat.Fingerprint) { f.Adapters[0].Scale = 0.99 }},
		{"speculation", "speculative_method", func(f *compat.Fingerprint) { f.SpeculativeMethod = "eagle" }},
		{"draft length", "speculative_tokens", func(f *compat.Fingerprint) { f.SpeculativeTokens = 5 }},
		{"draft model", "draft_weights_digest", func(f *compat.Fingerprint) { f.DraftWeights[9]++ }},
		{"fine-tuned weights", "weights_digest", func(f *compat.Fingerprint) { f.Weights[9]++ }},
		{"quantisation", "quantisation", func(f *compat.Fingerprint) { f.Quantisation = "Q8_0" }},
		{"tensor parallel", "tensor_parallel", func(f *compat.Fingerprint) { f.TensorParallel = 2 }},
		{"sliding window", "sliding_window", func(f *compat.Fingerprint) { f.SlidingWindow = 4096 }},
		{"engine build", "build", func(f *compat.Fingerprint) { f.Build = "v0.5.1" }},
		{"rebuilt library", "libraries", func(f *compat.Fingerprint) { f.Libraries[1].Digest[9]++ }},
		{"threads", "threads", func(f *compat.Fingerprint) { f.Threads = 8 }},
		{"batch size", "micro_batch", func(f *compat.Fingerprint) { f.MicroBatch = 2048 }},
		{"chunk", "prefill_chunk", func(f *compat.Fingerprint) { f.PrefillChunk = 32 }},
		{"shifting context", "context_policy", func(f *compat.Fingerprint) { f.ContextPolicy = "shift" }},
		{"sampler", "sampler_version", func(f *compat.Fingerprint) { f.SamplerVersion++ }},
	} {
		changed := full()
		changed.Libraries, changed.Adapters = slices.Clone(changed.Libraries), slices.Clone(changed.Adapters)
		c.change(&changed)
		mismatch, ok := errors.AsType[*compat.MismatchError](compat.Check(full(), changed))
		if !ok {
			t.Errorf("%s: not refused", c.what)
			continue
		}
		if diff := cmp.Diff([]string{c.field}, mismatch.Fields()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, diff)
		}
	}
}
