// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package llamacpp_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/seguekv/segue/engines/llamacpp"
	"github.com/seguekv/segue/snapshot"
)

// unevenGeometry has layers of different sizes and types, so that a mixed-up offset shows.
func unevenGeometry() snapshot.Geometry {
	return snapshot.Geometry{Layers: []snapshot.LayerRows{
		{KBytes: 4, VBytes: 6, KType: "f16", VType: "f16"},
		{KBytes: 8, VBytes: 2, KType: "f32", VType: "q8_0"},
		{KBytes: 2, VBytes: 2, KType: "bf16", VType: "q4_0"},
	}}
}

func newLayout(tb testing.TB, g snapshot.Geometry) *llamacpp.Layout {
	tb.Helper()
	l, err := llamacpp.NewLayout(g)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// countedState is a state whose row bytes count up from 0.
func countedState(g snapshot.Geometry, rows int) *snapshot.State {
	s := &snapshot.State{Geometry: g, Prompt: make([]int32, rows), Output: []int32{1}, Sampler: snapshot.Sampler{Draws: 1}}
	b := make([]byte, rows*g.RowBytes())
	for i := range b {
		b[i] = byte(i)
	}
	for len(b) > 0 {
		n := min(len(b), snapshot.BlockRows*g.RowBytes())
		s.Blocks = append(s.Blocks, b[:n:n])
		b = b[n:]
	}
	return s
}

func TestLayout_MatchesGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/golden/v1/three-rows.hex")
	if err != nil {
		t.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		data, _, _ := strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(data), ""))
	}
	golden, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatal(err)
	}
	l := newLayout(t, unevenGeometry())
	s := countedState(unevenGeometry(), 3)
	blob, err := l.AppendBlob(nil, 1, s, 0, 3)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(golden, blob); diff != "" {
		t.Errorf("blob differs from the golden bytes (-want +got):\n%s", diff)
	}
	rows := make([]byte, 3*unevenGeometry().RowBytes())
	if err := l.Rows(rows, golden, 0, 3); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(rows, s.Blocks[0]) {
		t.Errorf("rows of the golden bytes are % x, want % x", rows, s.Blocks[0])
	}
	g, err := llamacpp.ReadGeometry(golden, 3)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(unevenGeometry(), g); diff != "" {
		t.Errorf("geometry of the golden bytes (-want +got):\n%s", diff)
	}
}

func TestLayout_RoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		types := rapid.SampledFrom([]string{"f32", "f16", "q4_0", "q8_0", "bf16"})
		layers := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) snapshot.LayerRows {
			return snapshot.LayerRows{
				KBytes: rapid.IntRange(0, 9).Draw(t, "k"), VBytes: rapid.IntRange(1, 9).Draw(t, "v"),
				KType: types.Draw(t, "kt"), VType: types.Draw(t, "vt"),
			}
		}), 1, 5).Draw(t, "layers")
		g := snapshot.Geometry{Layers: layers}
		l, err := llamacpp.NewLayout(g)
		if err != nil {
			t.Fatal(err)
		}
		total := rapid.IntRange(1, 70).Draw(t, "total")
		first := rapid.IntRange(0, total-1).Draw(t, "first")
		count := rapid.IntRange(1, total-first).Draw(t, "count")
		s := countedState(g, total)
		prefix := rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "prefix")
		out, err := l.AppendBlob(bytes.Clone(prefix), 7, s, first, count)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(out, prefix) || len(out) != len(prefix)+l.Size(count) {
			t.Fatalf("appended %d bytes after %d, want %d", len(out)-len(prefix), len(prefix), l.Size(count))
		}
		rows := make([]byte, count*g.RowBytes())
		if err := l.Rows(rows, out[len(prefix):], first, count); err != nil {
			t.Fatal(err)
		}
		for i := range count {
			if got, want := rows[i*g.RowBytes():(i+1)*g.RowBytes()], s.RowData(first+i); !bytes.Equal(got, want) {
				t.Fatalf("row %d is % x, want % x", first+i, got, want)
			}
		}
	})
}

