// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/seguekv/segue/fence"
)

// FormatVersion is the version that this build writes and reads.
//
//	1: base, rows and boundary records, xxh3 digests
const FormatVersion uint16 = 1

const (
	recordMagic  = 0x31524753 // "SGR1", little endian
	headerBytes  = 48
	trailerBytes = 8
	// MaxRecordBytes bounds one record's payload. A row fits.
	MaxRecordBytes = 16 << 20
)

// Kind is a record's kind.
type Kind uint8

// Kinds of records, FORMAT.md.
const (
	KindBase     Kind = 1
	KindRows     Kind = 2
	KindBoundary Kind = 3
)

// StreamTarget is the stream id of the target model's state.
const StreamTarget uint8 = 0

// Header is the fixed part of a record.
type Header struct {
	Kind Kind
	BaseID
	// First is the position of the first row, or the boundary's number.
	First int
	// Count is the number of rows.
	Count  int
	length int
}

// AppendBaseRecord appends the record that opens a base.
func AppendBaseRecord(b []byte, h *Head) []byte {
	start := len(b)
	b = appendHeader(b, Header{Kind: KindBase, BaseID: h.BaseID}, 0)
	b = appendHead(b, h)
	binary.LittleEndian.PutUint32(b[start+44:], uint32(len(b)-start-headerBytes))
	return appendTrailer(b, b[start:])
}

// AppendBoundaryRecord appends the record of a boundary.
func AppendBoundaryRecord(b []byte, id BaseID, x Boundary) []byte {
	start := len(b)
	b = appendHeader(b, Header{Kind: KindBoundary, BaseID: id, First: x.N}, 36)
	b = binary.LittleEndian.AppendUint32(b, uint32(x.Token))
	b = binary.LittleEndian.AppendUint64(b, x.Sampler.Seed)
	b = binary.LittleEndian.AppendUint64(b, x.Sampler.Draws)
	b = append(b, x.Seal[:]...)
	return appendTrailer(b, b[start:])
}

// AppendRowsRecord appends to pieces the record of rows [first, first+count) of c. The row pieces are views
// of the chain's memory; the rest is freshly allocated.
func AppendRowsRecord(pieces [][]byte, c *Chain, first, count int) [][]byte {
	n := count * c.rowSize
	head := appendHeader(make([]byte, 0, headerBytes+16), Header{Kind: KindRows, BaseID: c.head.BaseID, First: first, Count: count}, n+16)
	d := c.digests[first+count]
	tail := append(make([]byte, 0, 16+trailerBytes), d[:]...)
	tail = appendTrailer(tail, append(head, d[:]...))
	pieces = append(pieces, head)
	pieces = c.Views(pieces, first, count)
	return append(pieces, tail)
}

func appendHeader(b []byte, h Header, length int) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, recordMagic)
	b = le.AppendUint16(b, FormatVersion)
	b = append(b, byte(h.Kind), StreamTarget)
	b = append(b, h.Session[:]...)
	b = le.AppendUint64(b, uint64(h.Epoch))
	b = le.AppendUint32(b, h.Base)
	b = le.AppendUint32(b, uint32(h.First))
	b = le.AppendUint32(b, uint32(h.Count))
	return le.AppendUint32(b, uint32(length))
}

func appendTrailer(b, covered []byte) []byte {
	return binary.LittleEndian.AppendUint64(b, xxh3.Hash(covered))
}

// Reader reads records one after the other from the bytes of a frame.
type Reader struct {
	r   io.Reader
	buf []byte
	h   Header
	raw [headerBytes]byte
	// left is what of the present record's payload and trailer is unread.
	left int
}

// NewReader returns a reader of r.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Next reads the next header. It returns io.EOF exactly at the end of the last record. After it the
// caller must read the record's payload with the method for its kind.
func (r *Reader) Next() (Header, error) {
	if _, err := io.ReadFull(r.r, r.raw[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return Header{}, io.EOF
		}
		return Header{}, fmt.Errorf("%w: header: %w", ErrFormat, err)
	}
	le := binary.LittleEndian
	if m := le.Uint32(r.raw[0:]); m != recordMagic {
		return Header{}, fmt.Errorf("%w: magic %#x", ErrFormat, m)
	}
	if v := le.Uint16(r.raw[4:]); v != FormatVersion {
		return Header{}, &VersionError{Got: v, Want: FormatVersion}
	}
	if s := r.raw[7]; s != StreamTarget {
		return Header{}, fmt.Errorf("%w: stream %d", ErrFormat, s)
	}
	h := Header{Kind: Kind(r.raw[6])}
	copy(h.Session[:], r.raw[8:24])
	h.Epoch = fence.Epoch(le.Uint64(r.raw[24:]))
	h.Base = le.Uint32(r.raw[32:])
	first, count, length := le.Uint32(r.raw[36:]), le.Uint32(r.raw[40:]), le.Uint32(r.raw[44:])
	if first > MaxTokens || count > MaxTokens || length > MaxRecordBytes {
		return Header{}, fmt.Errorf("%w: first %d, count %d, length %d", ErrFormat, first, count, length)
	}
	h.First, h.Count, h.length = int(first), int(count), int(length)
	r.h = h
	r.left = int(length) + trailerBytes
	return h, nil
}

func (r *Reader) read(p []byte) error {
	n, err := io.ReadFull(r.r, p)
	r.left -= n
	return err
}

