// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package supervisor_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/gpu"
	"github.com/seguekv/segue/health/gpu/supervisor"
)

// soon bounds the end of Run on a busy machine; a program that hangs takes none of it.
const soon = 4 * time.Second

func TestSupervisor_ReportsReadings(t *testing.T) {
	t.Parallel()
	r := run(t, "good", supervisor.Config{})
	if h := r.await("a hello", func(rep gpu.Report) bool { return rep.Hello != nil }); h.Hello.Boot != "b" {
		t.Errorf("got %+v", h.Hello)
	}
	rep := r.sampled()
	if age := time.Since(rep.Sample.At); age < 0 || age > time.Minute {
		t.Errorf("the sample is %v old", age)
	}
	st := r.s.Status()
	if st.PID == 0 || st.Starts != 1 || st.Unavailable != "" || st.Hello == nil {
		t.Errorf("got %+v", st)
	}
	if d := r.end(); d > soon {
		t.Errorf("the end took %v", d)
	}
	gone(t, st.PID)
	if st := r.s.Status(); st.PID != 0 || st.Unavailable == "" {
		t.Errorf("got %+v after the end", st)
	}
}

// What the program does wrong, and what is said of it. None of it is a verdict, and none delays the end.
func TestSupervisor_Faults(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]string{
		"127":             "exit status 127: symbol lookup error: undefined symbol: nvmlFoo",
		"hang":            "no reading within 300ms",
		"hello, hang":     "no reading within 300ms",
		"sample, hang":    "no reading within 200ms",
		"stalled":         "no reading within 200ms",
		"stopped":         "no reading within 200ms",
		"half line":       "no reading within 200ms",
		"half line, exit": "bad line",
		"garbage":         "bad line",
		"late garbage":    "bad line",
		"other protocol":  "protocol 7, want 1",
		"no hello":        "a sample before the hello",
		"two hellos":      "a second hello",
		"future":          "from now",
		"flood":           "too many lines",
		"endless line":    "longer than 262144 bytes",
		"brief":           "exit status 3: brief life",
		"unavailable":     "built without cgo",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			// On a busy machine anything takes long: a limit is short only where it is what is waited for.
			cfg := supervisor.Config{StartTimeout: 20 * time.Second, Deadline: 20 * time.Second}
			switch want {
			case "no reading within 300ms":
				cfg.StartTimeout = 300 * time.Millisecond
			case "no reading within 200ms":
				cfg.Deadline = 200 * time.Millisecond
			}
			r := run(t, mode, cfg)
			r.unavailable(want)
			j, err := gpu.NewJudge(gpu.Config{Table: gpu.DefaultTable()})
			if err != nil {
				t.Fatal(err)
			}
			r.mu.Lock()
			for _, rep := range r.reports {
				got := j.Take(rep)
				if got.Verdict != health.Unknown && (rep.Sample == nil || got.Verdict != health.Reachable) {
					t.Errorf("got %v %v of %+v", got.Verdict, got.Reasons, rep)
				}
			}
			r.mu.Unlock()
			r.await("a second life", func(gpu.Report) bool { return r.s.Status().Starts >= 2 })
			if d := r.end(); d > soon {
				t.Errorf("the end took %v", d)
			}
		})
	}
}

func TestSupervisor_MissingProgram(t *testing.T) {
	t.Parallel()
	r := run(t, "", supervisor.Config{Command: []string{t.TempDir() + "/segue-nvml"}})
	r.unavailable("no such file")
	n := 0
	r.await("the fifth attempt", func(rep gpu.Report) bool { n++; return n > 5 })
	if got := strings.Count(r.logs.String(), "unavailable"); got != 1 {
		t.Errorf("%d lines in the log, want one: %s", got, r.logs)
	}
}

func TestSupervisor_LogsAChangeOnce(t *testing.T) {
	t.Parallel()
	r := run(t, "127", supervisor.Config{})
	r.await("the fourth life", func(gpu.Report) bool { return r.s.Status().Starts > 3 })
	r.end()
	if got := strings.Count(r.logs.String(), "\n"); got != 1 || !strings.Contains(r.logs.String(), "status 127") {
		t.Errorf("want one line in the log: %s", r.logs)
	}
	u := run(t, "unsupported", supervisor.Config{})
	for range 5 {
		u.sampled()
		<-u.more
	}
	u.end()
	if got := strings.Count(u.logs.String(), "ecc: not supported"); got != 1 {
		t.Errorf("%d lines about what isn't supported, want one: %s", got, u.logs)
	}
}

// The times of a sample are those of this process's clock, whatever the program's wall clock says.
func TestSupervisor_KeepsItsOwnTime(t *testing.T) {
	t.Parallel()
	before := time.Now()
	r := run(t, "wall clock", supervisor.Config{})
	if at := r.sampled().Sample.At; at.Before(before) || at.After(time.Now()) {
		t.Errorf("the sample is of %v, want between %v and now", at, before)
	}
}

// A call that never returns costs one process: while it hangs no other is started, and it ends with Run.
func TestSupervisor_HangingCallIsOneProcess(t *testing.T) {
	t.Parallel()
	r := run(t, "sample, hang", supervisor.Config{Deadline: time.Hour})
	r.sampled()
	st := r.s.Status()
	if st.Starts != 1 {
		t.Fatalf("%d starts", st.Starts)
	}
	if d := r.end(); d > soon {
		t.Errorf("the end took %v", d)
	}
	gone(t, st.PID)
}

// Whatever the program started ends with it.
func TestSupervisor_KillsTheGroup(t *testing.T) {
	t.Parallel()
	r := run(t, "heir", supervisor.Config{Deadline: time.Hour})
	var child int
	if _, err := fmt.Sscanf(r.sampled().Sample.Errors[0], "child %d", &child); err != nil {
		t.Fatal(err)
	}
	pid := r.s.Status().PID
	if d := r.end(); d > soon {
		t.Errorf("the end took %v", d)
	}
	gone(t, pid)
	gone(t, child)
}

func TestSupervisor_MemoryIsBounded(t *testing.T) {
	for _, mode := range []string{"endless line", "noise"} {
		r := run(t, mode, supervisor.Config{BackoffMin: time.Minute})
		if mode == "noise" {
			r.sampled()
		} else {
			r.unavailable("longer than")
		}
		r.end()
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		if m.HeapAlloc > 32<<20 {
			t.Errorf("%s: %d bytes are held", mode, m.HeapAlloc)
		}
	}
}

func TestNew_Refuses(t *testing.T) {
	if _, err := supervisor.New(supervisor.Config{Report: func(gpu.Report) {}}); err == nil || !strings.Contains(err.Error(), "segue-nvml") {
		t.Errorf("got %v", err)
	}
	if _, err := supervisor.New(supervisor.Config{Command: []string{"x"}}); err == nil {
		t.Error("nobody takes the reports, and New is content")
	}
}
