// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package reload_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/internal/certs/reload"
)

var errBad = errors.New("bad")

// rig is a Value over one file, whose text it is. "bad" and a missing file are errors.
type rig struct {
	t       *testing.T
	path    string
	now     time.Time
	reads   int
	reports []error
	refuse  bool
	value   *reload.Value[string]
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "f"), now: time.Now()}
	r.write("one")
	v, err := reload.New([]string{r.path}, r.read, reload.Options{
		Now: func() time.Time { return r.now }, Report: func(err error) { r.reports = append(r.reports, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	r.value = v
	return r
}

func (r *rig) read() (string, error) {
	r.reads++
	b, _, err := reload.ReadFile(r.path, 100)
	if err == nil && (r.refuse || string(b) == "bad") {
		err = errBad
	}
	return string(b), err
}

func (r *rig) write(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.path+".new", []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(r.path+".new", r.path); err != nil {
		r.t.Fatal(err)
	}
}

// want checks the value after an interval, or at once.
func (r *rig) want(after time.Duration, text string, reads int) {
	r.t.Helper()
	r.now = r.now.Add(after)
	if got := r.value.Get(); got != text {
		r.t.Errorf("got %q, want %q", got, text)
	}
	if r.reads != reads {
		r.t.Errorf("read %d times, want %d", r.reads, reads)
	}
}

func TestValue_LooksOncePerInterval(t *testing.T) {
	r := newRig(t)
	r.want(reload.Interval, "one", 1)
	r.write("two")
	r.want(reload.Interval-1, "one", 1)
	r.want(1, "two", 2)
	r.write("three")
	r.want(0, "two", 2)
	// A clock that is set back doesn't stop the looks.
	r.want(-time.Hour, "three", 3)
	if len(r.reports) != 2 || r.reports[0] != nil || r.reports[1] != nil {
		t.Errorf("reports: %v", r.reports)
	}
}

// Of the same size and time, another file shows by its inode.
func TestValue_SeesAnotherFileOfTheSameTime(t *testing.T) {
	r := newRig(t)
	info, err := os.Stat(r.path)
	if err != nil {
		t.Fatal(err)
	}
	r.write("two")
	if err := os.Chtimes(r.path, time.Time{}, info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if again, err := os.Stat(r.path); err != nil || !again.ModTime().Equal(info.ModTime()) || again.Size() != info.Size() {
		t.Fatal("the files differ in time or size", err)
	}
	r.want(reload.Interval, "two", 2)
}

func TestValue_KeepsTheOldAndReportsOnce(t *testing.T) {
	r := newRig(t)
	r.write("bad")
	r.want(reload.Interval, "one", 2)
	r.want(reload.Interval, "one", 3)
	if len(r.reports) != 1 || !errors.Is(r.reports[0], errBad) {
		t.Errorf("reports: %v", r.reports)
	}
	if err := os.Remove(r.path); err != nil {
		t.Fatal(err)
	}
	r.want(reload.Interval, "one", 4)
	if len(r.reports) != 2 || !errors.Is(r.reports[1], os.ErrNotExist) {
		t.Errorf("reports: %v", r.reports)
	}
	if err := r.value.Reload(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("reload: %v", err)
	}
	r.write("two")
	r.want(reload.Interval, "two", 6)
	if len(r.reports) != 3 || r.reports[2] != nil {
		t.Errorf("reports: %v", r.reports)
	}
}

// What was refused for a reason outside the file, such as the time, is taken when the reason is gone.
func TestValue_TakesAnUnchangedFileLater(t *testing.T) {
	r := newRig(t)
	r.refuse = true
	r.write("two")
	r.want(reload.Interval, "one", 2)
	r.refuse = false
	r.want(reload.Interval, "two", 3)
}

func TestValue_RefusesAtFirst(t *testing.T) {
	if _, err := reload.New(nil, func() (int, error) { return 0, errBad }, reload.Options{}); !errors.Is(err, errBad) {
		t.Errorf("got %v", err)
	}
}

func TestValue_RunLooksByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, []byte("one"), 0o600); err != nil {
			t.Fatal(err)
		}
		reports := make(chan error, 8)
		v, err := reload.New([]string{path}, func() (string, error) {
			b, err := os.ReadFile(path)
			return string(b), err
		}, reload.Options{Report: func(err error) { reports <- err }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- v.Run(ctx) }()
		if err := os.WriteFile(path, []byte("longer"), 0o600); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := <-reports; err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != reload.Interval {
			t.Errorf("noticed after %v", took)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := v.Get(); got != "longer" {
			t.Errorf("got %q", got)
		}
	})
}

// While one caller reads, slowly, the others go on with the old value.
func TestValue_OneReadsTheOthersGoOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	var reads atomic.Int32
	begun, goOn := make(chan struct{}), make(chan struct{})
	var late atomic.Bool
	start := time.Now()
	v, err := reload.New([]string{path}, func() (int32, error) {
		n := reads.Add(1)
		if n == 2 {
			close(begun)
			<-goOn
		}
		return n, nil
	}, reload.Options{Now: func() time.Time {
		if late.Load() {
			return start.Add(reload.Interval)
		}
		return start
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("xy"), 0o600); err != nil {
		t.Fatal(err)
	}
	late.Store(true)
	reader := make(chan int32, 1)
	go func() { reader <- v.Get() }()
	<-begun
	var others sync.WaitGroup
	for range 8 {
		others.Go(func() {
			if got := v.Get(); got != 1 {
				t.Errorf("got %d", got)
			}
		})
	}
	others.Wait()
	close(goOn)
	if got := <-reader; got != 2 {
		t.Errorf("the reader got %d", got)
	}
	if n := reads.Load(); n != 2 {
		t.Errorf("%d reads", n)
	}
}

func TestReadFile_Limits(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := errors.Join(os.WriteFile(path, []byte("12345"), 0o600), os.Chmod(path, 0o640)); err != nil {
		t.Fatal(err)
	}
	if b, mode, err := reload.ReadFile(path, 5); string(b) != "12345" || mode.Perm() != 0o640 || err != nil {
		t.Errorf("%q %v %v", b, mode, err)
	}
	for _, p := range []string{path, dir, path + "x"} {
		if _, _, err := reload.ReadFile(p, 4); err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("%s: %v", p, err)
		}
	}
}
