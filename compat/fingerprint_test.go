// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package compat_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/compat"
)

// digest is a digest whose bytes count up from first.
func digest(first byte) (d compat.Digest) {
	for i := range d {
		d[i] = first + byte(i)
	}
	return d
}

// full has no field at its zero value.
func full() compat.Fingerprint {
	return compat.Fingerprint{
		Engine: "llamacpp", Build: "v0.5.0-b1234", ISA: "x86-64 zen4", Threads: 1, BatchInvariance: "solo",
		Libraries: []compat.Library{{Name: "libllama", Digest: digest(1)}, {Name: "ggml-cpu-zen4", Digest: digest(2)}},
		Weights:   digest(3), Quantisation: "Q4_1", ComputeType: "f32", Tokenizer: digest(4), ChatTemplate: digest(5),
		Architecture: "llama", Layers: 30, Heads: 9, KVHeads: 3, HeadDim: 64, SlidingWindow: 512,
		KVTypeK: "f16", KVTypeV: "q8_0", BlockLayout: "rows/1",
		TensorParallel: 1, PipelineParallel: 2, ExpertParallel: 3,
		Adapters: []compat.Adapter{{Digest: digest(6), Scale: 1}, {Digest: digest(7), Scale: 0.5}},
		RopeType: "norm", RopeBase: 100000, RopeScale: 1, RopeScaling: "none", ContextTrained: 8192, ContextPolicy: "stop",
		Experts: 8, ExpertsUsed: 2, MoERouting: "softmax",
		SpeculativeMethod: "draft", SpeculativeTokens: 4, DraftWeights: digest(8),
		FlashAttention: true, MicroBatch: 512, PrefillChunk: 64, KVUnified: true, MaxSequences: 2, SamplerVersion: 1,
	}
}

// change is one changed field and the name Check must give it.
type change struct {
	name   string
	change func(f *compat.Fingerprint)
}

