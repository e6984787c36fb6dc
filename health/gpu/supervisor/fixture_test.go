// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package supervisor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seguekv/segue/health/gpu"
	"github.com/seguekv/segue/health/gpu/supervisor"
)

// programMode is the environment variable that makes the test binary the program that is supervised.
const programMode = "SEGUE_GPU_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if mode := os.Getenv(programMode); mode != "" {
		os.Exit(program(mode))
	}
	os.Exit(m.Run())
}

func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // of the test's own process
	}
	return t.Nano()
}

func put(l gpu.Line) {
	b, err := l.Append(nil)
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(b)
}

func hello() { put(gpu.Line{Hello: &gpu.Hello{Protocol: gpu.Protocol, Boot: "b", IntervalMS: 10}}) }

func sample(change func(*gpu.Sample)) {
	s := gpu.Sample{At: time.Now(), MonotonicNS: monotonic(), Complete: true, Devices: []gpu.Device{{UUID: "GPU-1", Recovery: new(gpu.RecoveryNone)}}}
	if change != nil {
		change(&s)
	}
	put(gpu.Line{Sample: &s})
}

// program is the supervised program's main.
func program(mode string) int {
	switch mode {
	case "good", "brief", "unsupported":
		hello()
		for i := 0; mode != "brief" || i < 3; i++ {
			sample(func(s *gpu.Sample) {
				if mode == "unsupported" {
					s.Devices[0].Unsupported = []string{"ecc: not supported"}
				}
			})
			time.Sleep(10 * time.Millisecond)
		}
		fmt.Fprintln(os.Stderr, "brief life")
		return 3
	case "127":
		fmt.Fprintln(os.Stderr, "symbol lookup error: undefined symbol: nvmlFoo")
		return 127
	case "unavailable":
		put(gpu.Line{Hello: &gpu.Hello{Protocol: gpu.Protocol, Unavailable: "built without cgo"}})
		return 0
	case "hang":
	case "hello, hang":
		hello()
	case "sample, hang":
		hello()
		sample(nil)
	case "stalled":
		hello()
		sample(nil)
		for i := int64(1); ; i++ {
			sample(func(s *gpu.Sample) { s.Devices, s.Complete, s.StalledMS = nil, false, i })
			time.Sleep(10 * time.Millisecond)
		}
	case "stopped":
		hello()
		sample(nil)
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case "garbage":
		fmt.Println("Xid\x00\xff what?")
	case "late garbage":
		hello()
		sample(nil)
		fmt.Println("what?")
	case "other protocol":
		fmt.Println(`{"hello":{"protocol":7}}`)
	case "no hello":
		sample(nil)
	case "two hellos":
		hello()
		hello()
	case "future":
		hello()
		sample(func(s *gpu.Sample) { s.MonotonicNS += int64(time.Hour) })
	case "wall clock":
		hello()
		sample(func(s *gpu.Sample) { s.At = time.Unix(5, 0) })
	case "flood":
		hello()
		for {
			sample(nil)
		}
	case "endless line":
		hello()
		block := bytes.Repeat([]byte("x"), 1<<16)
		for {
			os.Stdout.Write(block)
		}
	case "half line":
		hello()
		sample(nil)
		fmt.Print(`{"sample":{"at":`)
	case "half line, exit":
		hello()
		sample(nil)
		fmt.Print(`{"sample":{"at":`)
		return 0
	case "noise":
		hello()
		go func() {
			block := bytes.Repeat([]byte("loud "), 1<<12)
			for {
				os.Stderr.Write(block)
			}
		}()
		for {
			sample(nil)
			time.Sleep(20 * time.Millisecond)
		}
	case "heir": // leaves a child that holds its outputs
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), programMode+"=hang")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			return 1
		}
		hello()
		sample(func(s *gpu.Sample) { s.Errors = []string{fmt.Sprint("child ", child.Process.Pid)} })
		select {}
	}
	time.Sleep(time.Hour)
	return 0
}

// rig is a running supervisor and what it reported.
type rig struct {
	t    *testing.T
	s    *supervisor.Supervisor
	end  func() time.Duration // ends Run and says how long that took
	logs *logs

	mu      sync.Mutex
	reports []gpu.Report
	more    chan struct{}
}

type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// run supervises the test binary in a mode until the test ends.
func run(t *testing.T, mode string, cfg supervisor.Config) *rig {
	t.Helper()
	r := &rig{t: t, logs: &logs{}, more: make(chan struct{}, 1)}
	if cfg.Command == nil {
		cfg.Command, cfg.Env = []string{os.Args[0]}, []string{programMode + "=" + mode}
	}
	cfg.Log = slog.New(slog.NewTextHandler(r.logs, nil))
	cfg.Report = func(rep gpu.Report) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.reports) < 10_000 {
			r.reports = append(r.reports, rep)
		}
		select {
		case r.more <- struct{}{}:
		default:
		}
	}
	if cfg.BackoffMin == 0 {
		cfg.BackoffMin, cfg.BackoffMax = 10*time.Millisecond, 50*time.Millisecond
	}
	s, err := supervisor.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.s = s
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	r.end = sync.OnceValue(func() time.Duration {
		began := time.Now()
		cancel()
		wg.Wait()
		return time.Since(began)
	})
	t.Cleanup(func() { r.end() })
	return r
}

// await waits for a report that satisfies ok.
func (r *rig) await(what string, ok func(gpu.Report) bool) gpu.Report {
	r.t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	seen := 0
	for {
		r.mu.Lock()
		for ; seen < len(r.reports); seen++ {
			if rep := r.reports[seen]; ok(rep) {
				r.mu.Unlock()
				return rep
			}
		}
		r.mu.Unlock()
		select {
		case <-r.more:
		case <-deadline.C:
			r.t.Fatalf("no report of %s; status %+v, log %s", what, r.s.Status(), r.logs)
		}
	}
}

// unavailable waits for a report that says so, with a text.
func (r *rig) unavailable(text string) {
	r.t.Helper()
	r.await(text, func(rep gpu.Report) bool { return strings.Contains(rep.Unavailable, text) })
}

func (r *rig) sampled() gpu.Report {
	r.t.Helper()
	return r.await("a reading", func(rep gpu.Report) bool { return rep.Sample != nil && rep.Sample.Reading() })
}

// gone waits until a process is no more.
func gone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, os.ErrNotExist) {
			return
		}
		if _, after, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(after, "Z") {
			return
		}
		<-time.After(5 * time.Millisecond)
	}
	t.Errorf("process %d lives on", pid)
}
