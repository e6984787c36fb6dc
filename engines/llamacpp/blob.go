// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package llamacpp

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/seguekv/segue/snapshot"
)

// blobMagic opens every sequence state of llama.cpp v0.5.0.
const blobMagic = 0xaf143cd8

const (
	blobHead  = 16 // magic, seq, streams, n
	blobCell  = 12 // position, number of sequences, seq
	blobShape = 8  // transposed, layers
	blobRows  = 12 // type, row bytes
)

// Layout reads and writes the state blobs of one geometry.
type Layout struct {
	geometry snapshot.Geometry
	digest   snapshot.Digest
	rowBytes int
	layers   []layer
}

type layer struct {
	k, v tensor
}

// part is K for half 0 of a blob and V for half 1.
func (y *layer) part(half int) tensor {
	if half == 0 {
		return y.k
	}
	return y.v
}

// tensor is the part of a canonical row that belongs to one layer's K or V.
type tensor struct {
	kind  elementType
	bytes int // of one row
	at    int // offset in the canonical row
}

// NewLayout returns the layout of a geometry. Its element types must be ones that llama.cpp can keep in a cache.
func NewLayout(g snapshot.Geometry) (*Layout, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	l := &Layout{geometry: g, digest: g.Digest(), rowBytes: g.RowBytes()}
	at := 0
	for i, r := range g.Layers {
		k, err := parseElementType(r.KType)
		if err != nil {
			return nil, fmt.Errorf("layer %d: K %w", i, err)
		}
		v, err := parseElementType(r.VType)
		if err != nil {
			return nil, fmt.Errorf("layer %d: V %w", i, err)
		}
		l.layers = append(l.layers, layer{
			k: tensor{kind: k, bytes: r.KBytes, at: at},
			v: tensor{kind: v, bytes: r.VBytes, at: at + r.KBytes},
		})
		at += r.KBytes + r.VBytes
	}
	return l, nil
}

// Geometry is the geometry the layout was made for. Its layers are shared: read only.
func (l *Layout) Geometry() snapshot.Geometry { return l.geometry }

// Size is the length of a blob with the given number of rows, which is at most snapshot.MaxTokens.
func (l *Layout) Size(rows int) int {
	return blobHead + rows*blobCell + blobShape + 2*len(l.layers)*blobRows + rows*l.rowBytes
}

// AppendBlob appends to dst the blob of positions [first, first+count) of a state, addressed to sequence
// seq. It grows dst at most once, copies each row once, and keeps no reference to either argument.
func (l *Layout) AppendBlob(dst []byte, seq int32, s *snapshot.State, first, count int) ([]byte, error) {
	if err := s.Validate(); err != nil {
		return dst, err
	}
	if d := s.Geometry.Digest(); d != l.digest {
		return dst, fmt.Errorf("state has geometry %s, this engine %s", d, l.digest)
	}
	if first < 0 || count < 1 || first+count > s.Rows() {
		return dst, fmt.Errorf("rows %d to %d of a state with %d", first, first+count, s.Rows())
	}
	size := l.Size(count)
	dst = slices.Grow(dst, size)
	b := dst[len(dst) : len(dst)+size]
	l.writeFrame(b, seq, first, count)
	for done := 0; done < count; {
		block, row := (first+done)/snapshot.BlockRows, (first+done)%snapshot.BlockRows
		n := min(snapshot.BlockRows-row, count-done)
		l.scatter(b, count, done, s.Blocks[block][row*l.rowBytes:], n)
		done += n
	}
	return dst[:len(dst)+size], nil
}

// writeFrame writes everything of a blob but the rows.
func (l *Layout) writeFrame(b []byte, seq int32, first, count int) {
	le := binary.LittleEndian
	le.PutUint32(b, blobMagic)
	le.PutUint32(b[4:], uint32(seq))
	le.PutUint32(b[8:], 1)
	le.PutUint32(b[12:], uint32(count))
	o := blobHead
	for i := range count {
		le.PutUint32(b[o:], uint32(first+i))
		le.PutUint32(b[o+4:], 1)
		le.PutUint32(b[o+8:], uint32(seq))
		o += blobCell
	}
	le.PutUint32(b[o:], 0)
	le.PutUint32(b[o+4:], uint32(len(l.layers)))
	o += blobShape
	for half := range 2 {
		for i := range l.layers {
			t := l.layers[i].part(half)
			le.PutUint32(b[o:], uint32(t.kind))
			le.PutUint64(b[o+4:], uint64(t.bytes))
			o += blobRows + count*t.bytes
		}
	}
}

