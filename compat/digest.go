// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package compat

import (
	"encoding/hex"
	"fmt"
)

// Digest is a SHA-256: of a file's content, or of a fingerprint's encoding. The zero digest means that there
// is no such part.
type Digest [32]byte

// String is the digest in hex.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText writes hex.
func (d Digest) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, d[:]), nil }

// UnmarshalText reads what MarshalText writes.
func (d *Digest) UnmarshalText(b []byte) error {
	if len(b) != 2*len(d) {
		return fmt.Errorf("digest has %d characters, want %d hex digits", len(b), 2*len(d))
	}
	var v Digest
	if _, err := hex.Decode(v[:], b); err != nil {
		return fmt.Errorf("parse digest: %w", err)
	}
	*d = v
	return nil
}

// ParseDigest reads 64 hex digits.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	err := d.UnmarshalText([]byte(s))
	return d, err
}
