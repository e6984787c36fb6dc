// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot_test

import (
	"bytes"
	"testing"

	"github.com/seguekv/segue/snapshot"
)

// flat is a geometry of 32 layers and rows of n bytes.
func flat(n int) snapshot.Geometry {
	return snapshot.Geometry{Layers: wide(32, n/64, n/64)}
}

func benchHead(row, prompt int) snapshot.Head {
	h := head(baseOf(1, 1), prompt, 4096)
	h.Geometry = flat(row)
	return h
}

// BenchmarkChain_AppendRows appends one row of 128 KiB, digests included.
func BenchmarkChain_AppendRows(b *testing.B) {
	const size, rows = 128 << 10, 256
	row := bytes.Repeat([]byte{0xa5}, size)
	h := benchHead(size, rows)
	b.SetBytes(size)
	b.ReportAllocs()
	var c *snapshot.Chain
	for b.Loop() {
		if c == nil || c.Rows() == rows {
			c, _ = snapshot.NewChain(h)
		}
		if err := c.AppendRows(c.Rows(), row); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkChain_State makes the state of 1500 rows of 23,040 bytes: every digest is computed again.
func BenchmarkChain_State(b *testing.B) {
	const size, rows = 23040, 1500
	c, err := snapshot.NewChain(benchHead(size, rows))
	if err != nil {
		b.Fatal(err)
	}
	if err := c.AppendRows(0, make([]byte, rows*size)); err != nil {
		b.Fatal(err)
	}
	if _, err := c.AppendBoundary(1, 1, samplerOf(1)); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(rows * size)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.State(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStore_ApplyDelta applies what one token costs: a row of 128 KiB and its boundary.
func BenchmarkStore_ApplyDelta(b *testing.B) {
	const size, deltas = 128 << 10, 64
	c, err := snapshot.NewChain(benchHead(size, 1))
	if err != nil {
		b.Fatal(err)
	}
	row := make([]byte, size)
	frames := [][]byte{snapshot.AppendBaseRecord(nil, c.Head())}
	for n := 1; n <= deltas; n++ {
		if err := c.AppendRows(c.Rows(), row); err != nil {
			b.Fatal(err)
		}
		x, err := c.AppendBoundary(n, tokenOf(n-1), samplerOf(n))
		if err != nil {
			b.Fatal(err)
		}
		frame := bytes.Join(snapshot.AppendRowsRecord(nil, c, n-1, 1), nil)
		frames = append(frames, snapshot.AppendBoundaryRecord(frame, c.Head().BaseID, x))
	}
	s, _ := newStore(1 << 30)
	b.SetBytes(size)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if i%len(frames) == 0 {
			receive(s, frames[0])
			i = 1
		}
		if errs := receive(s, frames[i%len(frames)]); len(errs) > 0 {
			b.Fatal(errs)
		}
		i++
	}
}

// BenchmarkAppendRowsRecord encodes one delta; the row is not copied.
func BenchmarkAppendRowsRecord(b *testing.B) {
	const size = 128 << 10
	c, err := snapshot.NewChain(benchHead(size, 16))
	if err != nil {
		b.Fatal(err)
	}
	if err := c.AppendRows(0, make([]byte, 16*size)); err != nil {
		b.Fatal(err)
	}
	pieces := make([][]byte, 0, 8)
	b.ReportAllocs()
	for b.Loop() {
		pieces = snapshot.AppendRowsRecord(pieces[:0], c, 3, 1)
	}
}
