// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package restart_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/restart"
)

const target = "http://127.0.0.1:8000"

// bench is a Runner whose command takes 50 s of virtual time.
type bench struct {
	*restart.Runner
	cancel context.CancelFunc
	done   chan error

	mu     sync.Mutex
	events []restart.Event
	calls  []restart.Call
}

func newBench(t *testing.T, dir string, change ...func(*restart.Config)) *bench {
	t.Helper()
	b := &bench{done: make(chan error, 1)}
	cfg := restart.Config{
		Target: target, Dir: dir, Policy: short(),
		Exec: func(ctx context.Context, c restart.Call) restart.Result {
			b.mu.Lock()
			b.calls = append(b.calls, c)
			b.mu.Unlock()
			select {
			case <-time.After(50 * time.Second):
				return restart.Result{Output: "done"}
			case <-ctx.Done():
				return restart.Result{Err: ctx.Err()}
			}
		},
		Event: func(e restart.Event) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.events = append(b.events, e)
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	r, err := restart.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Runner = r
	ctx, cancel := context.WithCancel(t.Context())
	b.cancel = cancel
	go func() { b.done <- r.Run(ctx) }() // ends with stop
	synctest.Wait()
	return b
}

func (b *bench) stop(t *testing.T) {
	t.Helper()
	b.cancel()
	if err := <-b.done; err != nil {
		t.Fatal(err)
	}
}

// see hands a verdict over every second for that long.
func (b *bench) see(v health.Verdict, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		b.Observe(health.Assessment{At: time.Now(), Verdict: v, Reasons: []health.Reason{health.ReasonNoProgress}})
		time.Sleep(time.Second)
		synctest.Wait()
	}
}

func (b *bench) ran() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.calls)
}

func (b *bench) texts(kind string) (out []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		if e.Kind == kind {
			out = append(out, e.Text)
		}
	}
	return out
}

func want(t *testing.T, what string, got, want int) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %d, want %d", what, got, want)
	}
}

func TestRunner_RestartsStopsAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		b.see(health.Idle, time.Hour)
		want(t, "runs while it is well", b.ran(), 0)
		b.see(health.Hung, 10*time.Minute)
		want(t, "runs in the grace time", b.ran(), 1)
		if got := b.calls[0]; got != (restart.Call{Target: target, Verdict: "hung", Reasons: "no_progress"}) {
			t.Errorf("got %+v", got)
		}
		b.see(health.Hung, 5*time.Hour)
		want(t, "runs in five hours of hanging", b.ran(), 3)
		want(t, "ends", len(b.texts(restart.EventEnded)), 3)
		stopped := b.texts(restart.EventStopped)
		want(t, "stops", len(stopped), 1)
		if !strings.Contains(stopped[0], b.StatePath()) {
			t.Errorf("%q doesn't say what to do", stopped[0])
		}
		if s := b.Status(); !s.Stopped || s.Restarts != 3 || !s.Owner {
			t.Errorf("got %+v", s)
		}
		b.stop(t)
	})
}

func TestRunner_RemovedRecordEndsAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		b.see(health.Hung, 2*time.Hour)
		want(t, "runs", b.ran(), 3)
		if err := os.Remove(b.StatePath()); err != nil {
			t.Fatal(err)
		}
		b.see(health.Hung, time.Minute)
		want(t, "runs after the record was removed", b.ran(), 4)
		want(t, "stops that ended", len(b.texts(restart.EventLifted)), 1)
		b.stop(t)
	})
}

// The watchdog's own restart changes nothing of the pauses, the maximum or a stop.
func TestRunner_StateSurvivesItsOwnRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		runs := 0
		for range 12 { // of 30 minutes each
			b := newBench(t, dir)
			b.see(health.Hung, 30*time.Minute)
			runs += b.ran()
			b.stop(t)
		}
		want(t, "runs of twelve watchdogs in six hours", runs, 3)
		b := newBench(t, dir)
		if !b.Status().Stopped {
			t.Error("a new one doesn't know that restarts are over")
		}
		b.stop(t)
	})
}

