// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/seguekv/segue/snapshot"
)

// spareBytes bounds the memory which an empty context keeps for its next run.
const spareBytes = 32 << 20

// cache holds the rows of one context and digests of them.
//
// INVARIANT: a digest is computed from the bytes in blocks, when they are written or loaded or read again.
type cache struct {
	seed     uint64
	rowBytes int

	rows int
	// blocks have room for snapshot.BlockRows rows each; the last may be partly filled. The first borrowed
	// ones are full blocks of the loaded state, which are only read.
	blocks   [][]byte
	borrowed int
	spare    [][]byte
	// full are the digests of the full blocks, tail those of the rows after them.
	full []uint64
	tail []uint64
	// list is the encoding of the digests, kept for its memory.
	list []byte
}

func newCache(c Config) cache {
	return cache{seed: mix(c.SeedOfWeights), rowBytes: c.KVBytesPerToken}
}

// room is where the next row goes, with whatever bytes are there.
func (c *cache) room() []byte {
	o := c.rows % snapshot.BlockRows
	if o == 0 {
		c.blocks = append(c.blocks, c.block())
	}
	b := c.blocks[len(c.blocks)-1]
	return b[o*c.rowBytes : (o+1)*c.rowBytes]
}

// append makes the bytes in room the next row.
func (c *cache) append() {
	c.rows++
	c.tail = append(c.tail, c.sum(c.row(c.rows-1)))
	if c.rows%snapshot.BlockRows == 0 {
		c.full = append(c.full, c.sum(c.blocks[len(c.blocks)-1]))
		c.tail = c.tail[:0]
	}
}

// load puts the state's rows into the empty cache: full blocks as they are, the rows after them as copies.
func (c *cache) load(s *snapshot.State) {
	n, size := s.Rows(), snapshot.BlockRows*c.rowBytes
	for ; n-c.rows >= snapshot.BlockRows; c.rows += snapshot.BlockRows {
		b := s.Blocks[c.borrowed][:size:size]
		c.blocks = append(c.blocks, b)
		c.full = append(c.full, c.sum(b))
		c.borrowed++
	}
	for c.rows < n {
		copy(c.room(), s.RowData(c.rows))
		c.append()
	}
}

// digest covers every row and its place.
func (c *cache) digest() uint64 {
	c.list = binary.LittleEndian.AppendUint64(c.list[:0], uint64(c.rows))
	for _, d := range c.full {
		c.list = binary.LittleEndian.AppendUint64(c.list, d)
	}
	for _, d := range c.tail {
		c.list = binary.LittleEndian.AppendUint64(c.list, d)
	}
	return c.sum(c.list)
}

// digestAll reads all rows again.
func (c *cache) digestAll() {
	for i := range c.full {
		c.full[i] = c.sum(c.blocks[i])
	}
	for i := range c.tail {
		c.tail[i] = c.sum(c.row(len(c.full)*snapshot.BlockRows + i))
	}
}

// copyRows copies the rows [first, first+count) to dst.
func (c *cache) copyRows(first, count int, dst []byte) error {
	if first < 0 || count < 0 || first+count > c.rows {
		return fmt.Errorf("rows %d..%d of %d", first, first+count-1, c.rows)
	}
	if len(dst) != count*c.rowBytes {
		return fmt.Errorf("%d rows of %d bytes into %d bytes", count, c.rowBytes, len(dst))
	}
	for i := range count {
		copy(dst[i*c.rowBytes:], c.row(first+i))
	}
	return nil
}

// reset empties the cache. It keeps some blocks of its own, with their bytes, for the next rows.
func (c *cache) reset() {
	keep := spareBytes / (snapshot.BlockRows * c.rowBytes)
	own := c.blocks[c.borrowed:]
	if n := min(len(own), keep-len(c.spare)); n > 0 {
		c.spare = append(c.spare, own[:n]...)
	}
	clear(c.blocks)
	c.rows, c.borrowed = 0, 0
	c.blocks, c.full, c.tail = c.blocks[:0], c.full[:0], c.tail[:0]
}

func (c *cache) row(i int) []byte {
	o := i % snapshot.BlockRows * c.rowBytes
	return c.blocks[i/snapshot.BlockRows][o : o+c.rowBytes]
}

func (c *cache) block() []byte {
	if n := len(c.spare) - 1; n >= 0 {
		b := c.spare[n]
		c.spare[n] = nil
		c.spare = c.spare[:n]
		return b
	}
	return make([]byte, snapshot.BlockRows*c.rowBytes)
}

func (c *cache) sum(b []byte) uint64 { return xxh3.HashSeed(b, c.seed) }
