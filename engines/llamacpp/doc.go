// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package llamacpp is the part of the llama.cpp engine that needs no llama.cpp: the layout of its sequence
// state, the configuration of an engine host, and finding the host's parts on this machine with errors that
// say how to get what is missing. The engine itself is the program cmd/segue-llamacpp; this package never
// loads a library and may be linked into a static binary.
//
// A capture or state blob is what llama_state_seq_get_data writes and llama_state_seq_set_data reads for a
// context with one stream and flash attention, little endian:
//
//	u32 magic | i32 seq | u32 streams = 1 | u32 n
//	n × { i32 position | u32 sequences = 1 | i32 seq }
//	u32 transposed = 0 | u32 layers
//	layers × { i32 type | u64 row bytes | n K rows }
//	layers × { i32 type | u64 row bytes | n V rows }
//
// llama.cpp itself checks little of it when it reads: gaps, repeats and flipped bits are loaded without a
// word. Therefore a Layout reads and writes only blobs of one known geometry with contiguous positions, and
// everything else is refused.
//
// A Layout is immutable and safe for concurrent use. The package starts no goroutine.
package llamacpp
