// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLibraryLog_KeepsErrorsOnly(t *testing.T) {
	var out bytes.Buffer
	l := &libraryLog{w: &out}
	l.skip()
	l.add(levelContinue, "the end of an info line\n")
	l.add(levelError, "error ")
	l.add(levelContinue, "in two parts\n")
	l.add(levelError, "\n")
	for range 10 {
		l.add(levelError, "again\n")
	}
	if want := "llama.cpp: error in two parts\n" + strings.Repeat("llama.cpp: again\n", 10); out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	if got := l.reason(); got != "again; again; again; again" {
		t.Errorf("reason is %q", got)
	}
	if got := l.reason(); got != "llama.cpp gives no reason" {
		t.Errorf("second reason is %q", got)
	}
}

func TestMapped_FindsTheOnlyLoadedFile(t *testing.T) {
	maps := filepath.Join(t.TempDir(), "maps")
	text := `00400000-00401000 r-xp 00000000 fe:00 1                                  /bin/prog
7f0000000000-7f0000001000 r--p 00000000 fe:00 2                          /a dir/libggml-cpu-zen4.so
7f0000001000-7f0000002000 r-xp 00001000 fe:00 2                          /a dir/libggml-cpu-zen4.so
7f0000002000-7f0000003000 r--p 00000000 fe:00 3                          /a dir/libggml-base.so
7f0000003000-7f0000004000 r--p 00000000 fe:00 4                          /a dir/libllama.v0.5.0.so
7f0000004000-7f0000005000 r--p 00000000 fe:00 5                          /other/libllama.so
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
`
	if err := os.WriteFile(maps, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if p, err := mapped(maps, "libggml-cpu"); err != nil || p != "/a dir/libggml-cpu-zen4.so" {
		t.Errorf("got %q, %v", p, err)
	}
	if _, err := mapped(maps, "libcuda"); err == nil || !strings.Contains(err.Error(), "no library libcuda*") {
		t.Errorf("got %v for a library that isn't loaded", err)
	}
	if _, err := mapped(maps, "libllama."); err == nil || !strings.Contains(err.Error(), "two libraries") {
		t.Errorf("got %v for two libraries of one name", err)
	}
}

func TestISA_NamesTheVariant(t *testing.T) {
	for path, want := range map[string]string{
		"/x/libggml-cpu-zen4.so":         " zen4",
		"/x/libggml-cpu-haswell.v0.5.so": " haswell",
		"/x/libggml-cpu.so":              "",
	} {
		if got := isa(path); !strings.HasSuffix(got, want) || strings.HasSuffix(got, " ") || got == "" {
			t.Errorf("%s: got %q, want it to end in %q", path, got, want)
		}
	}
}
