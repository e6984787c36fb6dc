// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package compat says whether the state of one engine may be loaded into another and continued exactly.
//
// It owns the Fingerprint, its canonical encoding and digest, and Check with a reason for each difference.
// It doesn't own how an engine learns its own fingerprint, nor what follows from a mismatch.
//
// Content (weights, tokenizer, chat template, libraries, adapters) is named by SHA-256, never by file or
// model name. Two fingerprints are compatible only when every field is equal: one difference refuses.
//
// Encoding version 1, little endian:
//
//	offset  size  what
//	0       4     magic "SEFP"
//	4       2     version
//	6       2     number of fields
//	8       …     fields in order: u16 field number (from 1) | u32 length | value
//
// Values: text = bytes (UTF-8); number, float = 4 bytes; flag = 1 byte, 0 or 1; digest = 32 bytes; list =
// u32 count, then its elements: library = u32 length | name | digest, adapter = digest | 4 bytes of scale.
//
// INVARIANT: Decode(Encode(f)) gives f, and Encode(Decode(b)) gives b: every field is present once, in
// order, nothing else is accepted, and nothing follows.
//
// Everything is pure. The package starts no goroutines.
package compat
