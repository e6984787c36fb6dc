// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"
)

// Boundary is the record of one boundary: N output ids are known and the rows of all positions before the
// newest id are complete.
type Boundary struct {
	N       int
	Token   int32
	Sampler Sampler
	// Seal is chained over the previous boundary's seal and the rows' chain digest.
	Seal Digest
}

// Chain is the state of one base: rows in blocks, ids, boundaries, all append-only, each append verified
// against its predecessor. Rows below Rows() never change, so views of them may be read without a lock
// while the chain grows; everything else belongs to one goroutine at a time.
//
// INVARIANT: chain digest i+1 = xxh3-128(digest i | id of position i | xxh3-128(row i)); digest 0 is the
// head's. The digest of a block is the chain digest after its last row.
// INVARIANT: boundary n is appended only when exactly P+n-1 rows are in.
type Chain struct {
	head    Head
	rowSize int
	output  []int32
	blocks  [][]byte
	digests []Digest // after 0, 1, … rows
	seals   []Digest // of boundaries Restored+1, …; seals[0] is the seed
	sampler Sampler
}

// NewChain starts an empty chain. It takes ownership of the head's slices.
func NewChain(h Head) (*Chain, error) {
	if err := h.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	d := h.digest()
	return &Chain{
		head: h, rowSize: h.Geometry.RowBytes(),
		output:  append([]int32(nil), h.Restored...),
		digests: []Digest{d}, seals: []Digest{d},
	}, nil
}

// Head is the chain's head. Read-only.
func (c *Chain) Head() *Head { return &c.head }

// Rows is the number of complete rows.
func (c *Chain) Rows() int { return len(c.digests) - 1 }

// Committed is the newest complete boundary; 0 while the base is in progress.
func (c *Chain) Committed() int {
	if len(c.seals) == 1 {
		return 0
	}
	return len(c.output)
}

// First is the number of the base's first boundary.
func (c *Chain) First() int { return len(c.head.Restored) + 1 }

// Output are the output ids known, a read-only view.
func (c *Chain) Output() []int32 { return c.output }

// Bytes is the memory that the rows take.
func (c *Chain) Bytes() int64 { return int64(len(c.blocks)) * int64(BlockRows*c.rowSize) }

// DigestAt is the chain digest after n rows, n <= Rows().
func (c *Chain) DigestAt(n int) Digest { return c.digests[n] }

// SealAt is the seal of boundary n, First() <= n <= Committed().
func (c *Chain) SealAt(n int) Digest { return c.seals[n-len(c.head.Restored)] }

// BoundaryAt is the sealed record of boundary n, First() <= n <= Committed().
func (c *Chain) BoundaryAt(n int) Boundary {
	return Boundary{N: n, Token: c.output[n-1], Sampler: Sampler{Seed: c.sampler.Seed, Draws: uint64(n)}, Seal: c.SealAt(n)}
}

// AppendRows copies rows for positions first, first+1, … into the chain. first must be Rows() and the ids
// of all these positions known.
func (c *Chain) AppendRows(first int, rows []byte) error {
	if len(rows)%c.rowSize != 0 {
		return fmt.Errorf("%w: %d bytes of rows, row size %d", ErrFormat, len(rows), c.rowSize)
	}
	n := len(rows) / c.rowSize
	return c.Fill(first, n, func(dst []byte) error {
		copy(dst, rows)
		rows = rows[len(dst):]
		return nil
	})
}

