// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hybridgroup/yzma/pkg/llama"
)

// traits are what a model's file says about its architecture.
type traits struct {
	architecture, quantisation    string
	layers, heads, kvHeads        uint32
	headDim                       uint32
	trainedContext                uint32
	experts, expertsUsed          uint32
	ropeType                      int
	ropeBase, ropeScale           float32
	ropeScaling                   string
	ropeSections                  bool // the rotary embedding has sections for several axes
	window                        int  // of sliding attention, 0 = full
	recurrent, hybrid, diffusion  bool
	encoder, decoder              bool
	tokenizer, tokenizerSplitting string
}

// Values of llama_rope_type with one position per token.
const (
	ropeNone = -1
	ropeNorm = 0
	ropeNeoX = 2
)

func readTraits(h llama.Model) traits {
	text := func(key string) string {
		v, _ := llama.ModelMetaValStr(h, key)
		return v
	}
	arch := text("general.architecture")
	// Metadata that is absent, or that holds a list, reads as 0.
	number := func(key string) uint32 {
		n, _ := strconv.ParseUint(text(arch+"."+key), 10, 32)
		return uint32(n)
	}
	float := func(key string) float32 {
		f, _ := strconv.ParseFloat(text(arch+"."+key), 32)
		return float32(f)
	}
	t := traits{
		architecture:   arch,
		quantisation:   llama.FtypeName(llama.ModelFtype(h)),
		layers:         uint32(llama.ModelNLayer(h)),
		heads:          uint32(llama.ModelNHead(h)),
		kvHeads:        uint32(llama.ModelNHeadKV(h)),
		headDim:        number("attention.key_length"),
		trainedContext: uint32(llama.ModelNCtxTrain(h)),
		experts:        number("expert_count"),
		expertsUsed:    number("expert_used_count"),
		ropeType:       int(llama.ModelRopeType(h)),
		ropeBase:       float("rope.freq_base"),
		ropeScale:      llama.ModelRopeFreqScaleTrain(h),
		window:         max(int(number("attention.sliding_window")), int(llama.ModelNSWA(h))),
		recurrent:      llama.ModelIsRecurrent(h),
		hybrid:         llama.ModelIsHybrid(h),
		diffusion:      llama.ModelIsDiffusion(h),
		encoder:        llama.ModelHasEncoder(h),
		decoder:        llama.ModelHasDecoder(h),

		tokenizer:          text("tokenizer.ggml.model"),
		tokenizerSplitting: text("tokenizer.ggml.pre"),
	}
	if t.headDim == 0 && t.heads > 0 {
		t.headDim = uint32(llama.ModelNEmbd(h)) / t.heads
	}
	for _, key := range []string{"type", "factor", "original_context_length", "attn_factor", "yarn_log_multiplier"} {
		if v := text(arch + ".rope.scaling." + key); v != "" {
			t.ropeScaling += key + "=" + v + " "
		}
	}
	t.ropeScaling = strings.TrimSpace(t.ropeScaling)
	_, t.ropeSections = llama.ModelMetaValStr(h, arch+".rope.dimension_sections")
	return t
}

// check refuses models whose state is more, or less, than one row of K and V for each position.
func (t traits) check() error {
	var errs []error
	refuse := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(t.window > 0, "its attention has a sliding window of %d: rows leave the cache", t.window)
	refuse(t.recurrent, "it is recurrent: its state has no rows")
	refuse(t.hybrid, "it is a hybrid of attention and recurrence: part of its state has no rows")
	refuse(t.diffusion, "it is a diffusion model: it doesn't generate token by token")
	refuse(t.encoder || !t.decoder, "it isn't a decoder-only model")
	refuse(t.ropeSections || t.ropeKind() == "", "its rotary embedding (type %d) has several positions for each token", t.ropeType)
	return errors.Join(errs...)
}

// ropeKind is the name of a rotary embedding with one position per token, "" for others.
func (t traits) ropeKind() string {
	switch t.ropeType {
	case ropeNone:
		return "none"
	case ropeNorm:
		return "norm"
	case ropeNeoX:
		return "neox"
	}
	return ""
}
