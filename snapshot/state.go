// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/zeebo/xxh3"
)

// BlockRows is the number of token rows in a full block.
const BlockRows = 16

// SessionID identifies a session: 128 random bits minted by the router.
type SessionID [16]byte

// String is the id in hex.
func (s SessionID) String() string { return hex.EncodeToString(s[:]) }

// ParseSessionID reads the 32 hex digits that String writes.
func ParseSessionID(s string) (SessionID, error) {
	var id SessionID
	if len(s) != 2*len(id) {
		return id, fmt.Errorf("session id has %d characters, want %d hex digits", len(s), 2*len(id))
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return id, fmt.Errorf("parse session id: %w", err)
	}
	return id, nil
}

// Digest is a 128-bit xxh3 content hash. It finds damage, not forgery.
type Digest [16]byte

// String is the digest in hex.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// IDsDigest is the digest of a list of token ids.
func IDsDigest(ids []int32) Digest {
	b := make([]byte, 0, 4*len(ids)+4)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(ids)))
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	return Digest(xxh3.Hash128(b).Bytes())
}

// Sampler is the whole state of a counter-based sampler: randomness is a function of (Seed, position),
// everything else a function of the ids. Draws counts the tokens drawn so far and equals the boundary.
type Sampler struct {
	Seed  uint64
	Draws uint64
}

// State is a session at boundary n: P prompt ids, n output ids, and the rows of positions 0 … P+n-2. The
// newest token's row doesn't exist: feeding it is the first act of a continuation.
type State struct {
	Geometry Geometry
	Prompt   []int32
	Output   []int32
	// Blocks holds the rows, BlockRows of them in each block but the last. Read-only, shared with the
	// store; valid until the caller's use of the state ends (garbage collected, never reused).
	Blocks  [][]byte
	Sampler Sampler
}

// Rows is the number of token rows, P+n-1.
func (s *State) Rows() int { return len(s.Prompt) + len(s.Output) - 1 }

// RowData is row i, a view into its block.
func (s *State) RowData(i int) []byte {
	rb := s.Geometry.RowBytes()
	o := (i % BlockRows) * rb
	return s.Blocks[i/BlockRows][o : o+rb : o+rb]
}

// Validate reports whether the parts fit together.
func (s *State) Validate() error {
	if err := s.Geometry.Validate(); err != nil {
		return err
	}
	if len(s.Prompt) == 0 || len(s.Output) == 0 {
		return fmt.Errorf("state has %d prompt and %d output ids, want at least one of each", len(s.Prompt), len(s.Output))
	}
	if s.Sampler.Draws != uint64(len(s.Output)) {
		return fmt.Errorf("state has %d output ids and %d draws", len(s.Output), s.Sampler.Draws)
	}
	n, rb := s.Rows(), s.Geometry.RowBytes()
	if want := (n + BlockRows - 1) / BlockRows; len(s.Blocks) != want {
		return fmt.Errorf("state has %d blocks for %d rows, want %d", len(s.Blocks), n, want)
	}
	for i, b := range s.Blocks {
		rows := min(BlockRows, n-i*BlockRows)
		if len(b) < rows*rb {
			return fmt.Errorf("block %d has %d bytes, want %d", i, len(b), rows*rb)
		}
	}
	return nil
}
