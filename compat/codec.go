// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package compat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

const magic = "SEFP"

// Versions of the encoding.
const (
	// versionFirst has the fields of the list in fields.go.
	versionFirst = 1

	version = versionFirst
)

// ErrEncoding means that bytes are not the canonical encoding of a fingerprint. Permanent for those bytes.
var ErrEncoding = errors.New("compat: bad fingerprint encoding")

var le = binary.LittleEndian

// Encode returns the canonical encoding. It is defined for every fingerprint; Decode reads back those that
// are valid.
func (f Fingerprint) Encode() []byte {
	fields := f.fields()
	b := append(make([]byte, 0, 1024), magic...)
	b = le.AppendUint16(b, version)
	b = le.AppendUint16(b, uint16(len(fields)))
	for i, fd := range fields {
		b = le.AppendUint16(b, uint16(i+1))
		at := len(b)
		b = appendValue(le.AppendUint32(b, 0), fd.value)
		le.PutUint32(b[at:], uint32(len(b)-at-4))
	}
	return b
}

func appendValue(b []byte, value any) []byte {
	switch v := value.(type) {
	case *string:
		return append(b, *v...)
	case *uint32:
		return le.AppendUint32(b, *v)
	case *float32:
		return le.AppendUint32(b, math.Float32bits(*v))
	case *bool:
		if *v {
			return append(b, 1)
		}
		return append(b, 0)
	case *Digest:
		return append(b, v[:]...)
	case *[]Library:
		b = le.AppendUint32(b, uint32(len(*v)))
		for _, l := range *v {
			b = append(le.AppendUint32(b, uint32(len(l.Name))), l.Name...)
			b = append(b, l.Digest[:]...)
		}
		return b
	case *[]Adapter:
		b = le.AppendUint32(b, uint32(len(*v)))
		for _, a := range *v {
			b = le.AppendUint32(append(b, a.Digest[:]...), math.Float32bits(a.Scale))
		}
		return b
	default:
		panic(fmt.Sprintf("compat: field of type %T", value))
	}
}

// Decode reads an encoding. It accepts exactly what Encode writes for a valid fingerprint and keeps no
// reference to b. Errors are ErrEncoding, wrapped with the place.
func Decode(b []byte) (Fingerprint, error) {
	if len(b) > MaxEncodedBytes {
		return Fingerprint{}, fmt.Errorf("%w: %d bytes, limit %d", ErrEncoding, len(b), MaxEncodedBytes)
	}
	if len(b) < len(magic)+4 || string(b[:len(magic)]) != magic {
		return Fingerprint{}, fmt.Errorf("%w: no %q header", ErrEncoding, magic)
	}
	if v := le.Uint16(b[4:]); v != version {
		return Fingerprint{}, fmt.Errorf("%w: version %d, this build reads version %d; run the same release of segue on both sides", ErrEncoding, v, version)
	}
	var f Fingerprint
	fields := f.fields()
	if n := int(le.Uint16(b[6:])); n != len(fields) {
		return Fingerprint{}, fmt.Errorf("%w: %d fields, want %d", ErrEncoding, n, len(fields))
	}
	r := reader{b: b[8:]}
	for i, fd := range fields {
		head, ok := r.take(6)
		if !ok || int(le.Uint16(head)) != i+1 {
			return Fingerprint{}, fmt.Errorf("%w: %s: field missing or out of order", ErrEncoding, fd.name)
		}
		value, ok := r.take(le.Uint32(head[2:]))
		if !ok {
			return Fingerprint{}, fmt.Errorf("%w: %s: truncated", ErrEncoding, fd.name)
		}
		if err := readValue(value, fd.value); err != nil {
			return Fingerprint{}, fmt.Errorf("%w: %s: %w", ErrEncoding, fd.name, err)
		}
	}
	if len(r.b) > 0 {
		return Fingerprint{}, fmt.Errorf("%w: %d bytes after the last field", ErrEncoding, len(r.b))
	}
	return f, nil
}

// reader hands out views of b.
type reader struct{ b []byte }

func (r *reader) take(n uint32) ([]byte, bool) {
	if uint64(n) > uint64(len(r.b)) {
		return nil, false
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v, true
}

func readValue(b []byte, value any) error {
	switch v := value.(type) {
	case *string:
		*v = string(b)
		return validText(*v)
	case *uint32:
		return readFixed(b, 4, func() { *v = le.Uint32(b) })
	case *float32:
		return readFixed(b, 4, func() { *v = math.Float32frombits(le.Uint32(b)) })
	case *bool:
		if len(b) == 1 && b[0] > 1 {
			return fmt.Errorf("flag is %d, want 0 or 1", b[0])
		}
		return readFixed(b, 1, func() { *v = b[0] == 1 })
	case *Digest:
		return readFixed(b, len(v), func() { copy(v[:], b) })
	case *[]Library:
		return readList(b, MaxLibraries, v, readLibrary)
	case *[]Adapter:
		return readList(b, MaxAdapters, v, readAdapter)
	default:
		panic(fmt.Sprintf("compat: field of type %T", value))
	}
}

func readFixed(b []byte, n int, set func()) error {
	if len(b) != n {
		return fmt.Errorf("%d bytes, want %d", len(b), n)
	}
	set()
	return nil
}

func readList[T any](b []byte, limit uint32, list *[]T, read func(*reader) (T, error)) error {
	r := reader{b: b}
	head, ok := r.take(4)
	if !ok {
		return errors.New("truncated list")
	}
	n := le.Uint32(head)
	if n > limit {
		return fmt.Errorf("%d entries, limit %d", n, limit)
	}
	for range n {
		v, err := read(&r)
		if err != nil {
			return err
		}
		*list = append(*list, v)
	}
	if len(r.b) > 0 {
		return fmt.Errorf("%d bytes after the last entry", len(r.b))
	}
	return nil
}

func readLibrary(r *reader) (Library, error) {
	head, ok := r.take(4)
	if !ok {
		return Library{}, errors.New("truncated entry")
	}
	name, ok := r.take(le.Uint32(head))
	if !ok {
		return Library{}, errors.New("truncated name")
	}
	l := Library{Name: string(name)}
	digest, ok := r.take(uint32(len(l.Digest)))
	if !ok {
		return Library{}, errors.New("truncated digest")
	}
	copy(l.Digest[:], digest)
	return l, validText(l.Name)
}

func readAdapter(r *reader) (Adapter, error) {
	var a Adapter
	digest, ok := r.take(uint32(len(a.Digest)))
	if !ok {
		return Adapter{}, errors.New("truncated digest")
	}
	copy(a.Digest[:], digest)
	scale, ok := r.take(4)
	if !ok {
		return Adapter{}, errors.New("truncated scale")
	}
	a.Scale = math.Float32frombits(le.Uint32(scale))
	return a, nil
}