// The beginning of a restart is on disk before the command runs.
func TestRunner_RecordsBeforeItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		var seen string
		b := newBench(t, dir, func(c *restart.Config) {
			c.Exec = func(context.Context, restart.Call) restart.Result {
				text, err := os.ReadFile(filepath.Join(dir, "127.0.0.1_8000.json"))
				if err != nil {
					t.Error(err)
				}
				seen = string(text)
				return restart.Result{}
			}
		})
		b.see(health.Hung, time.Second)
		if !strings.Contains(seen, `"began"`) || strings.Contains(seen, `"ended"`) {
			t.Errorf("while the command ran the record was %q", seen)
		}
		b.stop(t)
		if record, err := os.ReadFile(b.StatePath()); err != nil || !strings.Contains(string(record), `"ended"`) {
			t.Errorf("after it the record is %s, %v", record, err)
		}
		left, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(left) != 2 {
			t.Errorf("left: %v, %v, want lock and state only", left, err)
		}
	})
}

// Without a record there is no restart.
func TestRunner_UnwritableRecordForbidsTheCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		b := newBench(t, dir)
		// The state's path becomes a folder that isn't empty: nothing can be renamed to it.
		if err := os.MkdirAll(filepath.Join(b.StatePath(), "x"), 0o755); err != nil {
			t.Fatal(err)
		}
		b.see(health.Hung, time.Minute)
		want(t, "runs", b.ran(), 0)
		b.cancel()
		if err := <-b.done; err == nil || !strings.Contains(err.Error(), "nothing is restarted without a record") {
			t.Errorf("got %v", err)
		}
	})
}

func TestRunner_CorruptStateIsAnErrorNeverARestart(t *testing.T) {
	for name, content := range map[string]string{
		"empty":             "",
		"cut":               `{"version": 1, "key": "127.0.0.1_8000", "restarts": [{"beg`,
		"not JSON":          "restarts: 0",
		"another version":   `{"version": 2, "key": "127.0.0.1_8000", "restarts": []}`,
		"another target's":  `{"version": 1, "key": "gpu_8000", "restarts": []}`,
		"without beginning": `{"version": 1, "key": "127.0.0.1_8000", "restarts": [{}]}`,
		"not a time":        `{"version": 1, "key": "127.0.0.1_8000", "restarts": [{"began": "yesterday"}]}`,
		"unknown field":     `{"version": 1, "key": "127.0.0.1_8000", "restarts": [], "max": 5}`,
		"two":               `{"version": 1, "key": "127.0.0.1_8000", "restarts": []} {}`,
		"too many":          `{"version": 1, "key": "127.0.0.1_8000", "restarts": [` + strings.Repeat(`{"began": "2026-01-01T00:00:00Z"},`, 100) + `{"began": "2026-01-01T00:00:00Z"}]}`,
		"too long":          strings.Repeat(" ", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				path := filepath.Join(dir, "127.0.0.1_8000.json")
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
				b := newBench(t, dir)
				b.see(health.Hung, time.Hour)
				b.cancel()
				err := <-b.done
				if !errors.Is(err, restart.ErrState) || !strings.Contains(err.Error(), path) {
					t.Errorf("got %v, want what is wrong with %s", err, path)
				}
				want(t, "runs", b.ran(), 0)
			})
		})
	}
}

