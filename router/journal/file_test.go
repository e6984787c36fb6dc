// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"github.com/seguekv/segue/router/journal"
)

func TestFile_SurvivesACleanRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, stop := open(t, journal.Options{Path: path})
	e := begin(t, j, request(1, "key"))
	reserve(t, e, 3)
	e.Done("stop", journal.Usage{CompletionTokens: 3}, &journal.Answer{Status: 200, Body: []byte("answer")})
	if a, err := j.Claim("t", "r", "c", [32]byte{}, ""); err != nil || !a.Granted {
		t.Fatalf("%+v, %v", a, err)
	}
	if _, err := j.Result("t", "r", "c", [32]byte{}, nil); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", i.Mode(), err)
	}
	j, _ = open(t, journal.Options{Path: path})
	if _, err := j.Begin(request(2, "key")); !isFinished(&journal.Answer{Status: 200, Body: []byte("answer")})(err) {
		t.Errorf("key: %v", err)
	}
	if a, err := j.Claim("t", "r", "c", [32]byte{}, ""); err != nil || a.Granted || a.State != journal.ActionDone || a.Result == nil {
		t.Errorf("empty result: %+v, %v", a, err)
	}
}

func TestFile_BelongsToOneRouter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	_, stop := open(t, journal.Options{Path: path})
	_, err := journal.Open(journal.Options{Path: path})
	if !errors.Is(err, journal.ErrLocked) || !strings.Contains(err.Error(), "another router uses it") || !strings.Contains(err.Error(), path) {
		t.Errorf("second router: %v", err)
	}
	if err := journal.ReadFile(path, nil); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("reading a file in use: %v", err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	open(t, journal.Options{Path: path})
}

func TestFile_RefusesWhatItDoesNotKnow(t *testing.T) {
	dir := t.TempDir()
	bolt := func(name, bucket, key, value string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		db, err := bbolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucket([]byte(bucket))
			if err != nil {
				return err
			}
			return b.Put([]byte(key), []byte(value))
		}), db.Close()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("not a database ", 2000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, path, want string }{
		{"newer format", bolt("newer", "meta", "segue.router.journal.format", "2"), "move the file away"},
		{"other program", bolt("other", "users", "a", "b"), "isn't a router's journal"},
		{"no version", bolt("none", "meta", "x", "y"), "isn't a router's journal"},
		{"garbage", garbage, "move it away"},
		{"folder", dir, "journal"},
	} {
		before, _ := os.ReadFile(c.path)
		for what, err := range map[string]error{
			"open": func() error { _, err := journal.Open(journal.Options{Path: c.path}); return err }(),
			"read": journal.ReadFile(c.path, func(journal.Request) error { return nil }),
		} {
			if err == nil || what == "open" && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: %v", c.name, what, err)
			}
		}
		if after, _ := os.ReadFile(c.path); c.name == "garbage" && !cmp.Equal(before, after) {
			t.Errorf("%s: the file was changed", c.name)
		}
	}
	missing := filepath.Join(dir, "missing")
	if err := journal.ReadFile(missing, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("reading a missing file: %v", err)
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("reading made the file")
	}
}

func TestFile_IsCompacted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, stop := open(t, journal.Options{Path: path, MaxRequests: 1, MaxKeys: 100})
	for i := range 40 {
		begin(t, j, request(i, fmt.Sprint(i))).Done("stop", journal.Usage{}, &journal.Answer{Status: 200, Body: make([]byte, 1<<20)})
	}
	flush(t, j)
	flush(t, j) // the second commit drops
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	before := size(t, path)
	if before < 32<<20 {
		t.Fatalf("the file has only %d bytes", before)
	}
	j, _ = open(t, journal.Options{Path: path, MaxRequests: 1, MaxKeys: 100})
	after := size(t, path)
	t.Logf("%d bytes, compacted %d", before, after)
	if after > 4<<20 {
		t.Errorf("%d bytes became %d", before, after)
	}
	if _, err := os.Stat(path + ".compact"); err == nil {
		t.Error("the copy was left behind")
	}
	if n := len(j.List(journal.Filter{})); n != 1 {
		t.Errorf("%d requests are left", n)
	}
	if _, err := journal.Open(journal.Options{Path: path}); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("the compacted file isn't locked: %v", err)
	}
	if _, err := j.Begin(request(99, "39")); !is[*journal.FinishedError](err) {
		t.Errorf("key after compaction: %v", err)
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	i, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return i.Size()
}

// childPath tells a process of this test binary to write a journal until it is killed.
const childPath = "SEGUE_TEST_JOURNAL"

// child writes requests into the file, and to standard output what clients saw, after the fact; it doesn't return.
func child() bool {
	path := os.Getenv(childPath)
	if path == "" {
		return false
	}
	j, err := journal.Open(journal.Options{Path: path})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	go func() { _ = j.Run(context.Background()) }()
	base := rand.IntN(1 << 30)
	for i := range 8 {
		go func() {
			for n := 0; ; n++ {
				request := request(base+i*100_000+n, fmt.Sprintf("key-%d-%d-%d", base, i, n))
				e, err := j.Begin(request)
				if err != nil {
					fmt.Println("error", err)
					os.Exit(1)
				}
				for k := range 150 {
					if err := e.Reserve(context.Background(), k+1); err != nil {
						fmt.Println("error", err)
						os.Exit(1)
					}
					fmt.Println("saw", request.Session, k+1)
					e.Delivered(k + 1)
				}
				e.Done("stop", journal.Usage{}, nil)
				if a, err := j.Claim("t", request.Session, "c", [32]byte{}, ""); err == nil && a.Granted {
					fmt.Println("granted", request.Session, 0)
				}
			}
		}()
	}
	select {}
}

func TestFile_SurvivesKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	seen, granted := map[string]int{}, map[string]bool{}
	for round := range 5 {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), childPath+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			var what, session string
			var count int
			if _, err := fmt.Sscan(lines.Text(), &what, &session, &count); err != nil {
				if lines.Text() != "" && what == "error" {
					t.Fatal(lines.Text())
				}
				continue // the last line may be cut off
			}
			switch what {
			case "saw":
				seen[session] = max(seen[session], count)
			case "granted":
				granted[session] = true
			}
			if n == 500*(round+1)+rand.IntN(300) || n == 500*(round+1)+300 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
			t.Fatalf("the process wasn't killed: %v", err)
		}
		offline := map[string]journal.Request{}
		if err := journal.ReadFile(path, func(r journal.Request) error { offline[r.Session] = r; return nil }); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		j, stop := open(t, journal.Options{Path: path})
		opened := time.Since(start)
		open := 0
		for session, count := range seen {
			r, ok := j.Session(session)
			if !ok || r.Delivered < count || !r.FirstDeltaSent || !r.Ended() {
				t.Fatalf("round %d: request %s, its client saw %d: %+v", round, session, count, r)
			}
			if r.UpperBound {
				open++
			}
			if o := offline[session]; o.Delivered != r.Delivered || o.Phase != r.Phase || o.UpperBound != r.UpperBound {
				t.Errorf("offline: %+v\nopened: %+v", o, r)
			}
		}
		for session := range granted {
			if a, err := j.Claim("t", session, "c", [32]byte{}, ""); err != nil || a.Granted {
				t.Errorf("round %d: the action of %s is granted again: %v", round, session, err)
			}
		}
		t.Logf("round %d: %d requests seen, %d ended by a kill, %d actions, opened in %v", round, len(seen), open, len(granted), opened)
		if open == 0 {
			t.Error("the kill met no open request")
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
}
