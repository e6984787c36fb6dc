// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package parts_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seguekv/segue/conformance/parts"
)

// part is installed by a shell script.
func part(t *testing.T, script string) parts.Part {
	t.Helper()
	source := t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "lock"), []byte("x==1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return parts.Part{Name: "test", Source: source, Locks: []string{"lock"}, Versions: [][]string{{"sh", "-c", "echo 1"}}, Steps: [][]string{{"sh", "-c", script}}}
}

func TestEnsure_InstallsOnceAndNoticesDamage(t *testing.T) {
	var log bytes.Buffer
	c := parts.Cache{Dir: t.TempDir(), Log: &log}
	calls := filepath.Join(t.TempDir(), "calls")
	p := part(t, "echo call >>"+calls+"; mkdir d; echo content >d/file")
	count := func() int {
		b, err := os.ReadFile(calls)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), "call")
	}
	dir, err := c.Ensure(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Ensure(t.Context(), p); err != nil || again != dir || count() != 1 {
		t.Errorf("second call: %s, %v, %d installations; want %s and 1", again, err, count(), dir)
	}
	if err := os.WriteFile(filepath.Join(dir, "d/file"), []byte("cut"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ensure(t.Context(), p); err != nil || count() != 2 {
		t.Errorf("after damage: %v, %d installations, want 2", err, count())
	}
	if err := os.WriteFile(filepath.Join(p.Source, "lock"), []byte("x==2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if other, err := c.Ensure(t.Context(), p); err != nil || other == dir || count() != 3 {
		t.Errorf("with another lock file: %s, %v, %d installations; want another folder and 3", other, err, count())
	}
}

func TestEnsure_KeepsNothingOfAFailure(t *testing.T) {
	var log bytes.Buffer
	c := parts.Cache{Dir: t.TempDir(), Log: &log}
	if err := os.Mkdir(filepath.Join(c.Dir, ".partial-conformance-test-old"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := c.Ensure(t.Context(), part(t, "echo begun >file; echo the reason; exit 3"))
	if err == nil || !strings.Contains(err.Error(), "the reason") {
		t.Errorf("error %v, want one with the client's words", err)
	}
	left, err := filepath.Glob(filepath.Join(c.Dir, "*conformance-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestEnsure_InterruptedKeepsNothing(t *testing.T) {
	var log bytes.Buffer
	c := parts.Cache{Dir: t.TempDir(), Log: &log}
	ctx, cancel := context.WithCancel(t.Context())
	begun := filepath.Join(t.TempDir(), "begun")
	p := part(t, "mkfifo "+begun+".done; touch "+begun+"; read x <"+begun+".done")
	done := make(chan error, 1)
	go func() {
		_, err := c.Ensure(ctx, p)
		done <- err
	}()
	for {
		if _, err := os.Stat(begun); err == nil {
			break
		}
		select {
		case err := <-done:
			t.Fatalf("ended early: %v", err)
		default:
		}
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("no error")
	}
	if left, err := filepath.Glob(filepath.Join(c.Dir, "*conformance-*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestEnsure_MissingProgramIsNamed(t *testing.T) {
	p := part(t, "true")
	p.Versions = [][]string{{"segue-no-such-program", "--version"}}
	var log bytes.Buffer
	_, err := parts.Cache{Dir: t.TempDir(), Log: &log}.Ensure(t.Context(), p)
	if err == nil || !strings.Contains(err.Error(), "install line") {
		t.Errorf("error %v, want an install line", err)
	}
}
