// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package keys_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seguekv/segue/router/keys"
)

func TestGenerate_IsUsableAndNew(t *testing.T) {
	a, b := keys.Generate(), keys.Generate()
	if a == b || !strings.HasPrefix(a, "sk-segue-") || len(a) != len("sk-segue-")+43 {
		t.Errorf("got %d and %d bytes, the same: %v", len(a), len(b), a == b)
	}
	k := load(t, file(t, line(t, "acme", a)))
	if tenant, err := k.Tenant("Bearer " + a); tenant != "acme" || err != nil {
		t.Errorf("got %q, %v", tenant, err)
	}
	if _, err := k.Tenant("Bearer " + b); !errors.Is(err, keys.ErrUnknown) {
		t.Errorf("another key: %v", err)
	}
}

// A digest that another tool computed: printf %s foo | sha256sum.
func TestLine_IsPlainSHA256(t *testing.T) {
	if got, want := line(t, "search", "foo"), "search:sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"; got != want {
		t.Errorf("got %s", got)
	}
	for _, tenant := range []string{"", "a b", "a:b", "ä", "a\n", strings.Repeat("x", 65)} {
		if _, err := keys.Line(tenant, "foo"); !errors.Is(err, keys.ErrTenant) {
			t.Errorf("%q: %v", tenant, err)
		}
	}
	if _, err := keys.Line(strings.Repeat("x", 64), "foo"); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"", "a b", "a\n", strings.Repeat("x", 513)} {
		if _, err := keys.Line("a", key); !errors.Is(err, keys.ErrMalformed) {
			t.Errorf("%q: %v", key, err)
		}
	}
}

func TestAppend_KeepsWhatIsThere(t *testing.T) {
	p := filepath.Join(t.TempDir(), "keys.txt")
	if err := keys.Append(p, line(t, "a", "one")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(p); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	// An editor left no newline at the end.
	replace(t, p, "# all\n"+line(t, "a", "one"))
	if err := keys.Append(p, line(t, "b", "two")); err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, p), "# all\n"+line(t, "a", "one")+"\n"+line(t, "b", "two")+"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	before := read(t, p)
	if err := keys.Append(p, line(t, "c", "one")); !errors.Is(err, keys.ErrTwice) {
		t.Errorf("the same key twice: %v", err)
	}
	if err := keys.Append(p, "nonsense"); !errors.Is(err, keys.ErrLine) {
		t.Errorf("nonsense: %v", err)
	}
	if read(t, p) != before {
		t.Error("a refused line is in the file")
	}
	replace(t, p, "broken\n")
	if err := keys.Append(p, line(t, "a", "one")); !errors.Is(err, keys.ErrLine) || read(t, p) != "broken\n" {
		t.Errorf("a broken file: %v, now %q", err, read(t, p))
	}
	replace(t, p, strings.Repeat("#", keys.MaxFile))
	if err := keys.Append(p, line(t, "a", "one")); !errors.Is(err, keys.ErrTooBig) {
		t.Errorf("a full file: %v", err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
