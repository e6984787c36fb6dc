// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package partstore_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seguekv/segue/internal/partstore"
)

// patience is how long a test waits for what has to come.
const patience = 20 * time.Second

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

// until polls for a condition that another goroutine or process brings about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func newStore(t *testing.T) (partstore.Store, *safeBuffer) {
	t.Helper()
	log := new(safeBuffer)
	return partstore.Store{Dir: filepath.Join(t.TempDir(), "cache"), Program: "test", LockName: ".lock", Log: log}, log
}

func TestDir_Precedence(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"SEGUE_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/h"}, "/a"},
		{map[string]string{"XDG_CACHE_HOME": "/b", "HOME": "/h"}, "/b/segue"},
		{map[string]string{"HOME": "/h"}, "/h/.cache/segue"},
	} {
		got, err := partstore.Dir(func(k string) string { return c.env[k] })
		if err != nil || got != c.want {
			t.Errorf("with %v: got %q, %v, want %q", c.env, got, err, c.want)
		}
	}
	if _, err := partstore.Dir(func(string) string { return "" }); err == nil {
		t.Error("no error without any variable")
	}
}

func TestStore_LockIsForOne(t *testing.T) {
	s, _ := newStore(t)
	unlock, err := s.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second, log := s, new(safeBuffer)
	second.Log = log
	got := make(chan func(), 1)
	go func() {
		u, err := second.Lock(t.Context())
		if err != nil {
			t.Error(err)
		}
		got <- u
	}()
	until(t, "the second run says that it waits", func() bool {
		return log.String() == "test: another run works on "+s.Dir+"; waiting for it\n"
	})
	select {
	case <-got:
		t.Error("two runs have the lock")
	default:
	}
	// Another lock of the same folder is free.
	other := s
	other.LockName = ".other"
	free, err := other.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	free()
	unlock()
	select {
	case u := <-got:
		u()
	case <-time.After(patience):
		t.Fatal("the second run doesn't get the lock")
	}
}

func TestStore_LockEndsWithItsContext(t *testing.T) {
	s, log := newStore(t)
	unlock, err := s.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Lock(ctx)
		done <- err
	}()
	until(t, "the second run waits", func() bool { return strings.Contains(log.String(), "waiting for it") })
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("got %v, want %v", err, why)
	}
	s.Dir = filepath.Join(s.Dir, ".lock") // a file
	if _, err := s.Lock(t.Context()); err == nil {
		t.Error("no error for a folder that can't be made")
	}
}

func TestSize_IsOfFiles(t *testing.T) {
	dir := t.TempDir()
	for name, n := range map[string]int{"a": 3, "b": 4} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if got := partstore.Size(dir); got != 7 {
		t.Errorf("got %d, want 7", got)
	}
	if got := partstore.Size(filepath.Join(dir, "none")); got != 0 {
		t.Errorf("of a missing folder: %d, want 0", got)
	}
}