// Fill appends count rows whose bytes read writes straight into the chain's memory: it is called with
// consecutive destinations of whole rows. If it fails, no row is added.
func (c *Chain) Fill(first, count int, read func(dst []byte) error) error {
	at := c.Rows()
	if first != at {
		return &OrderError{What: "row", Got: first, Want: at}
	}
	if count < 1 || at+count > c.head.MaxRows() {
		return fmt.Errorf("%w: %d rows after %d, limit %d", ErrFormat, count, at, c.head.MaxRows())
	}
	if known := len(c.head.Prompt) + len(c.output); at+count > known {
		return &OrderError{What: "row without an id at position", Got: at + count - 1, Want: known - 1}
	}
	for i := at; i < at+count; {
		if i/BlockRows == len(c.blocks) {
			c.blocks = append(c.blocks, make([]byte, BlockRows*c.rowSize))
		}
		n := min(BlockRows-i%BlockRows, at+count-i)
		o := (i % BlockRows) * c.rowSize
		if err := read(c.blocks[i/BlockRows][o : o+n*c.rowSize]); err != nil {
			return err
		}
		i += n
	}
	for i := at; i < at+count; i++ {
		c.digests = append(c.digests, link(c.digests[i], c.id(i), xxh3.Hash128(c.row(i))))
	}
	return nil
}

// DropRows takes back the newest rows until n are left; rows of a sealed boundary stay.
func (c *Chain) DropRows(n int) {
	n = min(max(n, c.sealedRows()), c.Rows())
	c.digests = c.digests[:n+1]
}

// AppendBoundary seals boundary n with the token that makes it. The rows of positions 0 … P+n-2 must be in.
// It returns the sealed record.
func (c *Chain) AppendBoundary(n int, token int32, s Sampler) (Boundary, error) {
	if want := len(c.output) + 1; n != want {
		return Boundary{}, &OrderError{What: "boundary", Got: n, Want: want}
	}
	if n > c.head.MaxOutput {
		return Boundary{}, fmt.Errorf("%w: boundary %d, limit %d", ErrFormat, n, c.head.MaxOutput)
	}
	if want := len(c.head.Prompt) + n - 1; c.Rows() != want {
		return Boundary{}, &OrderError{What: fmt.Sprintf("boundary %d with a number of rows of", n), Got: c.Rows(), Want: want}
	}
	if s.Draws != uint64(n) {
		return Boundary{}, fmt.Errorf("%w: boundary %d with %d draws", ErrFormat, n, s.Draws)
	}
	if c.Committed() > 0 && s.Seed != c.sampler.Seed {
		return Boundary{}, fmt.Errorf("%w: boundary %d with seed %d, the session's is %d", ErrFormat, n, s.Seed, c.sampler.Seed)
	}
	b := Boundary{N: n, Token: token, Sampler: s}
	b.Seal = seal(c.seals[len(c.seals)-1], b, c.digests[c.Rows()])
	c.output = append(c.output, token)
	c.seals = append(c.seals, b.Seal)
	c.sampler = s
	return b, nil
}

// cut takes back what is above boundary n, which is one that was sealed here: First() <= n <= Committed().
func (c *Chain) cut(n int) {
	c.output = c.output[:n]
	c.seals = c.seals[:n-len(c.head.Restored)+1]
	c.sampler.Draws = uint64(n)
	c.DropRows(c.sealedRows())
}

// Views appends read-only views of rows [first, first+count), one per block touched.
func (c *Chain) Views(dst [][]byte, first, count int) [][]byte {
	for i := first; i < first+count; {
		n := min(BlockRows-i%BlockRows, first+count-i)
		o := (i % BlockRows) * c.rowSize
		dst = append(dst, c.blocks[i/BlockRows][o:o+n*c.rowSize])
		i += n
	}
	return dst
}

// State returns the state at the newest boundary after recomputing every digest from the bytes in memory.
// Rows above the boundary are dropped.
func (c *Chain) State() (*State, error) {
	n := c.Committed()
	if n == 0 {
		return nil, &NotCoveredError{Committed: 0, Need: 1}
	}
	c.DropRows(c.sealedRows())
	if err := c.verify(); err != nil {
		return nil, err
	}
	rows := c.Rows()
	s := &State{
		Geometry: c.head.Geometry,
		Prompt:   c.head.Prompt,
		Output:   append([]int32(nil), c.output...),
		Blocks:   c.blocks[: (rows+BlockRows-1)/BlockRows : (rows+BlockRows-1)/BlockRows],
		Sampler:  c.sampler,
	}
	return s, s.Validate()
}

