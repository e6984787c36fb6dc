// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/watch"
)

// Process is a process of this machine, whoever's child it is. Its methods may be called concurrently.
type Process struct {
	pid         int
	incarnation string
	fd          *os.File
}

// Open takes hold of a running process. Linux 5.3 or later; ErrEnded if there is none.
func Open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	switch {
	case errors.Is(err, unix.ESRCH):
		return nil, fmt.Errorf("%w: pid %d", ErrEnded, pid)
	case err != nil:
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	p := &Process{pid: pid, fd: os.NewFile(uintptr(fd), fmt.Sprintf("pidfd of %d", pid))}
	start, err := startTime(pid)
	// The number may have been used again before the pidfd was there, not after: what is read now is of its process.
	if err == nil && !p.Alive() {
		err = fmt.Errorf("%w: pid %d", ErrEnded, pid)
	}
	if err != nil {
		p.fd.Close()
		return nil, err
	}
	p.incarnation = fmt.Sprintf("%s/%d/%s", bootID(), pid, start)
	return p, nil
}

// ErrEnded means that no such process runs any more.
var ErrEnded = errors.New("process: it has ended")

// PID is its number.
func (p *Process) PID() int { return p.pid }

// Incarnation names its life: another process has another one, also with the same number or after a reboot.
func (p *Process) Incarnation() string { return p.incarnation }

// Close lets go of it.
func (p *Process) Close() error { return p.fd.Close() }

// Alive reports whether it runs; a zombie doesn't.
func (p *Process) Alive() bool {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	_ = raw.Control(func(fd uintptr) { alive = !ended(fd) })
	return alive
}

// ended is a pidfd's readiness for reading.
func ended(fd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// Wait returns nil when the process has ended, and ctx's cause when that ends first. Then the process is closed.
func (p *Process) Wait(ctx context.Context) error {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { p.fd.Close() })()
	err = raw.Read(ended)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Source adds what is known of the process to what another source reads.
func (p *Process) Source(of watch.Source) watch.Source { return source{p, of} }

type source struct {
	process *Process
	of      watch.Source
}

// Read implements watch.Source. Of a process that has ended nothing more is read.
func (s source) Read(ctx context.Context) health.Reading {
	if !s.process.Alive() {
		return health.Reading{Outcome: health.Gone, Detail: fmt.Sprintf("process %d has ended", s.process.pid)}
	}
	r := s.of.Read(ctx)
	if !s.process.Alive() { // it ended meanwhile: what was read is over
		return health.Reading{Outcome: health.Gone, Detail: fmt.Sprintf("process %d has ended", s.process.pid)}
	}
	r.Alive, r.Incarnation = true, s.process.incarnation
	return r
}

// startTime is field 22 of /proc/PID/stat, in clock ticks after the boot.
func startTime(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", fmt.Errorf("watch process %d: %w", pid, err)
	}
	// The name in field 2 may have spaces and brackets in it.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return "", fmt.Errorf("watch process %d: its stat has %d fields", pid, len(fields)+2)
	}
	return string(fields[19]), nil
}

// bootID names the life of the machine; empty where that can't be read.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
