// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seguekv/segue/health/gpu"
)

// process is one life of the program. A goroutine reads its lines, another reaps it.
type process struct {
	cmd    *exec.Cmd
	pid    int
	out    *os.File
	lines  chan line // closed at the end of its output
	stop   chan struct{}
	exited chan struct{} // closed when it is reaped
	stderr *tail
}

// line is one of its lines, on this process's clock.
type line struct {
	gpu.Line
	err error
}

// start starts the program in a process group of its own, so that what it started ends with it, and a terminal's
// interrupt doesn't reach it.
func start(cfg Config) (*process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("gpu supervisor: %w", err)
	}
	p := &process{out: r, lines: make(chan line), stop: make(chan struct{}), exited: make(chan struct{}), stderr: &tail{}}
	p.cmd = exec.Command(cfg.Command[0], cfg.Command[1:]...)
	p.cmd.Env = append(os.Environ(), cfg.Env...)
	p.cmd.Stdout, p.cmd.Stderr = w, p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = drainGrace // its own children may hold its stderr
	err = p.cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("the program that reads the driver doesn't start: %w", err)
	}
	p.pid = p.cmd.Process.Pid
	go func() { // ends with the process, which end kills
		_ = p.cmd.Wait() // state tells
		close(p.exited)
	}()
	go p.read() // ends with the output, which end closes
	return p, nil
}

// read parses lines and hands them over one by one, until the output ends or a line is bad.
func (p *process) read() {
	defer close(p.lines)
	scanner := bufio.NewScanner(p.out)
	scanner.Buffer(make([]byte, 0, 4096), gpu.MaxLine)
	give := func(l line) bool {
		select {
		case p.lines <- l:
			return l.err == nil
		case <-p.stop:
			return false
		}
	}
	for scanner.Scan() {
		if !give(parse(scanner.Bytes())) {
			return
		}
	}
	if err := scanner.Err(); errors.Is(err, bufio.ErrTooLong) {
		give(line{err: fmt.Errorf("gpu: %w: longer than %d bytes", gpu.ErrLine, gpu.MaxLine)})
	}
}

// parse reads one line and puts its times on this process's clock.
func parse(text []byte) line {
	l, err := gpu.Parse(text)
	if err == nil && l.Sample != nil {
		var mono unix.Timespec
		if err = unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono); err == nil {
			err = l.Sample.Rebase(time.Now(), mono.Nano())
		}
	}
	return line{l, err}
}

// end kills the process with its group and reports whether it is gone.
func (p *process) end() bool {
	select {
	case <-p.exited:
	default:
		_ = syscall.Kill(-p.pid, syscall.SIGKILL) // it may be gone just now
		_ = p.cmd.Process.Kill()                  // it may have left its group
	}
	close(p.stop)
	p.out.Close() // unblocks the reader
	return p.gone()
}

// gone waits for the process for endGrace, and reports whether it is reaped.
func (p *process) gone() bool {
	t := time.NewTimer(endGrace)
	defer t.Stop()
	select {
	case <-p.exited:
		return true
	case <-t.C:
		return false
	}
}

// state is how it ended.
func (p *process) state() string {
	select {
	case <-p.exited:
		return p.cmd.ProcessState.String()
	default:
		return "its output is closed"
	}
}

// tail keeps the last line that was written to it.
type tail struct {
	mu         sync.Mutex
	last, open []byte
}

var _ io.Writer = (*tail)(nil)

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range b {
		switch {
		case c == '\n':
			if len(t.open) > 0 {
				t.last, t.open = t.open, nil
			}
		case c < ' ' || c > '~':
		case len(t.open) < gpu.MaxText/2:
			t.open = append(t.open, c)
		}
	}
	return len(b), nil
}

func (t *tail) line() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.open) > 0 {
		return string(t.open)
	}
	return string(t.last)
}
