// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/snapshot"
)

// tb is what a helper needs of *testing.T, *testing.B, *testing.F or *rapid.T.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// rowBytes is the row size of geometry.
const rowBytes = 20

func geometry() snapshot.Geometry {
	return snapshot.Geometry{Layers: []snapshot.LayerRows{
		{KBytes: 6, VBytes: 2, KType: "f16", VType: "f16"},
		{KBytes: 8, VBytes: 4, KType: "q8_0", VType: ""},
	}}
}

func session(n byte) snapshot.SessionID { return snapshot.SessionID{n, 1, 2, 3, 15: n} }

func head(id snapshot.BaseID, prompt, maxOutput int) snapshot.Head {
	h := snapshot.Head{
		BaseID: id, Geometry: geometry(), Fingerprint: []byte("fingerprint"),
		Request: snapshot.Digest{1, 2, 3, 4}, MaxOutput: maxOutput,
	}
	for i := range prompt {
		h.Prompt = append(h.Prompt, int32(1000+i))
	}
	return h
}

// tokenOf is output id i.
func tokenOf(i int) int32 { return int32(7*i + 3) }

// rowOf is the row of position i.
func rowOf(i int) []byte {
	b := make([]byte, rowBytes)
	for j := range b {
		b[j] = byte(31*i + 7*j + i>>3)
	}
	return b
}

func rowsOf(first, count int) []byte {
	var b []byte
	for i := first; i < first+count; i++ {
		b = append(b, rowOf(i)...)
	}
	return b
}

func samplerOf(n int) snapshot.Sampler { return snapshot.Sampler{Seed: 0x5eed, Draws: uint64(n)} }

// grow appends to c what is missing up to boundary n; n 0: the prompt's rows only.
func grow(t tb, c *snapshot.Chain, n int) {
	t.Helper()
	for c.Committed() < n {
		next := len(c.Output()) + 1
		fillRows(t, c, len(c.Head().Prompt)+next-1)
		if _, err := c.AppendBoundary(next, tokenOf(next-1), samplerOf(next)); err != nil {
			t.Fatal(err)
		}
	}
	if n == 0 {
		fillRows(t, c, len(c.Head().Prompt)+len(c.Output()))
	}
}

func fillRows(t tb, c *snapshot.Chain, rows int) {
	t.Helper()
	if n := rows - c.Rows(); n > 0 {
		if err := c.AppendRows(c.Rows(), rowsOf(c.Rows(), n)); err != nil {
			t.Fatal(err)
		}
	}
}

// chain returns a chain with n boundaries.
func chain(t tb, h snapshot.Head, n int) *snapshot.Chain {
	t.Helper()
	c, err := snapshot.NewChain(h)
	if err != nil {
		t.Fatal(err)
	}
	grow(t, c, n)
	return c
}

// record is one encoded record.
type record struct {
	kind  snapshot.Kind
	bytes []byte
}

// records encodes c as a primary does: base, rows in pieces of at most chunk, each boundary after its rows.
func records(c *snapshot.Chain, chunk int) []record {
	h := c.Head()
	out := []record{{snapshot.KindBase, snapshot.AppendBaseRecord(nil, h)}}
	rows := func(at, to int) int {
		for at < to {
			n := min(chunk, to-at)
			out = append(out, record{snapshot.KindRows, bytes.Join(snapshot.AppendRowsRecord(nil, c, at, n), nil)})
			at += n
		}
		return at
	}
	at := 0
	for n := c.First(); n <= c.Committed(); n++ {
		at = rows(at, len(h.Prompt)+n-1)
		out = append(out, record{snapshot.KindBoundary, snapshot.AppendBoundaryRecord(nil, h.BaseID, c.BoundaryAt(n))})
	}
	rows(at, c.Rows())
	return out
}

func join(list []record) []byte {
	var b []byte
	for _, r := range list {
		b = append(b, r.bytes...)
	}
	return b
}

func acceptAll(*snapshot.Head) error { return nil }

func newStore(limit int64) (*snapshot.Store, *snapshot.Budget) {
	b := snapshot.NewBudget(limit)
	return snapshot.NewStore(b, acceptAll), b
}