// Of two, one restarts; the other says who does, and takes over when that one ends, with its record.
func TestRunner_OneOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		a := newBench(t, dir)
		b := newBench(t, dir, func(c *restart.Config) { c.Target = "http://localhost:8000/" })
		both := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				a.see(health.Hung, time.Second)
				b.see(health.Hung, time.Second)
			}
		}
		both(5 * time.Minute)
		want(t, "runs of the owner", a.ran(), 1)
		want(t, "runs of the other", b.ran(), 0)
		if s := b.Status(); s.Owner || s.Other.PID != os.Getpid() || s.Last.Why != restart.WhyOther {
			t.Errorf("got %+v", s)
		}
		want(t, "times it was said", len(b.texts(restart.EventOther)), 1)
		a.stop(t)
		b.see(health.Hung, 2*time.Minute)
		if !b.Status().Owner || len(b.texts(restart.EventOwner)) != 1 {
			t.Fatalf("it didn't take over: %+v", b.Status())
		}
		want(t, "runs of the new owner in the old one's grace time", b.ran(), 0)
		b.see(health.Hung, 10*time.Minute)
		want(t, "runs of the new owner", b.ran(), 1)
		b.stop(t)
	})
}

// An owner whose lock file was replaced isn't one any more.
func TestRunner_ReplacedLockFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		a := newBench(t, dir)
		if err := os.Remove(a.LockPath()); err != nil {
			t.Fatal(err)
		}
		b := newBench(t, dir)
		if !a.Status().Owner || !b.Status().Owner {
			t.Fatal("the fault didn't happen: both should believe that they own it")
		}
		a.see(health.Hung, time.Minute)
		want(t, "runs of the one without a lock", a.ran(), 0)
		if a.Status().Owner {
			t.Error("it still believes that it owns the server")
		}
		b.see(health.Hung, time.Minute)
		want(t, "runs of the owner", b.ran(), 1)
		a.stop(t)
		b.stop(t)
	})
}

// What was seen while the command ran is its own doing.
func TestRunner_ForgetsWhatItSawDuringTheCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		b.see(health.Hung, 30*time.Second)
		want(t, "runs", b.ran(), 1)
		if len(b.texts(restart.EventEnded)) != 0 {
			t.Fatal("the command is over already")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		at := b.Status().Last.At
		want(t, "ends", len(b.texts(restart.EventEnded)), 1)
		if d := b.Status().Last; d.Action != restart.Run || !d.At.Equal(at) {
			t.Errorf("it decided upon what it saw meanwhile: %+v", d)
		}
		b.stop(t)
	})
}

// A stop that comes while the command runs waits for it.
func TestRunner_EndWaitsForTheCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		b.see(health.Hung, time.Second)
		began := time.Now()
		b.stop(t)
		if took := time.Since(began); took < 48*time.Second {
			t.Errorf("it ended after %v", took)
		}
		if got := b.texts(restart.EventEnded); len(got) != 1 || !strings.Contains(got[0], "success") {
			t.Errorf("got %q", got)
		}
		if record, err := os.ReadFile(b.StatePath()); err != nil || !strings.Contains(string(record), `"ended"`) {
			t.Errorf("the record doesn't have the end: %s, %v", record, err)
		}
	})
}

func TestRunner_CommandTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir(), func(c *restart.Config) { c.Policy.Timeout = 10 * time.Second })
		b.see(health.Hung, 5*time.Minute)
		want(t, "runs", b.ran(), 1)
		if got := b.texts(restart.EventEnded); len(got) != 1 || !strings.Contains(got[0], "deadline exceeded") {
			t.Errorf("got %q", got)
		}
		b.stop(t)
	})
}

func TestNew_RefusesWhatCantWork(t *testing.T) {
	good := restart.Config{Target: target, Dir: t.TempDir(), Policy: short(), Exec: restart.Shell("true")}
	for name, change := range map[string]func(*restart.Config){
		"policy": func(c *restart.Config) { c.Policy.Max = 0 },
		"target": func(c *restart.Config) { c.Target = "x" },
		"exec":   func(c *restart.Config) { c.Exec = nil },
		"dir":    func(c *restart.Config) { c.Dir = "" },
		"no dir": func(c *restart.Config) { c.Dir = "/dev/null/x" },
	} {
		c := good
		change(&c)
		if _, err := restart.New(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := restart.New(good); err != nil {
		t.Error(err)
	}
}
