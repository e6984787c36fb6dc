// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seguekv/segue/engines/llamacpp"
)

// The engine looks for its parts where this program puts them.
func TestPins_AreWhereTheEngineLooks(t *testing.T) {
	t.Setenv("SEGUE_CACHE", "/c")
	got := make(map[string]string)
	for _, p := range pins() {
		got[p.key] = p.path("/c")
	}
	c := llamacpp.DefaultConfig()
	if want := c.LibraryPath(); got["llama"] != want {
		t.Errorf("libraries are at %s, the engine looks at %s", got["llama"], want)
	}
	if want := c.ModelPath(); got["model"] != want {
		t.Errorf("the model is at %s, the engine looks at %s", got["model"], want)
	}
}

func TestPreflight_ReportsEverythingInOneMessage(t *testing.T) {
	m := newMachine(t)
	// Only the shell's own tools stay in PATH.
	for _, name := range []string{"sh", "dirname", "awk"} {
		p, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(p, filepath.Join(m.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	m.program("uname", `[ "$1" = -s ] && echo Linux || echo aarch64`)
	m.program("getconf", "echo glibc 2.31")
	m.program("go", "echo go1.25.3")
	m.program("df", "echo header; echo /dev/x 9 9 500000 9% /")
	m.program("ldconfig", "exit 0")
	m.program("python3", "exit 1")
	remove(t, filepath.Join(m.bin, "npm"))
	t.Setenv("PATH", m.bin)
	t.Setenv("LD_LIBRARY_PATH", "")

	f := newFetcher(filepath.Join(m.cache, "not", "there"), &safeBuffer{})
	err := f.ensure(t.Context(), pins())
	if err == nil {
		t.Fatal("got no error")
	}
	for _, want := range []string{
		"linux/amd64: this is Linux/aarch64", "go >= 1.26: this is go1.25.3", "glibc >= 2.34: this is glibc 2.31",
		"libffi.so.8", "npm: not in PATH", "python3 has no pip module", "1 GB of disk: 500 MB are free at",
		"apt-get install -y libffi8 npm python3-pip",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("message lacks %q:\n%v", want, err)
		}
	}
	if _, err := os.Stat(m.cache); err == nil {
		t.Error("a refused run made the cache folder")
	}
}

func TestPreflight_AcceptsThisKindOfMachine(t *testing.T) {
	for _, v := range []string{"go1.26.0", "go1.26.8", "go1.27rc1", "go2.0", "devel go1.27-abc"} {
		t.Run(v, func(t *testing.T) {
			m := newMachine(t)
			m.program("go", "echo "+v)
			m.program("uname", `[ "$1" = -s ] && echo Linux || echo x86_64`)
			m.program("getconf", "echo glibc 2.34")
			f := newFetcher(t.TempDir(), &safeBuffer{})
			if err := f.preflight(t.Context(), pins(), pins()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRun_PrintsPathsWithoutFetching(t *testing.T) {
	m := newMachine(t)
	t.Setenv("SEGUE_CACHE", "/c/it's")
	t.Setenv("SEGUE_LLAMA_LIB", "")
	t.Setenv("SEGUE_LLAMA_MODEL", "")
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-env"}, &out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	want := `SEGUE_LLAMA_LIB='/c/it'\''s/llamacpp-v0.5.0'` + "\n" +
		`SEGUE_LLAMA_MODEL='/c/it'\''s/smollm2-135m-instruct-q4_1/model.gguf'` + "\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if m.calls("npm")+m.calls("pip") != 0 {
		t.Error("a client was called")
	}
}

func TestRun_UsersOwnPartsNeedNothing(t *testing.T) {
	m := newMachine(t)
	t.Setenv("SEGUE_CACHE", m.cache)
	t.Setenv("SEGUE_LLAMA_LIB", "/own/lib")
	t.Setenv("SEGUE_LLAMA_MODEL", "/own/model")
	m.program("getconf", "exit 1")
	var out, errs bytes.Buffer
	if code := run(t.Context(), nil, &out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	if want := "--llama-lib /own/lib\n--model    /own/model\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	if _, err := os.Stat(m.cache); err == nil {
		t.Error("the cache folder was made")
	}
}

func TestRun_RefusesUnknownWords(t *testing.T) {
	for _, args := range [][]string{{"-only", "lama"}, {"more"}, {"-x"}} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), args, &out, &errs); code != 2 || errs.Len() == 0 {
			t.Errorf("run %v: exit code %d, message %q; want 2 and a message", args, code, errs.String())
		}
	}
}
