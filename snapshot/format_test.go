// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"

	"github.com/seguekv/segue/snapshot"
)

// exampleHead is the head of the worked example in FORMAT.md.
func exampleHead() snapshot.Head {
	return snapshot.Head{
		BaseID: snapshot.BaseID{
			Session: snapshot.SessionID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
			Epoch:   7, Base: 1,
		},
		Geometry:    snapshot.Geometry{Layers: []snapshot.LayerRows{{KBytes: 2, VBytes: 2, KType: "f16", VType: "f16"}}},
		Fingerprint: []byte("fp"),
		Request:     snapshot.Digest{0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf},
		Prompt:      []int32{11, 12},
		MaxOutput:   4,
	}
}

// exampleChain is the chain of the worked example: two prompt rows and boundary 1.
func exampleChain(t tb) *snapshot.Chain {
	t.Helper()
	c, err := snapshot.NewChain(exampleHead())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AppendRows(0, []byte{0x10, 0x11, 0x12, 0x13, 0x20, 0x21, 0x22, 0x23}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AppendBoundary(1, 13, snapshot.Sampler{Seed: 42, Draws: 1}); err != nil {
		t.Fatal(err)
	}
	return c
}

// hexBlocks are the bytes of the hex blocks of a page, comments left out.
func hexBlocks(t *testing.T, page string) [][]byte {
	t.Helper()
	var out [][]byte
	for _, m := range regexp.MustCompile("(?s)```hex\n(.*?)```").FindAllStringSubmatch(page, -1) {
		var digits strings.Builder
		for line := range strings.Lines(m[1]) {
			line, _, _ = strings.Cut(line, "#")
			digits.WriteString(strings.Join(strings.Fields(line), ""))
		}
		b, err := hex.DecodeString(digits.String())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

func TestFormat_WorkedExample(t *testing.T) {
	page, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	c := exampleChain(t)
	blocks, encoded := hexBlocks(t, string(page)), records(c, 16)
	if len(blocks) != len(encoded) {
		t.Fatalf("page has %d records, encoder makes %d", len(blocks), len(encoded))
	}
	for i, r := range encoded {
		if !bytes.Equal(r.bytes, blocks[i]) {
			t.Errorf("record %d differs from FORMAT.md:\n%s", i, hex.Dump(r.bytes))
		}
	}
	for name, d := range map[string]snapshot.Digest{
		"chain digest 0": c.DigestAt(0), "chain digest 1": c.DigestAt(1), "chain digest 2": c.DigestAt(2),
		"seal 1": c.SealAt(1), "ids digest of the prompt": snapshot.IDsDigest(c.Head().Prompt),
	} {
		if row := "| " + name + " | `" + d.String() + "` |"; !strings.Contains(string(page), row) {
			t.Errorf("FORMAT.md lacks %s", row)
		}
	}
}

// The digests are what FORMAT.md says, computed here from the encoded bytes alone.
func TestFormat_DigestCoverage(t *testing.T) {
	le := binary.LittleEndian
	h := head(baseOf(9, 2), 3, 9)
	h.Restored = []int32{tokenOf(0)}
	c := chain(t, h, 4)
	list := records(c, 2)
	sum := func(b []byte) []byte { d := xxh3.Hash128(b).Bytes(); return d[:] }
	ids := append(append([]int32(nil), h.Prompt...), tokenOf(0), tokenOf(1), tokenOf(2), tokenOf(3))
	var digest, sealed []byte
	for i, r := range list {
		b := r.bytes
		length := u32(b, 44)
		if len(b) != 48+length+8 {
			t.Fatalf("record %d has %d bytes and length %d", i, len(b), length)
		}
		payload, covered := b[48:48+length], b[:48+length]
		switch r.kind {
		case snapshot.KindBase:
			digest = sum(payload)
			sealed = digest
		case snapshot.KindRows:
			first, count := u32(b, 36), u32(b, 40)
			for p := first; p < first+count; p++ {
				row := payload[(p-first)*rowBytes:][:rowBytes]
				digest = sum(append(le.AppendUint32(digest, uint32(ids[p])), sum(row)...))
			}
			if !bytes.Equal(payload[count*rowBytes:], digest) {
				t.Fatalf("record %d has another chain digest", i)
			}
			covered = append(append([]byte(nil), b[:48]...), digest...)
		case snapshot.KindBoundary:
			n := u32(b, 36)
			if got := int32(u32(payload, 0)); got != ids[2+n] || le.Uint64(payload[4:]) != samplerOf(n).Seed || le.Uint64(payload[12:]) != uint64(n) {
				t.Fatalf("boundary %d is %x", n, payload)
			}
			sealed = le.AppendUint32(sealed[:16:16], uint32(n))
			sealed = sum(append(append(sealed, payload[:20]...), digest...))
			if !bytes.Equal(payload[20:], sealed) {
				t.Fatalf("boundary %d has another seal", n)
			}
		}
		if le.Uint64(b[len(b)-8:]) != xxh3.Hash(covered) {
			t.Fatalf("record %d has another trailer", i)
		}
	}
}

// golden is what the files of testdata/golden/v1 hold.
type golden struct {
	head snapshot.Head
	rows int
	// boundaries has the token of each.
	boundaries []int32
}

func goldens() map[string]golden {
	wide := head(snapshot.BaseID{Session: session(0xfe), Epoch: 1<<40 + 5, Base: 1<<31 + 1}, 18, 1000)
	wide.Prompt[1] = -1
	wide.Restored = []int32{tokenOf(0), tokenOf(1)}
	fresh := exampleHead()
	return map[string]golden{
		"fresh":    {head: fresh, rows: 2, boundaries: []int32{13}},
		"restored": {head: wide, rows: 20, boundaries: []int32{tokenOf(2)}},
	}
}

// Files are written once; every later build decodes them.
func TestGolden_DecodesForever(t *testing.T) {
	for name, want := range goldens() {
		t.Run(name, func(t *testing.T) {
			read := func(part string) []byte {
				b, err := os.ReadFile(filepath.Join("testdata", "golden", "v1", name+"-"+part+".bin"))
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
			r := snapshot.NewReader(bytes.NewReader(read("base")))
			h, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			if h.Kind != snapshot.KindBase || h.BaseID != want.head.BaseID {
				t.Fatalf("header %+v", h)
			}
			got, err := r.Base()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want.head, got); diff != "" {
				t.Fatalf("head (-want +got):\n%s", diff)
			}
			s, _ := newStore(1 << 20)
			for _, part := range []string{"base", "rows", "boundary"} {
				if errs := receive(s, read(part)); len(errs) > 0 {
					t.Fatalf("%s: %v", part, errs)
				}
			}
			o, _ := offer(s, want.head.Session)
			restored := len(want.head.Restored)
			if o.Rows != want.rows || o.First != restored+1 || o.Committed != restored+len(want.boundaries) {
				t.Fatalf("held %+v", o)
			}
			prompt := snapshot.IDsDigest(want.head.Prompt)
			output := append(append([]int32(nil), want.head.Restored...), want.boundaries...)
			held, err := s.Takeover(want.head.Session, want.head.Epoch+1, snapshot.Need{
				Delivered: len(output), PromptDigest: &prompt, OutputDigest: snapshot.IDsDigest(output), Request: want.head.Request,
			})
			if err != nil {
				t.Fatal(err)
			}
			if name == "restored" {
				for i := range held.State.Rows() {
					if !bytes.Equal(held.State.RowData(i), rowOf(i)) {
						t.Errorf("row %d is %x", i, held.State.RowData(i))
					}
				}
			}
			// This build writes the same bytes.
			again := make(map[snapshot.Kind][]byte)
			for _, x := range records(held.Chain, 16) {
				again[x.kind] = append(again[x.kind], x.bytes...)
			}
			for part, kind := range map[string]snapshot.Kind{
				"base": snapshot.KindBase, "rows": snapshot.KindRows, "boundary": snapshot.KindBoundary,
			} {
				if !bytes.Equal(again[kind], read(part)) {
					t.Errorf("%s is written as %x", part, again[kind])
				}
			}
		})
	}
}