// Share returns a chain with the same state up to the newest boundary. The blocks are shared, so neither of the two must
// grow any more, but they may belong to two goroutines.
func (c *Chain) Share() *Chain {
	r := *c
	r.DropRows(r.sealedRows())
	r.output, r.blocks = slices.Clip(c.output), slices.Clip(c.blocks)
	r.digests, r.seals = slices.Clip(r.digests), slices.Clip(c.seals)
	return &r
}

// Rebase returns a chain of another base with the same rows and ids: the restored ids are those below the
// newest boundary, which is sealed anew; a base in progress stays one. Every row is checked against its old
// digest on the way, so that damage in memory isn't sealed as good. Rows above the newest boundary are
// dropped. Blocks are shared, so the old chain must not grow any more.
func (c *Chain) Rebase(id BaseID) (*Chain, error) {
	h, rows, n := c.head, c.Rows(), c.Committed()
	h.BaseID = id
	if n > 0 {
		rows = c.sealedRows()
		h.Restored = append([]int32(nil), c.output[:n-1]...)
	}
	r, err := NewChain(h)
	if err != nil {
		return nil, err
	}
	r.blocks = c.blocks
	old := c.head.digest()
	for i := range rows {
		sum := xxh3.Hash128(c.row(i))
		if old = link(old, c.id(i), sum); old != c.digests[i+1] {
			return nil, fmt.Errorf("%w: row %d in memory", ErrDigest, i)
		}
		r.digests = append(r.digests, link(r.digests[i], c.id(i), sum))
	}
	if n == 0 {
		return r, nil
	}
	if err := c.verifySeals(); err != nil {
		return nil, err
	}
	_, err = r.AppendBoundary(n, c.output[n-1], c.sampler)
	return r, err
}

// verify recomputes the chain and the seals from the head, the ids and the rows in memory.
func (c *Chain) verify() error {
	d := c.head.digest()
	for i := range c.Rows() {
		d = link(d, c.id(i), xxh3.Hash128(c.row(i)))
		if d != c.digests[i+1] {
			return fmt.Errorf("%w: row %d in memory", ErrDigest, i)
		}
	}
	return c.verifySeals()
}

// verifySeals covers what no row's digest does: the newest id and the sampler.
func (c *Chain) verifySeals() error {
	d := c.head.digest()
	for n := c.First(); n <= c.Committed(); n++ {
		d = seal(d, c.BoundaryAt(n), c.digests[len(c.head.Prompt)+n-1])
		if d != c.SealAt(n) {
			return fmt.Errorf("%w: boundary %d in memory", ErrDigest, n)
		}
	}
	return nil
}

// sealedRows is the number of rows that the newest boundary needs.
func (c *Chain) sealedRows() int {
	if n := c.Committed(); n > 0 {
		return len(c.head.Prompt) + n - 1
	}
	return 0
}

func (c *Chain) id(i int) int32 {
	if p := len(c.head.Prompt); i >= p {
		return c.output[i-p]
	}
	return c.head.Prompt[i]
}

func (c *Chain) row(i int) []byte {
	o := (i % BlockRows) * c.rowSize
	return c.blocks[i/BlockRows][o : o+c.rowSize]
}

// link is the chain digest after a row whose own digest is row.
func link(prev Digest, id int32, row xxh3.Uint128) Digest {
	var b [36]byte
	copy(b[:], prev[:])
	binary.LittleEndian.PutUint32(b[16:], uint32(id))
	h := row.Bytes()
	copy(b[20:], h[:])
	return Digest(xxh3.Hash128(b[:]).Bytes())
}

func seal(prev Digest, b Boundary, chain Digest) Digest {
	var buf [56]byte
	copy(buf[:], prev[:])
	binary.LittleEndian.PutUint32(buf[16:], uint32(b.N))
	binary.LittleEndian.PutUint32(buf[20:], uint32(b.Token))
	binary.LittleEndian.PutUint64(buf[24:], b.Sampler.Seed)
	binary.LittleEndian.PutUint64(buf[32:], b.Sampler.Draws)
	copy(buf[40:], chain[:])
	return Digest(xxh3.Hash128(buf[:]).Bytes())
}
