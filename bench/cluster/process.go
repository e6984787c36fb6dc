// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// stopGrace is how long a process may take to end after SIGTERM before its group gets SIGKILL.
	stopGrace = 3 * time.Second
	// groupGrace is how long orphaned members of a dead leader's group may take to end by themselves.
	groupGrace = 5 * time.Second
)

// announcement is what a process prints when its listeners are open.
type announcement struct {
	listen, admin string
}

// parseAnnouncement reads a start line such as "segue agent: id=a listen=127.0.0.1:4000 admin=127.0.0.1:4001".
func parseAnnouncement(line string) (announcement, bool) {
	head, rest, ok := strings.Cut(line, ":")
	if !ok || !strings.HasPrefix(head, "segue ") {
		return announcement{}, false
	}
	var a announcement
	for field := range strings.FieldsSeq(rest) {
		switch key, value, _ := strings.Cut(field, "="); key {
		case "listen":
			a.listen = value
		case "admin":
			a.admin = value
		}
	}
	return a, a.listen != "" && a.admin != ""
}

// process is one child with a process group of its own. Its standard error and standard output go to a log file.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	pid  int

	announced chan announcement // capacity 1: written once, by the reader
	exited    chan struct{}     // closed when the leader was waited for

	readers sync.WaitGroup
	stdout  *os.File
}

// spawn starts args as the leader of a new process group; log is appended to.
func spawn(name, log string, args []string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	defer file.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe for %s: %w", name, err)
	}
	defer w.Close()

	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = w, file
	cmd.Env = slices.DeleteFunc(os.Environ(), configures)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{
		name: name, log: log, cmd: cmd, stdout: r,
		announced: make(chan announcement, 1),
		exited:    make(chan struct{}),
	}
	started := make(chan error)
	// Owned by the process; ends when the child has been waited for. The parent-death signal belongs to the thread
	// that forked, so that thread is kept until the child is gone.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		r.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.pid = cmd.Process.Pid
	p.readers.Go(p.readStdout)
	return p, nil
}

// configures reports an environment variable that would change a child's configuration behind the cluster's back.
func configures(variable string) bool {
	return strings.HasPrefix(variable, "SEGUE_AGENT_") || strings.HasPrefix(variable, "SEGUE_ROUTER_")
}

// readStdout hands out the start line and appends everything to the log.
func (p *process) readStdout() {
	log, err := os.OpenFile(p.log, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		log = nil
	} else {
		defer log.Close()
	}
	found := false
	in := bufio.NewReaderSize(p.stdout, 4096)
	for {
		line, err := in.ReadString('\n')
		if log != nil {
			_, _ = io.WriteString(log, line)
		}
		if a, ok := parseAnnouncement(line); ok && !found {
			found = true
			p.announced <- a
		}
		if err != nil {
			return
		}
	}
}

// awaitAnnouncement waits for the start line, and fails at once when the process ends before it.
func (p *process) awaitAnnouncement(ctx context.Context) (announcement, error) {
	select {
	case a := <-p.announced:
		return a, nil
	case <-p.exited:
		return announcement{}, p.exitError()
	case <-ctx.Done():
		return announcement{}, fmt.Errorf("wait for the start line of %s: %w", p.name, context.Cause(ctx))
	}
}

// running reports whether the leader has not been waited for.
func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// exitError describes a process that ended although nobody asked it to. Call it only after exited is closed.
func (p *process) exitError() error {
	return &ExitError{Process: p.name, State: p.cmd.ProcessState.String(), LastLog: lastLine(p.log), Log: p.log}
}

// killGroup sends a signal to every member of the group. A group that is gone already is a success.
func (p *process) killGroup(sig syscall.Signal) error {
	return ignoreGone(syscall.Kill(-p.pid, sig))
}

// killLeader sends SIGKILL to the leader alone.
func (p *process) killLeader() error {
	return ignoreGone(syscall.Kill(p.pid, syscall.SIGKILL))
}

func ignoreGone(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// release returns when the leader and every other member of its group are gone; what does not end by itself within
// groupGrace after the leader is killed.
func (p *process) release() {
	<-p.exited
	// The second bound only matters where nobody reaps orphans: their zombies would keep the group for ever.
	for begun := time.Now(); !p.reapGroup() && time.Since(begun) < 2*groupGrace; {
		if time.Since(begun) > groupGrace {
			_ = p.killGroup(syscall.SIGKILL)
		}
		pause(5 * time.Millisecond)
	}
	p.stdout.Close()
	p.readers.Wait()
}

// reapGroup waits for orphans of the group that became children of this process, and reports whether it is empty.
func (p *process) reapGroup() bool {
	for {
		pid, err := unix.Wait4(-p.pid, nil, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			break
		}
	}
	return errors.Is(syscall.Kill(-p.pid, 0), syscall.ESRCH)
}

// stop asks the process to end, forces it after stopGrace, and releases it.
func (p *process) stop() {
	if p.running() {
		_ = ignoreGone(syscall.Kill(p.pid, syscall.SIGTERM))
		timer := time.NewTimer(stopGrace)
		select {
		case <-p.exited:
		case <-timer.C:
			_ = p.killGroup(syscall.SIGKILL)
		}
		timer.Stop()
	}
	p.release()
}

// pause blocks for d; it spaces out polls of the operating system, which has no event to wait for here.
func pause(d time.Duration) {
	<-time.NewTimer(d).C
}
