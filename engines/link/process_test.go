// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/link"
)

// hostMode is the environment variable that makes the test binary an engine host, or an agent with one.
const hostMode = "SEGUE_LINK_TEST_HOST"

// hostMain is main of the test binary as a child.
func hostMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	f := newFake(4096)
	_, _ = rand.Read(f.d.Boot[:])
	f.before = func(ctx context.Context, index int) error {
		if index == 3 {
			<-ctx.Done()
		}
		return ctx.Err()
	}
	switch os.Getenv(hostMode) {
	case "serve":
	case "stuck":
		f.run = func(_ context.Context, _ engines.Job, s engines.Sink) error {
			_ = s.Prompt([]int32{1})
			<-ctx.Done() // the process's: deaf to the run's
			return nil
		}
	case "same boot":
		f.d.Boot = [16]byte{9}
	case "fail":
		fmt.Fprint(os.Stderr, "loading model\nno such file: model.gguf\n\n")
		return 1
	case "mute":
		fmt.Println("thinking")
		<-ctx.Done()
		return 0
	case "agent":
		return agentMain(ctx)
	}
	if err := link.ServeInherited(ctx, f); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// agentMain runs a host and prints its process id.
func agentMain(ctx context.Context) int {
	p := link.NewProcess(link.ProcessConfig{Command: []string{os.Args[0]}, Env: []string{hostMode + "=serve"}})
	go func() { _ = p.Run(ctx) }() // ends with the process
	for {
		changed := p.Changed()
		if _, err := p.Current(); err == nil {
			fmt.Println(p.PID())
			<-ctx.Done()
			return 0
		}
		<-changed
	}
}

// lines is an output that tells of each write.
type lines struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{}
}

func newLines() *lines { return &lines{more: make(chan struct{}, 1)} }

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
	return l.buf.Write(p)
}

func (l *lines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), s)
}

// start runs a host in the given mode until the test ends, and returns a function that ends it earlier.
func start(t *testing.T, mode string, c link.ProcessConfig) (*link.Process, func()) {
	t.Helper()
	c.Command = []string{os.Args[0]}
	c.Env = []string{hostMode + "=" + mode}
	p := link.NewProcess(c)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	end := func() {
		cancel()
		wg.Wait()
	}
	t.Cleanup(end)
	return p, end
}

// await waits until Current satisfies ok.
func await(t *testing.T, p *link.Process, ok func(*link.Client, error) bool) (*link.Client, error) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	for {
		changed := p.Changed()
		c, err := p.Current()
		if ok(c, err) {
			return c, err
		}
		select {
		case <-changed:
		case <-deadline.C:
			t.Fatalf("waited too long, Current is %v, %v", c, err)
		}
	}
}

func up(c *link.Client, err error) bool { return err == nil }

func awaitGone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if !alive(pid) {
			return
		}
		<-time.After(5 * time.Millisecond)
	}
	t.Errorf("process %d lives on", pid)
}

// alive reports whether a process exists and isn't a zombie.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}

func TestProcess_KilledHostIsReplaced(t *testing.T) {
	t.Parallel()
	p, _ := start(t, "serve", link.ProcessConfig{})
	c, _ := await(t, p, up)
	pid := p.PID()
	if group, err := syscall.Getpgid(pid); err != nil || group != syscall.Getpgrp() {
		t.Errorf("child's process group is %d, %v, want the parent's %d", group, err, syscall.Getpgrp())
	}
	before, err := c.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	reached := make(chan struct{}, 3)
	for range 3 {
		wg.Go(func() {
			got := record{}
			got.before = func() error {
				if len(got.tokens) == 3 {
					reached <- struct{}{}
				}
				return nil
			}
			if err := c.Run(t.Context(), job(true), &got); !errors.Is(err, engines.ErrLost) {
				t.Errorf("got %v, want ErrLost", err)
			}
		})
	}
	for range 3 {
		<-reached
	}
	killed := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	t.Logf("runs lost %v after kill", time.Since(killed))
	down := func(n *link.Client, err error) bool { return n != c }
	if _, err := await(t, p, down); err != nil && !errors.Is(err, engines.ErrNotReady) {
		t.Errorf("Current: %v, want ErrNotReady", err)
	}
	next, _ := await(t, p, up)
	after, err := next.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after.Boot == before.Boot || p.PID() == pid {
		t.Errorf("boot id %x, pid %d both before and after", after.Boot, p.PID())
	}
}

func TestProcess_ErrorHasLastLine(t *testing.T) {
	out := newLines()
	p, end := start(t, "fail", link.ProcessConfig{BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond, Stderr: out})
	_, err := await(t, p, func(_ *link.Client, err error) bool {
		return err != nil && strings.Contains(err.Error(), "exit status 1")
	})
	if !errors.Is(err, engines.ErrNotReady) || !strings.Contains(err.Error(), "no such file: model.gguf") {
		t.Errorf("got %v, want ErrNotReady with the last line of output", err)
	}
	for out.count("loading model") < 3 { // it is tried again and again
		<-out.more
	}
	end()
}

