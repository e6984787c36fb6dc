// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package compat_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/seguekv/segue/compat"
	"github.com/seguekv/segue/internal/invariant"
)

// FuzzDecode reads arbitrary encodings: what is accepted is canonical.
func FuzzDecode(f *testing.F) {
	f.Add(compat.Fingerprint{}.Encode())
	f.Add(full().Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		var fp compat.Fingerprint
		var err error
		if over := invariant.WithinBytes(1<<20+16*len(b), func() { fp, err = compat.Decode(b) }); over != nil {
			t.Fatalf("%d bytes: %v", len(b), over)
		}
		if err != nil {
			if !errors.Is(err, compat.ErrEncoding) {
				t.Fatalf("error %v, want ErrEncoding", err)
			}
			return
		}
		if err := fp.Validate(); err != nil {
			t.Fatalf("decoded, but not valid: %v", err)
		}
		if !bytes.Equal(fp.Encode(), b) {
			t.Fatal("another encoding of the same fingerprint was accepted")
		}
	})
}
