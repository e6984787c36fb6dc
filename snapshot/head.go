// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/seguekv/segue/fence"
)

// Limits of a head, besides those in geometry.go.
const (
	// MaxFingerprintBytes bounds an encoded fingerprint.
	MaxFingerprintBytes = 64 << 10
)

// BaseID names one base of one session. Rows and boundaries are keyed by it and their index.
type BaseID struct {
	Session SessionID
	Epoch   fence.Epoch
	// Base rises whenever the primary starts a new complete base within an epoch.
	Base uint32
}

// Head is what is constant about a base. It covers nothing by itself.
type Head struct {
	BaseID
	Geometry Geometry
	// Fingerprint is the canonical encoding of the primary's compat.Fingerprint.
	Fingerprint []byte
	// Request is the digest of the request's canonical encoding.
	Request Digest
	// Prompt has the P prompt ids, P >= 1.
	Prompt []int32
	// Restored has output ids 0 … k-1 that precede the base's first boundary, which is k+1. It is empty
	// for a base that begins with the prompt.
	Restored []int32
	// MaxOutput is the largest number of output ids the session may reach; it bounds the memory.
	MaxOutput int
}

// MaxRows is the largest number of rows the session may reach.
func (h *Head) MaxRows() int { return len(h.Prompt) + h.MaxOutput - 1 }

// Bytes is the memory that the session may need, in whole blocks.
func (h *Head) Bytes() int64 {
	blocks := int64(h.MaxRows()+BlockRows-1) / BlockRows
	return blocks * BlockRows * int64(h.Geometry.RowBytes())
}

// Validate reports whether the head is within the limits.
func (h *Head) Validate() error {
	if err := h.Geometry.Validate(); err != nil {
		return err
	}
	switch {
	case h.Epoch == 0:
		return fmt.Errorf("head has no epoch")
	case len(h.Prompt) == 0:
		return fmt.Errorf("head has no prompt ids")
	case h.MaxOutput < 1 || len(h.Prompt)+h.MaxOutput > MaxTokens:
		return fmt.Errorf("head has %d prompt ids and up to %d output ids, limit %d together", len(h.Prompt), h.MaxOutput, MaxTokens)
	case len(h.Restored) >= h.MaxOutput:
		return fmt.Errorf("head restores %d output ids of at most %d", len(h.Restored), h.MaxOutput)
	case len(h.Fingerprint) > MaxFingerprintBytes:
		return fmt.Errorf("head has a fingerprint of %d bytes, limit %d", len(h.Fingerprint), MaxFingerprintBytes)
	}
	return nil
}

// digest seeds the chain of rows.
func (h *Head) digest() Digest { return Digest(xxh3.Hash128(appendHead(nil, h)).Bytes()) }

// appendHead appends the head's canonical encoding, FORMAT.md section "Base".
func appendHead(b []byte, h *Head) []byte {
	le := binary.LittleEndian
	b = append(b, h.Session[:]...)
	b = le.AppendUint64(b, uint64(h.Epoch))
	b = le.AppendUint32(b, h.Base)
	b = le.AppendUint32(b, uint32(len(h.Geometry.Layers)))
	for _, l := range h.Geometry.Layers {
		b = le.AppendUint32(b, uint32(l.KBytes))
		b = le.AppendUint32(b, uint32(l.VBytes))
		b = append(append(b, byte(len(l.KType))), l.KType...)
		b = append(append(b, byte(len(l.VType))), l.VType...)
	}
	b = le.AppendUint32(b, uint32(len(h.Fingerprint)))
	b = append(b, h.Fingerprint...)
	b = append(b, h.Request[:]...)
	b = le.AppendUint32(b, uint32(h.MaxOutput))
	b = appendIDs(b, h.Prompt)
	return appendIDs(b, h.Restored)
}

func appendIDs(b []byte, ids []int32) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(ids)))
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	return b
}
