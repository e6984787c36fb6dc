// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"crypto/sha256"
	"fmt"

	"github.com/seguekv/segue/compat"
	"github.com/seguekv/segue/engines/sampling"
)

// build changes with anything that changes ids, rows or candidates for one configuration.
const build = "sim-1"

// fingerprint names everything that another engine must share to continue a session of this one. The
// pseudo-model has no numerics; threads and chunk stand for those of a real one.
func (c Config) fingerprint() compat.Fingerprint {
	row := uint32(c.KVBytesPerToken / (2 * c.Layers))
	return compat.Fingerprint{
		Engine:          "sim",
		Build:           build,
		ISA:             "any",
		Threads:         uint32(c.Threads),
		BatchInvariance: "solo",

		Weights:      c.weights(),
		Quantisation: "none",
		Tokenizer:    sha256.Sum256(fmt.Appendf(nil, "%s spelling, %d ids, words from %d", build, vocabulary, words)),
		ChatTemplate: sha256.Sum256([]byte(template)),

		Architecture: "sim",
		Layers:       uint32(c.Layers),
		Heads:        1,
		KVHeads:      1,
		HeadDim:      row,
		KVTypeK:      elementType,
		KVTypeV:      elementType,
		BlockLayout:  "rows",

		TensorParallel:   1,
		PipelineParallel: 1,
		ExpertParallel:   1,

		ContextPolicy: "stop",

		MicroBatch:     uint32(c.Chunk),
		PrefillChunk:   uint32(c.Chunk),
		MaxSequences:   1,
		SamplerVersion: sampling.Version,
	}
}

// weights is the digest of what stands for them: everything that decides which tokens the model proposes.
func (c Config) weights() compat.Digest {
	return sha256.Sum256(fmt.Appendf(nil, "%s weights, seed %d, end every %d", build, c.SeedOfWeights, c.EOGEvery))
}
