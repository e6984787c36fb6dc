// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package compat

// field is one field of a fingerprint. value points into it and is a *string, *uint32, *float32, *bool,
// *Digest, *[]Library or *[]Adapter.
type field struct {
	name string
	// reason says why a difference refuses.
	reason string
	value  any
}

// fields lists every field in the order of the encoding, which is part of its version.
func (f *Fingerprint) fields() []field {
	return []field{
		{"engine", "another engine computes different numbers", &f.Engine},
		{"build", "another build of the engine may compute different numbers", &f.Build},
		{"libraries", "another library, or another build of it, computes different numbers after some steps", &f.Libraries},
		{"isa", "another instruction set or GPU class rounds differently", &f.ISA},
		{"threads", "the number of threads changes the order of summation", &f.Threads},
		{"batch_invariance", "results depend on which runs share a compute call", &f.BatchInvariance},
		{"weights_digest", "the cache belongs to the weights that computed it", &f.Weights},
		{"quantisation", "the weights are quantised in another way", &f.Quantisation},
		{"compute_type", "activations have another precision", &f.ComputeType},
		{"tokenizer_digest", "the same ids mean other text", &f.Tokenizer},
		{"chat_template_digest", "the same messages give another prompt", &f.ChatTemplate},
		{"architecture", "the model is of another family", &f.Architecture},
		{"layers", "the model has another shape", &f.Layers},
		{"heads", "the attention has another shape", &f.Heads},
		{"kv_heads", "the attention has another shape", &f.KVHeads},
		{"head_dim", "the attention has another shape", &f.HeadDim},
		{"sliding_window", "the attention sees other positions", &f.SlidingWindow},
		{"kv_type_k", "K rows have another element type", &f.KVTypeK},
		{"kv_type_v", "V rows have another element type", &f.KVTypeV},
		{"block_layout", "rows are laid out differently", &f.BlockLayout},
		{"tensor_parallel", "rows are split over another number of devices", &f.TensorParallel},
		{"pipeline_parallel", "layers are split over another number of devices", &f.PipelineParallel},
		{"expert_parallel", "experts are split over another number of devices", &f.ExpertParallel},
		{"adapters", "the LoRA adapters, their order or their scales differ, and they change every row", &f.Adapters},
		{"rope_type", "positions are encoded differently", &f.RopeType},
		{"rope_base", "positions are encoded differently", &f.RopeBase},
		{"rope_scale", "positions are encoded differently", &f.RopeScale},
		{"rope_scaling", "positions are encoded differently", &f.RopeScaling},
		{"context_trained", "position scaling depends on the trained context length", &f.ContextTrained},
		{"context_policy", "positions move when the context is full", &f.ContextPolicy},
		{"experts", "the model has another number of experts", &f.Experts},
		{"experts_used", "another number of experts computes each token", &f.ExpertsUsed},
		{"moe_routing", "experts are chosen differently", &f.MoERouting},
		{"speculative_method", "tokens are drafted in another way, with other state", &f.SpeculativeMethod},
		{"speculative_tokens", "verify steps have another number of rows", &f.SpeculativeTokens},
		{"draft_weights_digest", "the draft cache belongs to the weights that computed it", &f.DraftWeights},
		{"flash_attention", "attention is summed in another order", &f.FlashAttention},
		{"micro_batch", "compute calls of another size take other code paths", &f.MicroBatch},
		{"prefill_chunk", "prompt chunks of another size take other code paths", &f.PrefillChunk},
		{"kv_unified", "the cache is organised differently, which changes the order of summation", &f.KVUnified},
		{"max_sequences", "the cache is organised differently, which changes the order of summation", &f.MaxSequences},
		{"sampler_version", "another sampler draws other tokens from the same logits", &f.SamplerVersion},
	}
}