func TestProcess_EndsWithContext(t *testing.T) {
	p, end := start(t, "serve", link.ProcessConfig{})
	c, _ := await(t, p, up)
	pid := p.PID()
	began := time.Now()
	end()
	if d := time.Since(began); d >= 2*time.Second {
		t.Errorf("took %v, the child was killed", d)
	}
	if alive(pid) || p.PID() != 0 {
		t.Errorf("child %d lives on, PID is %d", pid, p.PID())
	}
	if _, err := p.Current(); !errors.Is(err, engines.ErrNotReady) {
		t.Errorf("Current: %v, want ErrNotReady", err)
	}
	if err := c.Run(t.Context(), job(false), &record{}); !errors.Is(err, engines.ErrLost) {
		t.Errorf("Run: %v, want ErrLost", err)
	}
}

func TestProcess_ClosedLinkEndsChild(t *testing.T) {
	p, _ := start(t, "serve", link.ProcessConfig{BackoffMin: time.Millisecond})
	c, _ := await(t, p, up)
	pid := p.PID()
	c.Close()
	awaitGone(t, pid)
	await(t, p, func(n *link.Client, err error) bool { return err == nil && n != c })
}

func TestProcess_StuckHostIsEnded(t *testing.T) {
	t.Parallel()
	p, _ := start(t, "stuck", link.ProcessConfig{})
	c, _ := await(t, p, up)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := record{}
	got.before = func() error {
		c.Close()
		return nil
	}
	if err := c.Run(ctx, job(false), &got); !errors.Is(err, engines.ErrLost) {
		t.Errorf("Run: %v, want ErrLost", err)
	}
	_, err := await(t, p, func(_ *link.Client, err error) bool {
		return err != nil && strings.Contains(err.Error(), "exit status")
	})
	if !strings.Contains(err.Error(), "still computing") {
		t.Errorf("got %v, want the host's own word", err)
	}
}

func TestProcess_StoppedHostIsKilled(t *testing.T) {
	t.Parallel()
	p, end := start(t, "serve", link.ProcessConfig{})
	await(t, p, up)
	pid := p.PID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	end()
	if alive(pid) {
		t.Error("stopped child lives on")
	}
}

func TestProcess_NoHello(t *testing.T) {
	t.Parallel()
	p, _ := start(t, "mute", link.ProcessConfig{StartTimeout: 50 * time.Millisecond})
	_, err := await(t, p, func(_ *link.Client, err error) bool {
		return err != nil && strings.Contains(err.Error(), "signal: killed")
	})
	if !strings.Contains(err.Error(), "no hello within 50ms") {
		t.Errorf("got %v", err)
	}
}

func TestProcess_RefusesSameBoot(t *testing.T) {
	p, _ := start(t, "same boot", link.ProcessConfig{BackoffMin: time.Millisecond})
	c, _ := await(t, p, up)
	c.Close()
	await(t, p, func(_ *link.Client, err error) bool {
		return err != nil && strings.Contains(err.Error(), "boot id of its previous life")
	})
}

func TestProcess_BadCommand(t *testing.T) {
	if err := link.NewProcess(link.ProcessConfig{}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "command is empty") {
		t.Errorf("got %v", err)
	}
	p := link.NewProcess(link.ProcessConfig{Command: []string{t.TempDir() + "/none"}})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	await(t, p, func(_ *link.Client, err error) bool {
		return err != nil && strings.Contains(err.Error(), "no such file")
	})
	cancel()
	wg.Wait()
}

// The host ends when its agent dies, however it dies.
func TestProcess_HostEndsWithAgent(t *testing.T) {
	agent := exec.Command(os.Args[0])
	agent.Env = append(os.Environ(), hostMode+"=agent")
	out, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || !alive(pid) {
		t.Fatalf("host %d: %v", pid, err)
	}
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agent.Wait() // killed
	awaitGone(t, pid)
}

func TestServeInherited_WithoutAgent(t *testing.T) {
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), hostMode+"=serve")
	out, err := child.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "segue agent starts this program") {
		t.Errorf("got %v: %s", err, out)
	}
}

func TestTail_KeepsLastLine(t *testing.T) {
	for _, tt := range []struct {
		writes []string
		want   string
	}{
		{nil, ""},
		{[]string{"a\n"}, "a"},
		{[]string{"a\nb"}, "b"},
		{[]string{"a\n", "\n", "  \n"}, "a"},
		{[]string{"a", "b", "\n", "\n"}, "ab"},
		{[]string{"a\r\n"}, "a"},
		{[]string{"x\xff\n"}, "x\uFFFD"},
		{[]string{"old\n" + strings.Repeat("n", 5000)}, strings.Repeat("n", 512)},
		{[]string{strings.Repeat("n", 600), strings.Repeat("n", 600) + "\n"}, strings.Repeat("n", 512)},
	} {
		tail := link.NewTail(io.Discard)
		for _, w := range tt.writes {
			if n, err := io.WriteString(tail, w); n != len(w) || err != nil {
				t.Errorf("Write: %d, %v", n, err)
			}
		}
		if got := tail.Line(); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.writes, got, tt.want)
		}
	}
}
