// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/hybridgroup/yzma/pkg/llama"

	"github.com/seguekv/segue/compat"
	"github.com/seguekv/segue/engines/llamacpp"
	"github.com/seguekv/segue/engines/sampling"
)

// build names the version of llama.cpp that the binding is made for. Libraries are compared by digest.
const build = "llama.cpp v0.5.0"

// fingerprint describes everything that changes the numerics. It reads the whole model file.
func fingerprint(m *model, c llamacpp.Config) (compat.Fingerprint, error) {
	t := m.traits
	f := compat.Fingerprint{
		Engine:            kind,
		Build:             build,
		ISA:               isa(m.lib.cpu),
		Threads:           uint32(c.Threads),
		BatchInvariance:   "solo",
		Quantisation:      t.quantisation,
		Tokenizer:         m.tokenizerDigest(),
		ChatTemplate:      sha256.Sum256([]byte(m.template)),
		Architecture:      t.architecture,
		Layers:            t.layers,
		Heads:             t.heads,
		KVHeads:           t.kvHeads,
		HeadDim:           t.headDim,
		SlidingWindow:     uint32(t.window),
		KVTypeK:           cacheType,
		KVTypeV:           cacheType,
		BlockLayout:       "rows",
		TensorParallel:    1,
		PipelineParallel:  1,
		ExpertParallel:    1,
		RopeType:          t.ropeKind(),
		RopeBase:          t.ropeBase,
		RopeScale:         t.ropeScale,
		RopeScaling:       t.ropeScaling,
		ContextTrained:    t.trainedContext,
		ContextPolicy:     "stop",
		Experts:           t.experts,
		ExpertsUsed:       t.expertsUsed,
		SpeculativeMethod: "none",
		FlashAttention:    true,
		MicroBatch:        llamacpp.BatchSize,
		PrefillChunk:      uint32(c.PrefillChunk),
		KVUnified:         true,
		MaxSequences:      sequences,
		SamplerVersion:    sampling.Version,
	}
	if t.experts > 0 {
		f.MoERouting = "model"
	}
	for _, l := range []struct{ name, path string }{{"llama", m.lib.llama}, {"ggml-base", m.lib.base}, {"ggml-cpu", m.lib.cpu}} {
		d, err := fileDigest(l.path)
		if err != nil {
			return f, err
		}
		f.Libraries = append(f.Libraries, compat.Library{Name: l.name, Digest: d})
	}
	var err error
	if f.Weights, err = fileDigest(m.path); err != nil {
		return f, err
	}
	return f, f.Validate()
}

// isa names the variant of the CPU backend: "amd64 zen4" for libggml-cpu-zen4.so.
func isa(cpu string) string {
	name, _, _ := strings.Cut(filepath.Base(cpu), ".")
	variant := strings.Trim(strings.TrimPrefix(name, "libggml-cpu"), "-")
	return strings.TrimSpace(runtime.GOARCH + " " + variant)
}

func fileDigest(path string) (compat.Digest, error) {
	f, err := os.Open(path)
	if err != nil {
		return compat.Digest{}, fmt.Errorf("digest: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyBuffer(h, f, make([]byte, 1<<20)); err != nil {
		return compat.Digest{}, fmt.Errorf("digest %s: %w", path, err)
	}
	return compat.Digest(h.Sum(nil)), nil
}

// tokenizerDigest covers every id's text and attributes and the rules around them. The merge list isn't
// within reach; it is part of the weights' file and so of its digest.
func (m *model) tokenizerDigest() compat.Digest {
	h := sha256.New()
	addText(h, m.traits.tokenizer)
	addText(h, m.traits.tokenizerSplitting)
	addNumber(h, int64(m.bos))
	addNumber(h, int64(m.size()))
	for id := range int32(m.size()) {
		addText(h, string(m.Piece(id)))
		addText(h, llama.VocabGetText(m.vocab, llama.Token(id)))
		addNumber(h, int64(llama.VocabGetAttr(m.vocab, llama.Token(id))))
		if m.EOG(id) {
			addNumber(h, 1)
		}
	}
	return compat.Digest(h.Sum(nil))
}

func addText(h hash.Hash, s string) {
	addNumber(h, int64(len(s)))
	_, _ = io.WriteString(h, s)
}

func addNumber(h hash.Hash, n int64) {
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(n)))
}