// scatter copies n canonical rows into a blob of count rows, beginning at its row at. It walks the source
// once from front to back: the source is the larger stride.
func (l *Layout) scatter(b []byte, count, at int, rows []byte, n int) {
	ko := blobHead + count*blobCell + blobShape
	vo := ko
	for i := range l.layers {
		vo += blobRows + count*l.layers[i].k.bytes
	}
	for i := range l.layers {
		y := &l.layers[i]
		ko += blobRows
		vo += blobRows
		l.spread(b[ko+at*y.k.bytes:], rows, y.k, n)
		l.spread(b[vo+at*y.v.bytes:], rows, y.v, n)
		ko += count * y.k.bytes
		vo += count * y.v.bytes
	}
}

func (l *Layout) spread(dst, rows []byte, t tensor, n int) {
	src := t.at
	for j := range n {
		copy(dst[j*t.bytes:(j+1)*t.bytes], rows[src:src+t.bytes])
		src += l.rowBytes
	}
}

// Rows writes the rows of a captured blob into dst in canonical layout. The blob must hold exactly the
// positions [first, first+count) in order, and dst exactly count rows. On an error, which wraps ErrBlob,
// dst is undefined.
func (l *Layout) Rows(dst, blob []byte, first, count int) error {
	if count < 1 || count > snapshot.MaxTokens || len(dst) != count*l.rowBytes {
		return fmt.Errorf("%w: %d bytes of room for %d rows of %d", ErrBlob, len(dst), count, l.rowBytes)
	}
	if len(blob) != l.Size(count) {
		return fmt.Errorf("%w: %d bytes for %d rows, want %d", ErrBlob, len(blob), count, l.Size(count))
	}
	r := reader{b: blob}
	if err := r.frame(first, count); err != nil {
		return err
	}
	if n := r.u32(); n != uint32(len(l.layers)) {
		return fmt.Errorf("%w: %d layers, want %d", ErrBlob, n, len(l.layers))
	}
	for half := range 2 {
		for i := range l.layers {
			t := l.layers[i].part(half)
			if kind, n := elementType(r.u32()), r.u64(); kind != t.kind || n != uint64(t.bytes) {
				return fmt.Errorf("%w: layer %d %s has %d bytes of %s a row, want %d of %s", ErrBlob, i, "KV"[half:half+1], n, kind, t.bytes, t.kind)
			}
			at := t.at
			for range count {
				copy(dst[at:at+t.bytes], r.take(t.bytes))
				at += l.rowBytes
			}
		}
	}
	return nil
}

// ReadGeometry returns the geometry of a captured blob with exactly the positions [0, count).
func ReadGeometry(blob []byte, count int) (snapshot.Geometry, error) {
	var g snapshot.Geometry
	if count < 1 || count > snapshot.MaxTokens || len(blob) < blobHead+count*blobCell+blobShape {
		return g, fmt.Errorf("%w: %d bytes for %d rows", ErrBlob, len(blob), count)
	}
	r := reader{b: blob}
	if err := r.frame(0, count); err != nil {
		return g, err
	}
	n := r.u32()
	if n == 0 || n > snapshot.MaxLayers {
		return g, fmt.Errorf("%w: %d layers, want 1..%d", ErrBlob, n, snapshot.MaxLayers)
	}
	g.Layers = make([]snapshot.LayerRows, n)
	for half := range 2 {
		for i := range g.Layers {
			if r.rest() < blobRows {
				return g, fmt.Errorf("%w: cut short in layer %d", ErrBlob, i)
			}
			kind, bytes := elementType(r.u32()), r.u64()
			if kind.String() == "" {
				return g, fmt.Errorf("%w: layer %d has element type %d", ErrBlob, i, uint32(kind))
			}
			if bytes > snapshot.MaxRowBytes || r.rest() < int(bytes)*count {
				return g, fmt.Errorf("%w: layer %d has rows of %d bytes", ErrBlob, i, bytes)
			}
			r.take(int(bytes) * count)
			if half == 0 {
				g.Layers[i].KType, g.Layers[i].KBytes = kind.String(), int(bytes)
			} else {
				g.Layers[i].VType, g.Layers[i].VBytes = kind.String(), int(bytes)
			}
		}
	}
	if r.rest() != 0 {
		return g, fmt.Errorf("%w: %d bytes too many", ErrBlob, r.rest())
	}
	return g, g.Validate()
}
