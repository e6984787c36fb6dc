// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package keys_test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/seguekv/segue/internal/invariant"
	"github.com/seguekv/segue/router/keys"
)

// FuzzParse reads arbitrary key files. An accepted one has only names and digests that can be written down again and
// mean the same; a refused one is refused in few words, none of them from the file.
func FuzzParse(f *testing.F) {
	const digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
	f.Add([]byte("# all\na:sha256:" + digest + "\n"))
	f.Add([]byte("a:sha256:" + strings.ToUpper(digest) + " # x\r\n\r\n"))
	f.Add([]byte("a:sha256:" + digest + "\nb:sha256:" + digest))
	f.Add([]byte("sk-segue-raw\n:sha256:\na:b:c\n"))
	f.Add([]byte(strings.Repeat("x\n", 100)))
	f.Add([]byte{0, '\n', 0xff, ':', 0xfe})
	f.Fuzz(func(t *testing.T, text []byte) {
		var got map[[32]byte]string
		var err error
		if over := invariant.WithinBytes(1<<20+16*len(text), func() { got, err = keys.Parse(text) }); over != nil {
			t.Fatalf("a file of %d bytes: %v", len(text), over)
		}
		if err != nil {
			if got != nil || len(err.Error()) > 2000 {
				t.Fatalf("%d keys and %d bytes of error", len(got), len(err.Error()))
			}
			for l := range strings.SplitSeq(string(text), "\n") {
				if l = strings.TrimSpace(l); len(l) > 24 && strings.Contains(err.Error(), l) && !strings.Contains(keys.ErrLine.Error()+keys.ErrTenant.Error(), l) {
					t.Fatalf("%q has a line of the file", err)
				}
			}
			return
		}
		var again strings.Builder
		for d, tenant := range got {
			if !keys.ValidTenant(tenant) {
				t.Fatalf("tenant %q", tenant)
			}
			fmt.Fprintf(&again, "%s:sha256:%s\n", tenant, hex.EncodeToString(d[:]))
		}
		same, err := keys.Parse([]byte(again.String()))
		if err != nil || len(same) != len(got) {
			t.Fatalf("read again: %d of %d keys, %v", len(same), len(got), err)
		}
		for d, tenant := range got {
			if same[d] != tenant {
				t.Fatalf("%x became %q", d, same[d])
			}
		}
	})
}