// changes has at least one entry for each field of the struct.
var changes = map[string][]change{
	"Engine": {{"engine", func(f *compat.Fingerprint) { f.Engine = "sim" }}},
	"Build":  {{"build", func(f *compat.Fingerprint) { f.Build = "v0.5.0-b1235" }}},
	"Libraries": {
		{"libraries", func(f *compat.Fingerprint) { f.Libraries = nil }},
		{"libraries", func(f *compat.Fingerprint) { f.Libraries = f.Libraries[:1] }},
		{"libraries", func(f *compat.Fingerprint) { f.Libraries[0], f.Libraries[1] = f.Libraries[1], f.Libraries[0] }},
		{"libraries", func(f *compat.Fingerprint) { f.Libraries[1].Name = "ggml-cpu-haswell" }},
		{"libraries", func(f *compat.Fingerprint) { f.Libraries[1].Digest[31] ^= 1 }},
	},
	"ISA":              {{"isa", func(f *compat.Fingerprint) { f.ISA = "x86-64 haswell" }}},
	"Threads":          {{"threads", func(f *compat.Fingerprint) { f.Threads = 2 }}},
	"BatchInvariance":  {{"batch_invariance", func(f *compat.Fingerprint) { f.BatchInvariance = "shared" }}},
	"Weights":          {{"weights_digest", func(f *compat.Fingerprint) { f.Weights[0] ^= 1 }}},
	"Quantisation":     {{"quantisation", func(f *compat.Fingerprint) { f.Quantisation = "Q4_0" }}},
	"ComputeType":      {{"compute_type", func(f *compat.Fingerprint) { f.ComputeType = "bf16" }}},
	"Tokenizer":        {{"tokenizer_digest", func(f *compat.Fingerprint) { f.Tokenizer[0] ^= 1 }}},
	"ChatTemplate":     {{"chat_template_digest", func(f *compat.Fingerprint) { f.ChatTemplate[0] ^= 1 }}},
	"Architecture":     {{"architecture", func(f *compat.Fingerprint) { f.Architecture = "qwen2" }}},
	"Layers":           {{"layers", func(f *compat.Fingerprint) { f.Layers++ }}},
	"Heads":            {{"heads", func(f *compat.Fingerprint) { f.Heads++ }}},
	"KVHeads":          {{"kv_heads", func(f *compat.Fingerprint) { f.KVHeads++ }}},
	"HeadDim":          {{"head_dim", func(f *compat.Fingerprint) { f.HeadDim++ }}},
	"SlidingWindow":    {{"sliding_window", func(f *compat.Fingerprint) { f.SlidingWindow = 0 }}},
	"KVTypeK":          {{"kv_type_k", func(f *compat.Fingerprint) { f.KVTypeK = "q8_0" }}},
	"KVTypeV":          {{"kv_type_v", func(f *compat.Fingerprint) { f.KVTypeV = "f16" }}},
	"BlockLayout":      {{"block_layout", func(f *compat.Fingerprint) { f.BlockLayout = "rows/2" }}},
	"TensorParallel":   {{"tensor_parallel", func(f *compat.Fingerprint) { f.TensorParallel++ }}},
	"PipelineParallel": {{"pipeline_parallel", func(f *compat.Fingerprint) { f.PipelineParallel++ }}},
	"ExpertParallel":   {{"expert_parallel", func(f *compat.Fingerprint) { f.ExpertParallel++ }}},
	"Adapters": {
		{"adapters", func(f *compat.Fingerprint) { f.Adapters = nil }},
		{"adapters", func(f *compat.Fingerprint) { f.Adapters = f.Adapters[:1] }},
		{"adapters", func(f *compat.Fingerprint) { f.Adapters[0], f.Adapters[1] = f.Adapters[1], f.Adapters[0] }},
		{"adapters", func(f *compat.Fingerprint) { f.Adapters[0].Digest[0] ^= 1 }},
		{"adapters", func(f *compat.Fingerprint) { f.Adapters[0].Scale = 1.0000001 }},
		{"adapters", func(f *compat.Fingerprint) { f.Adapters = append(f.Adapters, compat.Adapter{}) }},
	},
	"RopeType":          {{"rope_type", func(f *compat.Fingerprint) { f.RopeType = "neox" }}},
	"RopeBase":          {{"rope_base", func(f *compat.Fingerprint) { f.RopeBase = 10000 }}},
	"RopeScale":         {{"rope_scale", func(f *compat.Fingerprint) { f.RopeScale = 0.5 }}},
	"RopeScaling":       {{"rope_scaling", func(f *compat.Fingerprint) { f.RopeScaling = "linear" }}},
	"ContextTrained":    {{"context_trained", func(f *compat.Fingerprint) { f.ContextTrained = 2048 }}},
	"ContextPolicy":     {{"context_policy", func(f *compat.Fingerprint) { f.ContextPolicy = "shift" }}},
	"Experts":           {{"experts", func(f *compat.Fingerprint) { f.Experts++ }}},
	"ExpertsUsed":       {{"experts_used", func(f *compat.Fingerprint) { f.ExpertsUsed++ }}},
	"MoERouting":        {{"moe_routing", func(f *compat.Fingerprint) { f.MoERouting = "sigmoid" }}},
	"SpeculativeMethod": {{"speculative_method", func(f *compat.Fingerprint) { f.SpeculativeMethod = "ngram" }}},
	"SpeculativeTokens": {{"speculative_tokens", func(f *compat.Fingerprint) { f.SpeculativeTokens++ }}},
	"DraftWeights":      {{"draft_weights_digest", func(f *compat.Fingerprint) { f.DraftWeights[0] ^= 1 }}},
	"FlashAttention":    {{"flash_attention", func(f *compat.Fingerprint) { f.FlashAttention = false }}},
	"MicroBatch":        {{"micro_batch", func(f *compat.Fingerprint) { f.MicroBatch = 256 }}},
	"PrefillChunk":      {{"prefill_chunk", func(f *compat.Fingerprint) { f.PrefillChunk = 128 }}},
	"KVUnified":         {{"kv_unified", func(f *compat.Fingerprint) { f.KVUnified = false }}},
	"MaxSequences":      {{"max_sequences", func(f *compat.Fingerprint) { f.MaxSequences = 4 }}},
	"SamplerVersion":    {{"sampler_version", func(f *compat.Fingerprint) { f.SamplerVersion = 2 }}},
}

func TestCheck_NamesTheSingleDifferentField(t *testing.T) {
	base := full()
	encodings := map[string]string{string(base.Encode()): "no change"}
	ty := reflect.TypeFor[compat.Fingerprint]()
	for i := range ty.NumField() {
		name := ty.Field(i).Name
		list := changes[name]
		if len(list) == 0 {
			t.Errorf("field %s has no entry in changes", name)
		}
		if reflect.ValueOf(base).Field(i).IsZero() {
			t.Errorf("field %s has no value in full()", name)
		}
		for n, c := range list {
			f := full()
			c.change(&f)
			for j := range ty.NumField() {
				same := cmp.Equal(reflect.ValueOf(f).Field(j).Interface(), reflect.ValueOf(base).Field(j).Interface())
				if same != (i != j) {
					t.Fatalf("change %d of %s: field %s unchanged is %v", n, name, ty.Field(j).Name, same)
				}
			}
			for _, pair := range [][2]compat.Fingerprint{{f, base}, {base, f}} {
				err := compat.Check(pair[0], pair[1])
				mismatch, ok := errors.AsType[*compat.MismatchError](err)
				if !ok {
					t.Fatalf("change %d of %s: Check gives %v", n, name, err)
				}
				if d := cmp.Diff([]string{c.name}, mismatch.Fields()); d != "" {
					t.Errorf("change %d of %s: fields (-want +got)\n%s", n, name, d)
				}
				m := mismatch.Mismatches[0]
				if m.Reason == "" || m.Have == m.Want || !strings.Contains(err.Error(), m.String()) {
					t.Errorf("change %d of %s: mismatch %+v, error %v", n, name, m, err)
				}
			}
			if f.Digest() == base.Digest() {
				t.Errorf("change %d of %s doesn't change the digest", n, name)
			}
			b := string(f.Encode())
			if other, ok := encodings[b]; ok {
				t.Errorf("change %d of %s has the encoding of %s", n, name, other)
			}
			encodings[b] = name
			decoded, err := compat.Decode([]byte(b))
			if d := cmp.Diff(f, decoded); err != nil || d != "" {
				t.Errorf("change %d of %s: decoded with error %v (-want +got)\n%s", n, name, err, d)
			}
		}
	}
	for name := range changes {
		if _, ok := ty.FieldByName(name); !ok {
			t.Errorf("changes has %s, which is no field", name)
		}
	}
}