// Base reads the payload of a base record.
func (r *Reader) Base() (Head, error) {
	p, err := r.payload()
	if err != nil {
		return Head{}, err
	}
	h, err := decodeHead(p)
	if err != nil {
		return Head{}, err
	}
	if h.BaseID != r.h.BaseID {
		return Head{}, fmt.Errorf("%w: base of another session or epoch", ErrFormat)
	}
	return h, nil
}

// Boundary reads the payload of a boundary record.
func (r *Reader) Boundary() (Boundary, error) {
	if r.h.length != 36 {
		return Boundary{}, fmt.Errorf("%w: boundary of %d bytes", ErrFormat, r.h.length)
	}
	p, err := r.payload()
	if err != nil {
		return Boundary{}, err
	}
	le := binary.LittleEndian
	b := Boundary{N: r.h.First, Token: int32(le.Uint32(p)), Sampler: Sampler{Seed: le.Uint64(p[4:]), Draws: le.Uint64(p[12:])}}
	copy(b.Seal[:], p[20:])
	return b, nil
}

// Rows reads the payload of a rows record straight into c, which must be the chain of the header's base. If
// it fails no row is added.
func (r *Reader) Rows(c *Chain) error {
	if r.h.length != r.h.Count*c.rowSize+16 {
		return fmt.Errorf("%w: %d bytes for %d rows of %d", ErrFormat, r.h.length, r.h.Count, c.rowSize)
	}
	at := c.Rows()
	err := c.Fill(r.h.First, r.h.Count, func(dst []byte) error {
		if err := r.read(dst); err != nil {
			return fmt.Errorf("%w: rows: %w", ErrFormat, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var tail [16 + trailerBytes]byte
	if err := r.read(tail[:]); err != nil {
		c.DropRows(at)
		return fmt.Errorf("%w: rows: %w", ErrFormat, err)
	}
	var covered [headerBytes + 16]byte
	copy(covered[:], r.raw[:])
	copy(covered[headerBytes:], tail[:16])
	if xxh3.Hash(covered[:]) != binary.LittleEndian.Uint64(tail[16:]) || Digest(tail[:16]) != c.DigestAt(c.Rows()) {
		c.DropRows(at)
		return fmt.Errorf("%w: rows %d..%d", ErrDigest, r.h.First, r.h.First+r.h.Count-1)
	}
	return nil
}

// Skip reads and drops what is left of the present record.
func (r *Reader) Skip() error {
	n, err := io.CopyN(io.Discard, r.r, int64(r.left))
	r.left -= int(n)
	if err != nil {
		return fmt.Errorf("%w: skip payload: %w", ErrFormat, err)
	}
	return nil
}

// payloadStep is what is allocated before the payload's first bytes have come.
const payloadStep = 64 << 10

// payload reads payload and trailer and checks the trailer. The result is valid until the next call. Its
// memory grows with what is read, not with what the header promises.
func (r *Reader) payload() ([]byte, error) {
	r.buf = append(r.buf[:0], r.raw[:]...)
	for end := headerBytes + r.h.length + trailerBytes; len(r.buf) < end; {
		at := len(r.buf)
		r.buf = slices.Grow(r.buf, min(end-at, max(at, payloadStep)))
		r.buf = r.buf[:min(end, cap(r.buf))]
		if err := r.read(r.buf[at:]); err != nil {
			return nil, fmt.Errorf("%w: payload: %w", ErrFormat, err)
		}
	}
	covered := r.buf[:headerBytes+r.h.length]
	if xxh3.Hash(covered) != binary.LittleEndian.Uint64(r.buf[len(covered):]) {
		return nil, fmt.Errorf("%w: record of kind %d", ErrDigest, r.h.Kind)
	}
	return covered[headerBytes:], nil
}

// decodeHead is the inverse of appendHead. It copies what it keeps.
func decodeHead(p []byte) (Head, error) {
	d := decoder{b: p}
	var h Head
	copy(h.Session[:], d.take(16))
	h.Epoch = fence.Epoch(d.u64())
	h.Base = d.u32()
	layers := d.count(MaxLayers, 10)
	for range layers {
		l := LayerRows{KBytes: int(d.u32()), VBytes: int(d.u32())}
		l.KType = string(d.take(int(d.u8())))
		l.VType = string(d.take(int(d.u8())))
		h.Geometry.Layers = append(h.Geometry.Layers, l)
	}
	h.Fingerprint = append([]byte(nil), d.take(d.count(MaxFingerprintBytes, 1))...)
	copy(h.Request[:], d.take(16))
	h.MaxOutput = int(d.u32())
	h.Prompt = d.ids()
	h.Restored = d.ids()
	if d.bad || len(d.b) != 0 {
		return Head{}, fmt.Errorf("%w: base record", ErrFormat)
	}
	if err := h.Validate(); err != nil {
		return Head{}, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return h, nil
}

// decoder takes values from the front of b; after the first shortage it is bad and yields zeros.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || n > len(d.b) {
		d.bad = true
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) u8() uint8 {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if p := d.take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if p := d.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

// count reads a count of items of at least size bytes each, so that no more is allocated than is there.
func (d *decoder) count(limit, size int) int {
	n := int(d.u32())
	if n > limit || n*size > len(d.b) {
		d.bad = true
		return 0
	}
	return n
}

func (d *decoder) ids() []int32 {
	n := d.count(MaxTokens, 4)
	if n == 0 {
		return nil
	}
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(d.u32())
	}
	return ids
}
