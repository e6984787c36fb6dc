// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package compat_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/compat"
)

// The golden files are written once for a version of the encoding and never again. Each is hex, broken into
// lines.
func TestDecode_Golden(t *testing.T) {
	for _, c := range []struct {
		file   string
		want   compat.Fingerprint
		digest string
	}{
		{"v1/zero.hex", compat.Fingerprint{}, "536181b099f771be5c0285a44e19dc0b183e87be22d26d4836a37e4352501a86"},
		{"v1/full.hex", full(), "113b9e360c5191511d75f0be2c5604118dc12db7d90f521208e83e876b4045ae"},
	} {
		t.Run(c.file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", "golden", filepath.FromSlash(c.file)))
			if err != nil {
				t.Fatal(err)
			}
			b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
			if err != nil {
				t.Fatal(err)
			}
			got, err := compat.Decode(b)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			if !bytes.Equal(c.want.Encode(), b) {
				t.Errorf("encoding is\n%x\nwant\n%x", c.want.Encode(), b)
			}
			if got := c.want.Digest().String(); got != c.digest {
				t.Errorf("digest %s, want %s", got, c.digest)
			}
		})
	}
}

func TestDecode_RefusesDamage(t *testing.T) {
	whole := full().Encode()
	edit := func(change func(b []byte) []byte) []byte { return change(bytes.Clone(whole)) }
	for _, c := range []struct {
		name string
		b    []byte
		want string
	}{
		{"nothing", nil, "header"},
		{"magic", edit(func(b []byte) []byte { b[0] ^= 1; return b }), "header"},
		{"version 0", edit(func(b []byte) []byte { b[4] = 0; return b }), "version 0, this build reads version 1"},
		{"version 2", edit(func(b []byte) []byte { b[4] = 2; return b }), "version 2, this build reads version 1"},
		{"field count", edit(func(b []byte) []byte { b[6]--; return b }), "fields"},
		{"field number", edit(func(b []byte) []byte { b[8] = 2; return b }), "engine: field missing or out of order"},
		{"field length", edit(func(b []byte) []byte { b[13] = 0xFF; return b }), "engine: truncated"},
		{"bytes at the end", append(bytes.Clone(whole), 0), "after the last field"},
		{"twice", append(bytes.Clone(whole), whole...), "after the last field"},
		{"too large", make([]byte, compat.MaxEncodedBytes+1), "limit"},
		{"flag 2", edit(func(b []byte) []byte {
			at := bytes.Index(b, []byte{37, 0, 1, 0, 0, 0, 1}) // flash_attention
			b[at+6] = 2
			return b
		}), "flash_attention"},
		{"short number", splice(whole, []byte{5, 0, 4, 0, 0, 0, 1, 0, 0, 0}, []byte{5, 0, 3, 0, 0, 0, 1, 0, 0}), "threads"},
		{"long number", splice(whole, []byte{5, 0, 4, 0, 0, 0, 1, 0, 0, 0}, []byte{5, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0}), "threads"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := compat.Decode(c.b)
			if !errors.Is(err, compat.ErrEncoding) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want ErrEncoding with %q", err, c.want)
			}
			if d := cmp.Diff(compat.Fingerprint{}, f); d != "" {
				t.Errorf("a fingerprint comes with the error\n%s", d)
			}
		})
	}
}

func splice(b, old, new []byte) []byte {
	if bytes.Count(b, old) != 1 {
		panic("splice: pattern isn't unique")
	}
	return bytes.Replace(b, old, new, 1)
}

func TestDecode_RefusesEveryTruncation(t *testing.T) {
	whole := full().Encode()
	for n := range whole {
		if _, err := compat.Decode(whole[:n]); !errors.Is(err, compat.ErrEncoding) {
			t.Errorf("%d of %d bytes: error %v, want ErrEncoding", n, len(whole), err)
		}
	}
}

// A flipped bit is refused, or it changes a value and then the digest.
func TestDecode_NoFlippedBitIsLost(t *testing.T) {
	base := full()
	whole := base.Encode()
	for i := range whole {
		for bit := range 8 {
			b := bytes.Clone(whole)
			b[i] ^= 1 << bit
			f, err := compat.Decode(b)
			if err == nil && (!bytes.Equal(f.Encode(), b) || compat.Check(f, base) == nil) {
				t.Errorf("bit %d of byte %d is lost", bit, i)
			}
		}
	}
}
