// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package llamacpp

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/seguekv/segue/engines/llamacpp/libffi"
)

// HostName is the file name of the engine host's program.
const HostName = "segue-llamacpp"

// Hints of the errors about missing parts.
const (
	hintHost    = "run: make build, and keep " + HostName + " beside segue or on PATH"
	hintLibrary = "run: make deps, or pass --llama-lib DIR"
	hintModel   = "run: make deps, or pass --model FILE"
)

// FindHost returns the path of the engine host: beside the running program, else on PATH.
func FindHost() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the running program: %w", err)
	}
	return findHost(filepath.Dir(self))
}

func findHost(dir string) (string, error) {
	if p := filepath.Join(dir, HostName); executable(p) {
		return p, nil
	}
	if p, err := exec.LookPath(HostName); err == nil {
		return filepath.Abs(p)
	}
	return "", &PartError{Part: "engine host", Path: HostName, Problem: "not found in " + dir + " or on PATH", Hint: hintHost}
}

func executable(p string) bool {
	st, err := os.Stat(p)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

// CheckLibrary reports whether dir holds the libraries of llama.cpp. Its errors are *PartError.
func CheckLibrary(dir string) error {
	fail := func(problem string) error {
		return &PartError{Part: "library", Path: dir, Problem: problem, Hint: hintLibrary}
	}
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fail("no such folder")
	case err != nil:
		return fail(err.Error())
	case !st.IsDir():
		return fail("not a folder")
	}
	for _, name := range []string{"libllama.so", "libggml.so", "libggml-base.so"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fail(name + " is missing")
		}
	}
	if m, _ := filepath.Glob(filepath.Join(dir, "libggml-cpu*.so")); len(m) == 0 {
		return fail("libggml-cpu*.so is missing")
	}
	return nil
}

// CheckModel reports whether path is a GGUF file. It reads the first bytes only. Its errors are *PartError.
func CheckModel(path string) error {
	fail := func(problem string) error {
		return &PartError{Part: "model", Path: path, Problem: problem, Hint: hintModel}
	}
	f, err := os.Open(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fail("no such file")
	case err != nil:
		return fail(err.Error())
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return fail("not a file")
	}
	var magic [4]byte
	if _, err := io.ReadFull(f, magic[:]); err != nil || string(magic[:]) != "GGUF" {
		return fail("not a GGUF file")
	}
	return nil
}

// CheckFFI reports whether the dynamic loader can find libffi, which the engine host needs. Its errors are
// *PartError.
func CheckFFI() error {
	if libffi.Find() != "" {
		return nil
	}
	return &PartError{Part: "libffi", Path: libffi.Name, Problem: "not found", Hint: libffi.Hint}
}

// Check reports everything that a host with this configuration lacks on this machine.
func Check(c Config) error {
	return errors.Join(CheckFFI(), CheckLibrary(c.LibraryPath()), CheckModel(c.ModelPath()))
}