func TestCheck_EqualFingerprints(t *testing.T) {
	for _, f := range []compat.Fingerprint{{}, full()} {
		if err := compat.Check(f, f); err != nil {
			t.Error(err)
		}
	}
	empty := compat.Fingerprint{Libraries: []compat.Library{}, Adapters: []compat.Adapter{}}
	if err := compat.Check(compat.Fingerprint{}, empty); err != nil {
		t.Errorf("nil and empty lists differ: %v", err)
	}
	if empty.Digest() != (compat.Fingerprint{}).Digest() {
		t.Error("nil and empty lists have different digests")
	}
}

func TestCheck_ListsEveryDifference(t *testing.T) {
	have, want := full(), full()
	have.Threads, have.Weights, have.SamplerVersion = 4, digest(9), 2
	err := compat.Check(have, want)
	mismatch, ok := errors.AsType[*compat.MismatchError](err)
	if !ok {
		t.Fatalf("Check gives %v", err)
	}
	if d := cmp.Diff([]string{"threads", "weights_digest", "sampler_version"}, mismatch.Fields()); d != "" {
		t.Errorf("fields (-want +got)\n%s", d)
	}
	if got, want := mismatch.Mismatches[0].String(), "threads (have 4, want 1: the number of threads changes the order of summation)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	all, ok := errors.AsType[*compat.MismatchError](compat.Check(full(), compat.Fingerprint{}))
	if n := reflect.TypeFor[compat.Fingerprint]().NumField(); !ok || len(all.Mismatches) != n {
		t.Errorf("%d mismatches, want all %d fields", len(all.Mismatches), n)
	}
}

func TestFingerprint_Validate(t *testing.T) {
	long := strings.Repeat("x", compat.MaxTextBytes+1)
	for _, c := range []struct {
		name   string
		change func(f *compat.Fingerprint)
		want   string
	}{
		{"valid", func(f *compat.Fingerprint) {}, ""},
		{"limits", func(f *compat.Fingerprint) {
			f.Build = long[1:]
			f.Libraries = make([]compat.Library, compat.MaxLibraries)
			for i := range f.Libraries {
				f.Libraries[i].Name = long[1:]
			}
			f.Adapters = make([]compat.Adapter, compat.MaxAdapters)
		}, ""},
		{"long text", func(f *compat.Fingerprint) { f.KVTypeK = long }, "kv_type_k"},
		{"invalid text", func(f *compat.Fingerprint) { f.ISA = "\xFF" }, "isa"},
		{"long library name", func(f *compat.Fingerprint) { f.Libraries[1].Name = long }, "libraries"},
		{"invalid library name", func(f *compat.Fingerprint) { f.Libraries[1].Name = "\xFF" }, "libraries"},
		{"too many libraries", func(f *compat.Fingerprint) { f.Libraries = make([]compat.Library, compat.MaxLibraries+1) }, "libraries"},
		{"too many adapters", func(f *compat.Fingerprint) { f.Adapters = make([]compat.Adapter, compat.MaxAdapters+1) }, "adapters"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := full()
			c.change(&f)
			err := f.Validate()
			_, decodeErr := compat.Decode(f.Encode())
			if c.want == "" {
				if err != nil || decodeErr != nil {
					t.Errorf("Validate gives %v, Decode %v", err, decodeErr)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Validate gives %v, want an error about %s", err, c.want)
			}
			if !errors.Is(decodeErr, compat.ErrEncoding) || !strings.Contains(decodeErr.Error(), c.want) {
				t.Errorf("Decode gives %v, want ErrEncoding about %s", decodeErr, c.want)
			}
		})
	}
}

func TestDigest_Text(t *testing.T) {
	d := digest(0xF0)
	b, err := d.MarshalText()
	if err != nil || string(b) != d.String() {
		t.Fatalf("MarshalText gives %q, %v", b, err)
	}
	got, err := compat.ParseDigest(string(b))
	if err != nil || got != d {
		t.Errorf("ParseDigest gives %v, %v", got, err)
	}
	for _, s := range []string{"", "00", d.String() + "00", strings.Repeat("x", 64)} {
		if got, err := compat.ParseDigest(s); err == nil || got != (compat.Digest{}) {
			t.Errorf("ParseDigest(%q) gives %v, %v", s, got, err)
		}
	}
}
