// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/gpu"
	"github.com/seguekv/segue/health/gpu/supervisor"
)

// programMode is the environment variable that makes the test binary the program: on a fake driver, of which a call
// named by the value hangs, or with "real" as it is.
const programMode = "SEGUE_NVML_TEST_PROGRAM"

func TestMain(m *testing.M) {
	mode := os.Getenv(programMode)
	switch {
	case mode == "":
		os.Exit(m.Run())
	case mode == "real":
		main()
	case strings.HasPrefix(mode, "unguarded "):
		os.Exit(unguarded(strings.TrimPrefix(mode, "unguarded ")))
	}
	f := newFake("GPU-1")
	f.hang = mode
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr, func(string) (driver, error) { return f, nil }))
}

// The signal to end works whatever a call does, before the hello and in a reading.
func TestProcess_SignalEndsItAtOnce(t *testing.T) {
	for _, mode := range []string{"init", factECC, "nothing"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "--interval", "100ms")
			cmd.Env = append(os.Environ(), programMode+"="+mode)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			r := bufio.NewReader(out)
			switch mode {
			case "init": // it says nothing; give it the time to hang
				<-time.After(300 * time.Millisecond)
			default:
				want := map[string]string{factECC: `"stalled_ms"`, "nothing": `"complete":true`}[mode]
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						t.Fatal(err)
					}
					if strings.Contains(line, want) {
						break
					}
				}
			}
			began := time.Now()
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			if d := time.Since(began); d > 3*time.Second {
				t.Errorf("it took %v", d)
			}
		})
	}
}

// supervise runs the test binary as the program under a supervisor, and returns the results of a judge of its own.
func supervise(t *testing.T, cfg supervisor.Config, judge gpu.Config) (*supervisor.Supervisor, <-chan gpu.Result, func() time.Duration) {
	t.Helper()
	judge.Table = gpu.DefaultTable()
	j, err := gpu.NewJudge(judge)
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan gpu.Result, 1)
	ctx, cancel := context.WithCancel(context.Background())
	cfg.Command = append([]string{os.Args[0], "--interval", "100ms"}, cfg.Command...)
	cfg.Report = func(r gpu.Report) {
		select {
		case results <- j.Take(r):
		case <-ctx.Done():
		}
	}
	s, err := supervisor.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	end := sync.OnceValue(func() time.Duration {
		began := time.Now()
		cancel()
		wg.Wait()
		return time.Since(began)
	})
	t.Cleanup(func() { end() })
	return s, results, end
}

// result waits for one that satisfies ok.
func result(t *testing.T, from <-chan gpu.Result, what string, ok func(gpu.Result) bool) gpu.Result {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	var last gpu.Result
	for {
		select {
		case last = <-from:
			if ok(last) {
				return last
			}
		case <-deadline.C:
			t.Fatalf("no %s; the last result is %+v", what, last)
		}
	}
}

// E10: a call of the library blocks for ever. What watches it goes on, knows nothing, has one blocked call in one
// process, and ends cleanly.
func TestCaseE10_CallThatBlocksForEver(t *testing.T) {
	s, results, end := supervise(t, supervisor.Config{Env: []string{programMode + "=" + factECC}, StartTimeout: time.Hour}, gpu.Config{})
	stalled := func(r gpu.Result) bool { return strings.Contains(r.Unavailable, "under way") }
	for range 5 {
		r := result(t, results, "word of the blocked call", stalled)
		if r.Verdict != health.Unknown {
			t.Errorf("got %v %v", r.Verdict, r.Reasons)
		}
		busy := health.Assessment{Verdict: health.Busy}
		if got := health.Combine(busy, r.Assessment); got.Verdict != health.Busy {
			t.Errorf("the engine is %v for it", got.Verdict)
		}
	}
	st := s.Status()
	if st.Starts != 1 || st.PID == 0 || st.Unavailable == "" {
		t.Errorf("got %+v, want the one process", st)
	}
	if d := end(); d > 4*time.Second {
		t.Errorf("the end took %v", d)
	}
	if err := syscall.Kill(st.PID, 0); err == nil {
		t.Errorf("process %d lives on", st.PID)
	}
}

// The same, with a program that is given up: it is killed before another one starts.
func TestCaseE10_BlockedProgramIsReplaced(t *testing.T) {
	cfg := supervisor.Config{Env: []string{programMode + "=" + factECC}, StartTimeout: 2 * time.Second, BackoffMin: 10 * time.Millisecond}
	s, results, end := supervise(t, cfg, gpu.Config{})
	result(t, results, "word of the blocked call", func(r gpu.Result) bool { return strings.Contains(r.Unavailable, "under way") })
	pid := s.Status().PID
	result(t, results, "end of the program", func(r gpu.Result) bool { return strings.Contains(r.Unavailable, "no reading within") })
	result(t, results, "second program", func(r gpu.Result) bool { return s.Status().Starts > 1 })
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("process %d lives on beside its successor", pid)
	}
	end()
}
