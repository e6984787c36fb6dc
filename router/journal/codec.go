// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// Encoding of records: unsigned numbers as shortest varints, strings and lists behind their length, flags as one byte
// of bits, instants as nanoseconds since 1970 with 0 for none. A decoder accepts exactly what the encoder makes.

func putString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func putInt(b []byte, n int) []byte { return binary.AppendUvarint(b, uint64(max(n, 0))) }

func putTime(b []byte, t time.Time) []byte { return binary.AppendUvarint(b, uint64(nanos(t))) }

// nanos is an instant as records hold it; instants before 1970 read as none.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(t.UnixNano(), 0)
}

func instant(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// putFlags packs up to eight flags.
func putFlags(b []byte, flags ...bool) []byte {
	var x byte
	for i, f := range flags {
		if f {
			x |= 1 << i
		}
	}
	return append(b, x)
}

// reader takes a record apart. After the first error everything reads as zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrFormat, what)
	}
	r.b = nil
}

func (r *reader) uvarint() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 || size > 1 && r.b[size-1] == 0 {
		r.fail("number")
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *reader) int(limit int) int {
	n := r.uvarint()
	if n > uint64(limit) {
		r.fail("number out of range")
		return 0
	}
	return int(n)
}

func (r *reader) count() int { return r.int(math.MaxInt) }

func (r *reader) time() time.Time { return instant(int64(r.int(math.MaxInt64))) }

// take is the next n bytes, part of the record.
func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.fail("cut off")
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) string(limit int) string { return string(r.take(r.int(limit))) }

func (r *reader) digest() (d [32]byte) {
	copy(d[:], r.take(32))
	return d
}

func (r *reader) byte(limit int) int {
	v := r.take(1)
	if len(v) == 0 {
		return 0
	}
	if int(v[0]) > limit {
		r.fail("byte out of range")
		return 0
	}
	return int(v[0])
}

// flags reads into each of the pointers.
func (r *reader) flags(flags ...*bool) {
	x := r.byte(1<<len(flags) - 1)
	for i, f := range flags {
		*f = x&(1<<i) != 0
	}
}

// end checks that nothing is left.
func (r *reader) end() error {
	if len(r.b) > 0 {
		r.fail("bytes after the end")
	}
	return r.err
}
