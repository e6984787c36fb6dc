// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package llamacpp

import (
	"encoding/binary"
	"fmt"
)

// reader walks a blob whose length was checked before.
type reader struct {
	b []byte
	o int
}

func (r *reader) rest() int { return len(r.b) - r.o }

func (r *reader) take(n int) []byte {
	r.o += n
	return r.b[r.o-n : r.o]
}

func (r *reader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

// frame checks everything before the number of layers.
func (r *reader) frame(first, count int) error {
	if m := r.u32(); m != blobMagic {
		return fmt.Errorf("%w: begins with %#08x, want %#08x", ErrBlob, m, uint32(blobMagic))
	}
	seq := r.u32()
	if n := r.u32(); n != 1 {
		return fmt.Errorf("%w: %d streams, want 1 (a unified cache)", ErrBlob, n)
	}
	if n := r.u32(); n != uint32(count) {
		return fmt.Errorf("%w: %d rows, want %d", ErrBlob, n, count)
	}
	for i := range count {
		if p := r.u32(); p != uint32(first+i) {
			return fmt.Errorf("%w: row %d has position %d, want %d", ErrBlob, i, int32(p), first+i)
		}
		if n := r.u32(); n != 1 {
			return fmt.Errorf("%w: row %d belongs to %d sequences, want 1", ErrBlob, i, n)
		}
		if s := r.u32(); s != seq {
			return fmt.Errorf("%w: row %d belongs to sequence %d, the blob to %d", ErrBlob, i, int32(s), int32(seq))
		}
	}
	if v := r.u32(); v != 0 {
		return fmt.Errorf("%w: V is transposed: flash attention is off", ErrBlob)
	}
	return nil
}
