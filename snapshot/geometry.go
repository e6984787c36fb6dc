// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"
)

// Limits that bound every allocation made from a peer's or an engine's words.
const (
	// MaxLayers is the largest number of layers a geometry may have.
	MaxLayers = 1024
	// MaxTypeBytes is the longest name of an element type.
	MaxTypeBytes = 255
	// MaxRowBytes is the largest token row, all layers, K and V.
	MaxRowBytes = 8 << 20
	// MaxTokens is the largest number of prompt and output ids of a session.
	MaxTokens = 1 << 20
)

// LayerRows gives the bytes of one token's K row and V row in one layer, and their element types
// ("f16", "q8_0", …), which are compared but never interpreted.
type LayerRows struct {
	KBytes, VBytes int
	KType, VType   string
}

// Geometry is the canonical row layout of one stream: for each token, for each layer in order, the K row
// and then the V row.
type Geometry struct {
	Layers []LayerRows
}

// RowBytes is the size of one token row.
func (g Geometry) RowBytes() int {
	n := 0
	for _, l := range g.Layers {
		n += l.KBytes + l.VBytes
	}
	return n
}

// Validate reports whether the geometry is within the limits.
func (g Geometry) Validate() error {
	if len(g.Layers) == 0 {
		return errors.New("geometry has no layers")
	}
	if len(g.Layers) > MaxLayers {
		return fmt.Errorf("geometry has %d layers, limit %d", len(g.Layers), MaxLayers)
	}
	for i, l := range g.Layers {
		if l.KBytes < 0 || l.VBytes < 0 || l.KBytes > MaxRowBytes || l.VBytes > MaxRowBytes {
			return fmt.Errorf("layer %d has row sizes %d and %d", i, l.KBytes, l.VBytes)
		}
		if len(l.KType) > MaxTypeBytes || len(l.VType) > MaxTypeBytes {
			return fmt.Errorf("layer %d has type names of %d and %d bytes, limit %d", i, len(l.KType), len(l.VType), MaxTypeBytes)
		}
	}
	if n := g.RowBytes(); n == 0 || n > MaxRowBytes {
		return fmt.Errorf("token row has %d bytes, want 1..%d", n, MaxRowBytes)
	}
	return nil
}

// Digest is equal exactly for equal geometries, which must be valid.
func (g Geometry) Digest() Digest {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(g.Layers)))
	for _, l := range g.Layers {
		b = binary.LittleEndian.AppendUint32(b, uint32(l.KBytes))
		b = binary.LittleEndian.AppendUint32(b, uint32(l.VBytes))
		b = append(append(b, byte(len(l.KType))), l.KType...)
		b = append(append(b, byte(len(l.VType))), l.VType...)
	}
	return Digest(xxh3.Hash128(b).Bytes())
}
