// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hybridgroup/yzma/pkg/llama"

	"github.com/seguekv/segue/engines/llamacpp"
)

// library is llama.cpp, loaded into this process for good.
type library struct {
	log *libraryLog
	// Files that the dynamic loader really mapped, links resolved.
	llama, base, cpu string
}

// openLibrary loads the libraries in dir and the variant of the CPU backend that suits this machine. It
// must be called at most once in a process. Its errors are *llamacpp.PartError.
func openLibrary(dir string, log *libraryLog) (*library, error) {
	fail := func(problem string) error {
		return &llamacpp.PartError{Part: "library", Path: dir, Problem: problem, Hint: "run: make deps, or pass --llama-lib DIR with llama.cpp v0.5.0 for CPU"}
	}
	// llama.cpp would start a debugger on an assertion and hold up the death of the process.
	if err := os.Setenv("GGML_NO_BACKTRACE", "1"); err != nil {
		return nil, fmt.Errorf("set environment: %w", err)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find library: %w", err)
	}
	if err := llama.Load(dir); err != nil {
		return nil, fail(err.Error())
	}
	llama.LogSet(log.callback())
	// The binding knows the structures of one version: their defaults tell whether it fits.
	p := llama.ContextDefaultParams()
	if p.NCtx != 512 || p.NBatch != 2048 || p.NUbatch != 512 || p.NSeqMax != 1 ||
		p.FlashAttentionType != llama.FlashAttentionTypeAuto || p.TypeK != llama.GGMLTypeF16 || p.TypeV != llama.GGMLTypeF16 {
		return nil, fail("another version than the binding is made for: its default parameters read as nonsense")
	}
	llama.BackendInit()
	if err := llama.GGMLBackendLoadAllFromPath(dir); err != nil {
		return nil, fail(err.Error())
	}
	for i := range llama.GGMLBackendDeviceCount() {
		d := llama.GGMLBackendDeviceGet(i)
		if t := llama.GGMLBackendDevType(d); t != llama.GGMLBackendDeviceTypeCPU {
			return nil, fail(fmt.Sprintf("it has a backend for device %s; only CPU is supported", llama.GGMLBackendDeviceName(d)))
		}
	}
	lib := &library{log: log}
	for _, f := range []struct {
		to     *string
		prefix string
	}{{&lib.llama, "libllama."}, {&lib.base, "libggml-base."}, {&lib.cpu, "libggml-cpu"}} {
		if *f.to, err = mapped("/proc/self/maps", f.prefix); err != nil {
			return nil, fail(err.Error())
		}
	}
	return lib, nil
}

// mapped returns the only mapped file whose name begins with prefix.
func mapped(maps, prefix string) (string, error) {
	f, err := os.Open(maps)
	if err != nil {
		return "", fmt.Errorf("find loaded libraries: %w", err)
	}
	defer f.Close()
	found := ""
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// The path is the sixth field and may hold spaces; it is the only one that begins with a slash.
		_, path, ok := strings.Cut(lines.Text(), " /")
		if !ok || !strings.HasPrefix(filepath.Base(path), prefix) {
			continue
		}
		if path = "/" + path; found != "" && found != path {
			return "", fmt.Errorf("two libraries %s* are loaded: %s and %s", prefix, found, path)
		}
		found = path
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("find loaded libraries: %w", err)
	}
	if found == "" {
		return "", fmt.Errorf("no library %s* is loaded", prefix)
	}
	return found, nil
}
