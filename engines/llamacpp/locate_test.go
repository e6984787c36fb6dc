// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package llamacpp_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/seguekv/segue/engines/llamacpp"
)

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// wantPart fails unless err is a part error whose text has all the given pieces.
func wantPart(t *testing.T, err error, pieces ...string) {
	t.Helper()
	if _, ok := errors.AsType[*llamacpp.PartError](err); !ok {
		t.Fatalf("got %v, want a *PartError", err)
	}
	for _, p := range pieces {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q doesn't say %q", err, p)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error %q has more than one line", err)
	}
}

func TestCheckLibrary_SaysWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	wantPart(t, llamacpp.CheckLibrary(filepath.Join(dir, "none")), "none", "no such folder", "run: make deps, or pass --llama-lib DIR")
	write(t, filepath.Join(dir, "file"), "", 0o644)
	wantPart(t, llamacpp.CheckLibrary(filepath.Join(dir, "file")), "not a folder")
	lib := filepath.Join(dir, "lib")
	for _, name := range []string{"libllama.so", "libggml.so", "libggml-base.so"} {
		if err := os.MkdirAll(lib, 0o755); err != nil {
			t.Fatal(err)
		}
		wantPart(t, llamacpp.CheckLibrary(lib), name+" is missing", "make deps")
		write(t, filepath.Join(lib, name), "", 0o644)
	}
	wantPart(t, llamacpp.CheckLibrary(lib), "libggml-cpu*.so is missing")
	write(t, filepath.Join(lib, "libggml-cpu-zen4.so"), "", 0o644)
	if err := llamacpp.CheckLibrary(lib); err != nil {
		t.Errorf("a complete folder is refused: %v", err)
	}
}

func TestCheckModel_SaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	wantPart(t, llamacpp.CheckModel(filepath.Join(dir, "none.gguf")), "none.gguf", "no such file", "run: make deps, or pass --model FILE")
	wantPart(t, llamacpp.CheckModel(dir), "not a file")
	write(t, filepath.Join(dir, "empty.gguf"), "", 0o644)
	wantPart(t, llamacpp.CheckModel(filepath.Join(dir, "empty.gguf")), "not a GGUF file")
	write(t, filepath.Join(dir, "page.gguf"), "<html>", 0o644)
	wantPart(t, llamacpp.CheckModel(filepath.Join(dir, "page.gguf")), "not a GGUF file")
	write(t, filepath.Join(dir, "good.gguf"), "GGUF\x03", 0o644)
	if err := llamacpp.CheckModel(filepath.Join(dir, "good.gguf")); err != nil {
		t.Errorf("a GGUF file is refused: %v", err)
	}
}

func TestFindHost_LooksBesideTheProgramThenOnPath(t *testing.T) {
	beside, path := t.TempDir(), t.TempDir()
	t.Setenv("PATH", path)
	_, err := llamacpp.FindHostIn(beside)
	wantPart(t, err, "segue-llamacpp", beside, "run: make build")
	write(t, filepath.Join(path, "segue-llamacpp"), "", 0o755)
	if p, err := llamacpp.FindHostIn(beside); err != nil || p != filepath.Join(path, "segue-llamacpp") {
		t.Errorf("got %q, %v, want the one on PATH", p, err)
	}
	write(t, filepath.Join(beside, "segue-llamacpp"), "", 0o644)
	if p, err := llamacpp.FindHostIn(beside); err != nil || p != filepath.Join(path, "segue-llamacpp") {
		t.Errorf("got %q, %v, want the one on PATH: the other isn't executable", p, err)
	}
	write(t, filepath.Join(beside, "segue-llamacpp"), "", 0o755)
	if err := os.Chmod(filepath.Join(beside, "segue-llamacpp"), 0o755); err != nil {
		t.Fatal(err)
	}
	if p, err := llamacpp.FindHostIn(beside); err != nil || p != filepath.Join(beside, "segue-llamacpp") {
		t.Errorf("got %q, %v, want the one beside the program", p, err)
	}
}

func TestConfig_DefaultsAreValid(t *testing.T) {
	if err := llamacpp.DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}

func TestConfig_ReportsAllProblems(t *testing.T) {
	err := llamacpp.Config{Threads: 0, Contexts: -1, ContextLength: 1 << 30, PrefillChunk: 513, Name: "two words"}.Validate()
	if err == nil {
		t.Fatal("an invalid configuration is accepted")
	}
	for _, key := range []string{"threads: ", "contexts: ", "context_length: ", "prefill_chunk: 513 is not in 1..512", "name: "} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("error %q doesn't say %q", err, key)
		}
	}
}

func TestConfig_PathsComeFromTheCache(t *testing.T) {
	t.Setenv("SEGUE_CACHE", "/c")
	c := llamacpp.DefaultConfig()
	if got := c.ModelPath(); got != "/c/smollm2-135m-instruct-q4_1/model.gguf" {
		t.Errorf("model path %q", got)
	}
	if got := c.LibraryPath(); !strings.HasPrefix(got, "/c/llamacpp-") {
		t.Errorf("library path %q", got)
	}
	if got := c.ModelName(); got != "smollm2-135m-instruct-q4_1" {
		t.Errorf("model name %q", got)
	}
	t.Setenv("SEGUE_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "/x")
	if got := llamacpp.CacheDir(); got != "/x/segue" {
		t.Errorf("cache folder %q", got)
	}
	c.Model = "/m/tiny-q8.gguf"
	if got := c.ModelName(); got != "tiny-q8" {
		t.Errorf("model name %q", got)
	}
}

func TestConfig_ArgsNameEveryValue(t *testing.T) {
	c := llamacpp.Config{Model: "/m.gguf", Library: "/lib", Name: "n", Threads: 2, Contexts: 3, ContextLength: 100, PrefillChunk: 32}
	want := []string{"--model", "/m.gguf", "--llama-lib", "/lib", "--threads", "2", "--contexts", "3", "--context-length", "100", "--chunk", "32", "--name", "n"}
	if got := c.Args(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestConfig_ReadsYAML(t *testing.T) {
	c := llamacpp.DefaultConfig()
	text := "model: /m\nlibrary: /l\nname: n\nthreads: 2\ncontexts: 3\ncontext_length: 512\nprefill_chunk: 16\n"
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil {
		t.Fatal(err)
	}
	if want := (llamacpp.Config{Model: "/m", Library: "/l", Name: "n", Threads: 2, Contexts: 3, ContextLength: 512, PrefillChunk: 16}); c != want {
		t.Errorf("got %+v, want %+v", c, want)
	}
}
