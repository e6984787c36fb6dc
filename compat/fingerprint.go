// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package compat

import (
	"crypto/sha256"
	"fmt"
	"unicode/utf8"
)

// Limits of a fingerprint, enforced by Validate and Decode.
const (
	MaxTextBytes = 256
	MaxLibraries = 64
	MaxAdapters  = 64
	// MaxEncodedBytes bounds what Decode looks at.
	MaxEncodedBytes = 64 << 10
)

// Fingerprint is everything that must be equal for a state to be loaded elsewhere and continued exactly.
// Numbers that don't apply are 0, texts "".
type Fingerprint struct {
	// Engine is the engine's kind: "sim", "llamacpp". Build is its version and build, Libraries are the
	// loaded libraries that compute, in a fixed order.
	Engine    string
	Build     string
	Libraries []Library
	// ISA is the instruction set variant or GPU class that computes: "x86-64 zen4", "sm_90".
	ISA string
	// Threads is the number of compute threads.
	Threads uint32
	// BatchInvariance says how runs share compute calls: "solo" (one run in each call), "invariant" (results
	// don't depend on neighbours), "shared" (they may).
	BatchInvariance string

	// Weights, Tokenizer and ChatTemplate are the digests of the contents.
	Weights      Digest
	Quantisation string
	// ComputeType is the element type of activations where it is a setting: "f32", "bf16".
	ComputeType  string
	Tokenizer    Digest
	ChatTemplate Digest

	// Architecture is the model family: "llama". The numbers after it are the attention's shape;
	// SlidingWindow is 0 for full attention.
	Architecture  string
	Layers        uint32
	Heads         uint32
	KVHeads       uint32
	HeadDim       uint32
	SlidingWindow uint32
	// KVTypeK and KVTypeV are the cache's element types: "f16", "q8_0".
	KVTypeK, KVTypeV string
	// BlockLayout names the layout that rows are read from and written to.
	BlockLayout string

	// Parallel degrees; 1 = not split.
	TensorParallel, PipelineParallel, ExpertParallel uint32

	// Adapters are the active LoRA adapters, in order.
	Adapters []Adapter

	// RopeType is the kind of position encoding ("norm", "neox"), RopeScaling its stretching ("none",
	// "linear", "yarn" with its factors).
	RopeType            string
	RopeBase, RopeScale float32
	RopeScaling         string
	// ContextTrained is the context length of the training, which some scalings depend on. The configured
	// context length isn't part of the fingerprint.
	ContextTrained uint32
	// ContextPolicy is what happens at a full context: "stop"; anything else moves positions.
	ContextPolicy string

	// Experts are in the model, ExpertsUsed per token; MoERouting is how they are chosen.
	Experts, ExpertsUsed uint32
	MoERouting           string

	// SpeculativeMethod is "" or "none" without speculation; SpeculativeTokens is the number of drafted tokens.
	SpeculativeMethod string
	SpeculativeTokens uint32
	DraftWeights      Digest

	// Numerics: settings that change the order of summation.
	FlashAttention bool
	// MicroBatch is the largest number of positions in one compute call, PrefillChunk the number of prompt
	// positions between two captures.
	MicroBatch, PrefillChunk uint32
	KVUnified                bool
	// MaxSequences is the number of sequences a context is made for.
	MaxSequences uint32
	// SamplerVersion is sampling.Version, or 0 where the engine samples.
	SamplerVersion uint32
}

// Library is one loaded library.
type Library struct {
	// Name tells a person which one it is: "ggml-cpu".
	Name   string
	Digest Digest
}

// Adapter is one LoRA adapter. Scales are equal when their bits are.
type Adapter struct {
	Digest Digest
	Scale  float32
}

// Digest is the SHA-256 of the encoding: equal exactly for equal fingerprints.
func (f Fingerprint) Digest() Digest { return sha256.Sum256(f.Encode()) }

// Validate reports whether the fingerprint is within the limits. One that isn't is refused by Decode.
func (f Fingerprint) Validate() error {
	if n := len(f.Libraries); n > MaxLibraries {
		return fmt.Errorf("compat: libraries: %d entries, limit %d", n, MaxLibraries)
	}
	if n := len(f.Adapters); n > MaxAdapters {
		return fmt.Errorf("compat: adapters: %d entries, limit %d", n, MaxAdapters)
	}
	for _, fd := range f.fields() {
		switch v := fd.value.(type) {
		case *string:
			if err := validText(*v); err != nil {
				return fmt.Errorf("compat: %s: %w", fd.name, err)
			}
		case *[]Library:
			for i, l := range *v {
				if err := validText(l.Name); err != nil {
					return fmt.Errorf("compat: %s: name %d: %w", fd.name, i, err)
				}
			}
		}
	}
	return nil
}

func validText(s string) error {
	if len(s) > MaxTextBytes {
		return fmt.Errorf("%d bytes, limit %d", len(s), MaxTextBytes)
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("not valid UTF-8")
	}
	return nil
}