func TestLayout_RefusesDamagedBlobs(t *testing.T) {
	g := unevenGeometry()
	l := newLayout(t, g)
	const first, count = 5, 3
	good, err := l.AppendBlob(nil, 1, countedState(g, 20), first, count)
	if err != nil {
		t.Fatal(err)
	}
	const cells, shape = 16, 16 + 12*count
	word := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint32(b[at:], v); return b }
	}
	for _, c := range []struct {
		name   string
		damage func([]byte) []byte
		want   string
	}{
		{"magic", word(0, 0xaf143cd7), "begins with"},
		{"two streams", word(8, 2), "2 streams"},
		{"fewer rows", word(12, count-1), "2 rows, want 3"},
		{"more rows than bytes", word(12, 1<<30), "rows, want 3"},
		{"gap", word(cells+12, first+2), "row 1 has position 7, want 6"},
		{"repeat", word(cells+12, first), "row 1 has position 5, want 6"},
		{"shifted", word(cells, first+1), "row 0 has position 6, want 5"},
		{"negative position", word(cells, 0xffffffff), "position -1"},
		{"shared cell", word(cells+4, 2), "belongs to 2 sequences"},
		{"other sequence", word(cells+8, 3), "belongs to sequence 3, the blob to 1"},
		{"transposed", word(shape, 1), "flash attention is off"},
		{"layers", word(shape+4, 4), "4 layers, want 3"},
		{"element type", word(shape+8, 8), "layer 0 K has 4 bytes of q8_0 a row, want 4 of f16"},
		{"row bytes", word(shape+12, 5), "layer 0 K has 5 bytes"},
		{"huge row bytes", word(shape+16, 0xffffffff), "layer 0 K has"},
		{"truncated", func(b []byte) []byte { return b[:len(b)-1] }, "bytes for 3 rows"},
		{"longer", func(b []byte) []byte { return append(b, 0) }, "bytes for 3 rows"},
		{"empty", func(b []byte) []byte { return nil }, "0 bytes for 3 rows"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := l.Rows(make([]byte, count*g.RowBytes()), c.damage(bytes.Clone(good)), first, count)
			if !errors.Is(err, llamacpp.ErrBlob) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want ErrBlob with %q", err, c.want)
			}
		})
	}
	t.Run("room", func(t *testing.T) {
		for _, n := range []int{0, 1, count*g.RowBytes() - 1, count*g.RowBytes() + 1} {
			if err := l.Rows(make([]byte, n), good, first, count); !errors.Is(err, llamacpp.ErrBlob) {
				t.Errorf("room for %d bytes: got %v, want ErrBlob", n, err)
			}
		}
	})
}

func TestReadGeometry_RefusesDamagedBlobs(t *testing.T) {
	g := unevenGeometry()
	good, err := newLayout(t, g).AppendBlob(nil, 0, countedState(g, 2), 0, 2)
	if err != nil {
		t.Fatal(err)
	}
	for n := range good {
		if _, err := llamacpp.ReadGeometry(good[:n], 2); !errors.Is(err, llamacpp.ErrBlob) {
			t.Fatalf("%d of %d bytes: got %v, want ErrBlob", n, len(good), err)
		}
	}
	const shape = 16 + 12*2
	for name, at := range map[string]int{"layers": shape + 4, "type": shape + 8, "row bytes": shape + 12, "high row bytes": shape + 16} {
		b := bytes.Clone(good)
		binary.LittleEndian.PutUint32(b[at:], 0xfffffff0)
		if _, err := llamacpp.ReadGeometry(b, 2); !errors.Is(err, llamacpp.ErrBlob) {
			t.Errorf("%s: got %v, want ErrBlob", name, err)
		}
	}
}

func TestLayout_RefusesStatesOfAnotherShape(t *testing.T) {
	g := unevenGeometry()
	l := newLayout(t, g)
	other := unevenGeometry()
	other.Layers[1].VType = "f16"
	missing := countedState(g, 20)
	missing.Blocks = missing.Blocks[:1]
	short := countedState(g, 20)
	short.Blocks[1] = short.Blocks[1][:len(short.Blocks[1])-1]
	for name, c := range map[string]struct {
		s            *snapshot.State
		first, count int
	}{
		"geometry":      {countedState(other, 20), 0, 20},
		"missing block": {missing, 0, 16},
		"short block":   {short, 0, 16},
		"past the end":  {countedState(g, 20), 10, 11},
		"negative":      {countedState(g, 20), -1, 2},
		"none":          {countedState(g, 20), 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := l.AppendBlob([]byte{1}, 0, c.s, c.first, c.count)
			if err == nil || len(out) != 1 {
				t.Errorf("got %d bytes and error %v, want the buffer as it was and an error", len(out), err)
			}
		})
	}
}

func TestNewLayout_RefusesUnknownTypes(t *testing.T) {
	g := unevenGeometry()
	g.Layers[2].VType = "fp8"
	if _, err := llamacpp.NewLayout(g); err == nil || !strings.Contains(err.Error(), `layer 2: V element type "fp8"`) {
		t.Errorf("got %v, want an error that names layer and type", err)
	}
	if _, err := llamacpp.NewLayout(snapshot.Geometry{}); err == nil {
		t.Error("an empty geometry was accepted")
	}
}

func TestGolden_IsComplete(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/v1/*")
	if err != nil || len(files) != 1 {
		t.Errorf("golden files: %v, error %v", files, err)
	}
}
