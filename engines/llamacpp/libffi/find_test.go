// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package libffi_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/seguekv/segue/engines/llamacpp/libffi"
)

func touch(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFind_SearchesInTheLoadersOrder(t *testing.T) {
	dir := t.TempDir()
	std := filepath.Join(dir, "std")
	cache := filepath.Join(dir, "cache")
	path := filepath.Join(dir, "empty") + ":" + filepath.Join(dir, "path")
	check := func(want string) {
		t.Helper()
		if got := libffi.FindIn(path, cache, []string{filepath.Join(dir, "none"), std}); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	check("")
	inStandard := touch(t, filepath.Join(std, libffi.Name))
	check(inStandard)
	cached := filepath.Join(dir, "elsewhere", libffi.Name)
	text := "head\x00/gone/" + libffi.Name + "\x00libffi.so.8\x00" + cached + "\x00/x/libffi.so.80\x00tail"
	if err := os.WriteFile(cache, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	check(inStandard)
	touch(t, cached)
	check(cached)
	check2 := touch(t, filepath.Join(dir, "path", libffi.Name))
	check(check2)
}

func TestFind_SurvivesOddCaches(t *testing.T) {
	dir := t.TempDir()
	for i, text := range []string{"", "/", "\x00", "/" + libffi.Name, libffi.Name + "\x00", "x/" + libffi.Name + "\x00"} {
		cache := filepath.Join(dir, "cache")
		if err := os.WriteFile(cache, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := libffi.FindIn("", cache, nil); got != "" {
			t.Errorf("cache %d: got %q, want nothing", i, got)
		}
	}
	if got := libffi.FindIn(":", filepath.Join(dir, "none"), nil); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
}
