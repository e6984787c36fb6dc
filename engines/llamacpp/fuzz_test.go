// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package llamacpp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/seguekv/segue/engines/llamacpp"
	"github.com/seguekv/segue/internal/invariant"
	"github.com/seguekv/segue/snapshot"
)

// FuzzLayout reads arbitrary state blobs, as an engine or a file might give.
func FuzzLayout(f *testing.F) {
	g := unevenGeometry()
	l := newLayout(f, g)
	for _, n := range []int{1, 2, 16, 17} {
		b, err := l.AppendBlob(nil, 1, countedState(g, n), 0, n)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, n)
		f.Add(b[:len(b)/2], n)
	}
	f.Fuzz(func(t *testing.T, blob []byte, count int) {
		// At most snapshot.MaxLayers layers of 48 bytes each.
		over := invariant.WithinBytes(1<<20+len(blob), func() {
			if read, err := llamacpp.ReadGeometry(blob, count); err == nil && read.Validate() != nil {
				t.Errorf("geometry is read but invalid: %v", read.Validate())
			}
		})
		if over != nil {
			t.Errorf("geometry of a blob of %d bytes: %v", len(blob), over)
		}
		if count < 1 || count > 64 {
			return
		}
		rows := make([]byte, count*g.RowBytes())
		var err error
		if over := invariant.WithinBytes(1<<20, func() { err = l.Rows(rows, blob, 0, count) }); over != nil {
			t.Errorf("rows of a blob of %d bytes: %v", len(blob), over)
		}
		if err != nil {
			if !errors.Is(err, llamacpp.ErrBlob) {
				t.Errorf("error %v doesn't wrap ErrBlob", err)
			}
			return
		}
		// What is accepted is canonical: building it again gives the same bytes.
		s := countedState(g, count)
		s.Blocks = nil
		for b := rows; len(b) > 0; b = b[min(len(b), snapshot.BlockRows*g.RowBytes()):] {
			s.Blocks = append(s.Blocks, b[:min(len(b), snapshot.BlockRows*g.RowBytes())])
		}
		again, err := l.AppendBlob(nil, int32(binary.LittleEndian.Uint32(blob[4:])), s, 0, count)
		if err != nil || !bytes.Equal(again, blob) {
			t.Errorf("building the accepted rows again gives other bytes (error %v)", err)
		}
	})
}
