// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package engines

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/seguekv/segue/snapshot"
)

// requestEncoding is the first byte of the canonical encoding; a change of the encoding changes it.
const requestEncoding = 1

// RequestDigest is equal exactly for equal requests: same fields, order of lists kept, logit biases as a
// set. It is computed over a canonical encoding of this package's own, never over protobuf bytes.
func RequestDigest(r Request) snapshot.Digest {
	return snapshot.Digest(xxh3.Hash128(appendRequest(nil, r)).Bytes())
}

// appendRequest writes every field in order, little endian, strings and lists after their u32 length.
func appendRequest(b []byte, r Request) []byte {
	b = append(b, requestEncoding)
	b = appendString(b, r.Model)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.Prompt.Messages)))
	for _, m := range r.Prompt.Messages {
		b = appendString(appendString(b, m.Role), m.Content)
	}
	b = appendString(b, r.Prompt.Text)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.Prompt.IDs)))
	for _, id := range r.Prompt.IDs {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	s := r.Sampling
	b = appendFloat(b, s.Temperature)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.TopK))
	for _, f := range []float64{s.TopP, s.MinP, s.RepetitionPenalty, s.PresencePenalty, s.FrequencyPenalty} {
		b = appendFloat(b, f)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s.LogitBias)))
	for _, id := range slices.Sorted(maps.Keys(s.LogitBias)) {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
		b = appendFloat(b, s.LogitBias[id])
	}
	b = binary.LittleEndian.AppendUint64(b, s.Seed)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.MaxTokens))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.MinTokens))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.Stop)))
	for _, s := range r.Stop {
		b = appendString(b, s)
	}
	if r.IgnoreEOS {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
}

func appendFloat(b []byte, f float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
}