// receive applies a frame to s as a holder does and returns every refusal; the last one ends the frame if the
// frame can't be read on.
func receive(s *snapshot.Store, frame []byte) (refusals []error) {
	r := snapshot.NewReader(bytes.NewReader(frame))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) && !errors.Is(err, snapshot.ErrFormat) {
			return refusals
		}
		if err != nil {
			return append(refusals, err)
		}
		if h.Kind == snapshot.KindBase {
			var x snapshot.Head
			if x, err = r.Base(); err == nil {
				err = s.Begin(x, [16]byte{})
			}
		} else {
			_, _, err = s.Apply(r)
		}
		if err == nil {
			continue
		}
		refusals = append(refusals, err)
		if err := r.Skip(); err != nil {
			return append(refusals, err)
		}
	}
}

// mustReceive fails the test on any refusal.
func mustReceive(t tb, s *snapshot.Store, list ...record) {
	t.Helper()
	if errs := receive(s, join(list)); len(errs) > 0 {
		t.Fatalf("refused: %v", errs)
	}
}

// offer is what s holds of a session.
func offer(s *snapshot.Store, id snapshot.SessionID) (snapshot.Offer, bool) {
	for _, o := range s.Offers() {
		if o.Session == id {
			return o, true
		}
	}
	return snapshot.Offer{}, false
}

// checkPrefix fails unless what s holds of c's session is a beginning of c.
func checkPrefix(t tb, s *snapshot.Store, c *snapshot.Chain) {
	t.Helper()
	for _, o := range s.Offers() {
		if o.BaseID != c.Head().BaseID {
			t.Fatalf("store holds %+v, want nothing but %+v", o.BaseID, c.Head().BaseID)
		}
		if o.Rows > c.Rows() || o.Chain != c.DigestAt(o.Rows) || o.Committed > c.Committed() {
			t.Fatalf("held rows %d, boundary %d aren't a beginning of the chain's %d and %d", o.Rows, o.Committed, c.Rows(), c.Committed())
		}
		if o.Committed > 0 && o.Seal != c.SealAt(o.Committed) {
			t.Fatalf("held boundary %d has another seal", o.Committed)
		}
	}
}

// needOf is what a takeover of c at d must prove.
func needOf(h *snapshot.Head, d int) snapshot.Need {
	p := snapshot.IDsDigest(h.Prompt)
	out := make([]int32, d)
	for i := range out {
		out[i] = tokenOf(i)
	}
	return snapshot.Need{Delivered: d, PromptDigest: &p, OutputDigest: snapshot.IDsDigest(out), Request: h.Request}
}

// checkState fails unless st is the state at boundary n of a chain made by grow from h.
func checkState(t tb, st *snapshot.State, h *snapshot.Head, n int) {
	t.Helper()
	if err := st.Validate(); err != nil {
		t.Fatal(err)
	}
	want := make([]int32, n)
	for i := range want {
		want[i] = tokenOf(i)
	}
	if !slices.Equal(st.Prompt, h.Prompt) || !slices.Equal(st.Output, want) {
		t.Fatalf("state has ids %v %v, want %v %v", st.Prompt, st.Output, h.Prompt, want)
	}
	if st.Sampler != samplerOf(n) {
		t.Fatalf("state has sampler %+v, want %+v", st.Sampler, samplerOf(n))
	}
	if diff := cmp.Diff(h.Geometry, st.Geometry); diff != "" {
		t.Fatal(diff)
	}
	for i := range st.Rows() {
		if !bytes.Equal(st.RowData(i), rowOf(i)) {
			t.Fatalf("state's row %d is %x, want %x", i, st.RowData(i), rowOf(i))
		}
	}
}

// baseOf is base 0 of a session in epoch e.
func baseOf(n byte, e fence.Epoch) snapshot.BaseID {
	return snapshot.BaseID{Session: session(n), Epoch: e}
}

// u32 reads a little-endian number of a record.
func u32(b []byte, at int) int { return int(binary.LittleEndian.Uint32(b[at:])) }
