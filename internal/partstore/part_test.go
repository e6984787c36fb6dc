// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package partstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/internal/partstore"
)

// names is a marker with a version and the names and sizes of what is there.
func names(version string) partstore.Marker {
	return func(dir string) ([]byte, error) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		text := []byte(version + "\n")
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				return nil, err
			}
			if e.Name() != partstore.MarkerName {
				text = fmt.Appendf(text, "%s %d\n", e.Name(), info.Size())
			}
		}
		return text, nil
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// tree lists the cache's entries, and those of its folders.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, p); err == nil && !e.IsDir() && e.Name() != ".lock" {
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// put is a fill that leaves more in the work folder than the part has.
func put(content string) func(work, out string) error {
	return func(work, out string) error {
		return errors.Join(os.WriteFile(filepath.Join(work, "download"), nil, 0o644), os.WriteFile(filepath.Join(out, "file"), []byte(content), 0o644))
	}
}

func TestStore_MakesAWholePart(t *testing.T) {
	s, log := newStore(t)
	unlock, err := s.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	p := partstore.Part{What: "thing", Dir: "thing-1", Marker: names("1")}
	if s.Complete(p) {
		t.Error("complete before it is made")
	}
	if err := s.Make(t.Context(), p, put("content")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"thing-1/" + partstore.MarkerName, "thing-1/file"}, tree(t, s.Dir)); diff != "" {
		t.Errorf("cache (-want +got):\n%s", diff)
	}
	if !s.Complete(p) || log.String() != "" {
		t.Errorf("complete: %v, it said %q", s.Complete(p), log)
	}
	if p.Marker = names("2"); s.Complete(p) {
		t.Error("complete as another version")
	}
}

func TestStore_DiscardsWhatIsNotComplete(t *testing.T) {
	s, log := newStore(t)
	p := partstore.Part{What: "thing", Dir: "thing-a-2", Family: "thing-a", Marker: names("2")}
	for _, name := range []string{".partial-thing-a-17/half", ".partial-thing-b-17/half", "thing-a-1/file", "thing-a-2/file"} {
		write(t, filepath.Join(s.Dir, name), "x")
	}
	if err := s.Make(t.Context(), p, put("content")); err != nil {
		t.Fatal(err)
	}
	want := []string{".partial-thing-b-17/half", "thing-a-1/file", "thing-a-2/" + partstore.MarkerName, "thing-a-2/file"}
	if diff := cmp.Diff(want, tree(t, s.Dir)); diff != "" {
		t.Errorf("cache (-want +got):\n%s", diff)
	}
	if want := "test: thing: discarding incomplete .partial-thing-a-17\ntest: thing: discarding incomplete thing-a-2\n"; log.String() != want {
		t.Errorf("it said %q, want %q", log, want)
	}
	for name, spoil := range map[string]func(){
		"more":    func() { write(t, filepath.Join(s.Place(p), "more"), "") },
		"cut":     func() { write(t, filepath.Join(s.Place(p), "file"), "con") },
		"missing": func() { _ = os.Remove(filepath.Join(s.Place(p), "file")) },
		"marker":  func() { _ = os.Remove(filepath.Join(s.Place(p), partstore.MarkerName)) },
	} {
		if err := s.Make(t.Context(), p, put("content")); err != nil || !s.Complete(p) {
			t.Fatalf("%v, complete: %v", err, s.Complete(p))
		}
		if spoil(); s.Complete(p) {
			t.Errorf("%s: complete", name)
		}
	}
}

func TestStore_KeepsNothingOfAFailure(t *testing.T) {
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	for name, c := range map[string]struct {
		ctx    context.Context
		marker partstore.Marker
		after  error
	}{
		"fill":    {t.Context(), names("1"), why},
		"marker":  {t.Context(), func(string) ([]byte, error) { return nil, why }, nil},
		"context": {ctx, names("1"), nil},
	} {
		s, _ := newStore(t)
		write(t, filepath.Join(s.Dir, ".lock"), "")
		err := s.Make(c.ctx, partstore.Part{Dir: "d", Marker: c.marker}, func(work, out string) error {
			cancel(why)
			return errors.Join(put("content")(work, out), c.after)
		})
		if left := tree(t, s.Dir); !errors.Is(err, why) || len(left) > 0 {
			t.Errorf("%s: %v, left %v", name, err, left)
		}
	}
}

func TestClient_SaysWhatItPrinted(t *testing.T) {
	dir := t.TempDir()
	c := partstore.Client{Name: "the client", Command: []string{"sh", "-c", `pwd; echo "$WORD" >&2`}, Dir: dir, Env: []string{"WORD=so"}}
	if said, err := c.Run(t.Context()); err != nil || said != "    "+dir+"\n    so" {
		t.Errorf("%q, %v", said, err)
	}
	c.Command[2] = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; exit 7"
	_, err := c.Run(t.Context())
	if err == nil || !strings.HasPrefix(err.Error(), "the client: exit status 7; its last lines:\n") || !strings.HasSuffix(err.Error(), "    line 2999") || len(err.Error()) > 16<<10 {
		t.Errorf("%v", err)
	}
	c.Command[2] = "exit 1"
	if _, err := c.Run(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "    (nothing)") {
		t.Errorf("%v", err)
	}
}

// An ended run ends everything that the client started, also what holds its output open.
func TestClient_EndsWithItsGroup(t *testing.T) {
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	dir, calls := t.TempDir(), make(chan struct{}, 1)
	c := partstore.Client{
		Name: "client", Command: []string{"sh", "-c", "mkfifo hang; (cat hang) & touch ready; cat hang"}, Dir: dir, Every: time.Millisecond,
		Progress: func() {
			if _, err := os.Stat(filepath.Join(dir, "ready")); err == nil {
				select {
				case calls <- struct{}{}:
				default:
				}
			}
		},
	}
	done := make(chan error, 1)
	go func() {
		_, err := c.Run(ctx)
		done <- err
	}()
	<-calls // it runs, and its progress is told
	cancel(why)
	select {
	case err := <-done:
		if !errors.Is(err, why) {
			t.Errorf("got %v, want %v", err, why)
		}
	case <-time.After(patience):
		t.Fatal("it doesn't end")
	}
	// A pipe with a reader could be opened.
	f, err := os.OpenFile(filepath.Join(dir, "hang"), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if !errors.Is(err, syscall.ENXIO) {
		t.Errorf("opened %v, %v: what it started lives on", f, err)
	}
}
