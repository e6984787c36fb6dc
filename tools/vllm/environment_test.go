// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/seguekv/segue/internal/partstore"
)

// fakePython says that it is 3.11, makes environments that contain itself, and notes what else it was asked for.
const fakePython = `#!/bin/sh
case "$*" in
-c*sysconfig*) echo "${FAKE_VERSION:-3.11 linux-x86_64}"; exit ;;
-c*) exit ;;
esac
echo "$*" >>"$CALLS"
case "$*" in
*"-m venv"*) mkdir -p venv/bin; cp "$0" venv/bin/python ;;
*"-m pip"*) mkdir -p venv/lib/__pycache__; echo package >venv/lib/package.py ;;
*stubs.py) [ -z "$FAKE_FAIL" ] || { echo the reason; exit 3; } ;;
*model.py*) mkdir model; echo weights >model/model.safetensors ;;
esac
`

// machine has a fake Python first in PATH.
type machine struct {
	t           *testing.T
	calls, gguf string
	env         *environment
	log         *bytes.Buffer
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	bin, dir := t.TempDir(), t.TempDir()
	m := &machine{t: t, calls: filepath.Join(dir, "calls"), gguf: filepath.Join(dir, "model.gguf"), log: new(bytes.Buffer)}
	for _, name := range []string{"python3", "python3.11", "python3.12", "python3.13", "gcc", "readelf", "nm"} {
		m.write(filepath.Join(bin, name), fakePython, 0o755)
	}
	m.write(m.gguf, "gguf", 0o644)
	t.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	t.Setenv("CALLS", m.calls)
	sum := sha256.Sum256([]byte("gguf"))
	m.env = &environment{
		store: partstore.Store{Dir: filepath.Join(dir, "cache"), Program: "vllm", LockName: ".lock", Log: m.log},
		files: fstest.MapFS{"recipe/serve": {Data: []byte("#!/bin/sh\n")}, "recipe/requirements.txt": {Data: []byte("x==1\n")}, "recipe/stubs.py": {}, "recipe/model.py": {}},
		gguf:  m.gguf, pinned: hex.EncodeToString(sum[:]), python: "python3", version: "3.11",
	}
	return m
}

func (m *machine) write(name, text string, mode os.FileMode) {
	m.t.Helper()
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		m.t.Fatal(err)
	}
}

// made counts how often something was installed.
func (m *machine) made() int {
	b, _ := os.ReadFile(m.calls)
	return strings.Count(string(b), " install ")
}

// enough skips where the real machine is too small for the program to go on.
func (m *machine) enough() {
	if err := errors.Join(m.env.roomOnDisk(), roomInMemory()); err != nil {
		m.t.Skipf("SKIPPED: %v", err)
	}
}

func TestEnsure_MakesItOnceAndNoticesDamage(t *testing.T) {
	m := newMachine(t)
	m.enough()
	ensure := func(want int) {
		t.Helper()
		if err := m.env.ensure(t.Context()); err != nil || m.made() != want || !m.env.complete() {
			t.Fatalf("%v, made %d times, want %d\n%s", err, m.made(), want, m.log)
		}
	}
	if m.env.complete() {
		t.Fatal("complete before it is made")
	}
	ensure(1)
	place := m.env.store.Place(m.env.part())
	b, err := os.ReadFile(m.calls)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--require-hashes", "--no-deps", "stubs.py", "model.py " + m.gguf + " model"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %q among the calls:\n%s", want, b)
		}
	}
	if info, err := os.Stat(m.env.program()); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%s: %v, %v", m.env.program(), info, err)
	}
	ensure(1)
	m.write(filepath.Join(place, "venv/lib/__pycache__/package.pyc"), "compiled later", 0o644)
	ensure(1)
	m.write(filepath.Join(place, "venv/lib/package.py"), "cut", 0o644)
	ensure(2)
	m.env.version = "3.12"
	ensure(3)
	if again := m.env.store.Place(m.env.part()); again == place {
		t.Error("another Python's is in the same folder")
	}
}

func TestEnsure_KeepsNothingOfAFailure(t *testing.T) {
	m := newMachine(t)
	m.enough()
	t.Setenv("FAKE_FAIL", "1")
	err := m.env.ensure(t.Context())
	if err == nil || !strings.Contains(err.Error(), "the reason") {
		t.Errorf("%v, want the client's words", err)
	}
	if left, err := filepath.Glob(filepath.Join(m.env.store.Dir, "*"+family+"*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.env.ensure(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

func TestEnsure_RefusesOtherWeights(t *testing.T) {
	m := newMachine(t)
	m.enough()
	m.write(m.gguf, "other", 0o644)
	if err := m.env.ensure(t.Context()); err == nil || !strings.Contains(err.Error(), "pinned is "+m.env.pinned) || m.made() > 0 {
		t.Errorf("%v, made %d times", err, m.made())
	}
	m.env.gguf = ""
	if err := m.env.ensure(t.Context()); err == nil || !strings.Contains(err.Error(), "make vllm-env") {
		t.Error(err)
	}
}

func TestFindPython_TakesOneThatThePackagesAreFor(t *testing.T) {
	m := newMachine(t)
	m.env.python, m.env.version = "", ""
	if err := m.env.findPython(t.Context()); err != nil || m.env.python != "python3" || m.env.version != "3.11" {
		t.Errorf("%v, %q, %q", err, m.env.python, m.env.version)
	}
	t.Setenv("FAKE_VERSION", "3.9 linux-x86_64")
	if err := m.env.findPython(t.Context()); err == nil || errors.Is(err, errNoRoom) || !strings.Contains(err.Error(), "apt-get install") {
		t.Error(err)
	}
}

func TestRun_SaysWhereItIs(t *testing.T) {
	m := newMachine(t)
	t.Setenv("SEGUE_CACHE", m.env.store.Dir)
	for _, c := range []struct {
		name, own string
		args      []string
		code      int
		out       string
	}{
		{"none made", "", []string{"-env"}, 0, "SEGUE_VLLM=''\n"},
		{"the user's own", "/opt/it's", []string{"-env"}, 0, `SEGUE_VLLM='/opt/it'\''s'` + "\n"},
		{"nothing to make", "/opt/serve", nil, 0, "SEGUE_VLLM /opt/serve\n"},
		{"wrong usage", "", []string{"x"}, 2, ""},
	} {
		t.Setenv("SEGUE_VLLM", c.own)
		var out, log bytes.Buffer
		if code := run(t.Context(), c.args, &out, &log); code != c.code || out.String() != c.out {
			t.Errorf("%s: exit code %d, %q, want %d and %q\n%s", c.name, code, out.String(), c.code, c.out, log.String())
		}
	}
}
