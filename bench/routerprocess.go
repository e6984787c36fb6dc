// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seguekv/segue/bench/cluster"
)

const (
	routerStartLimit = 30 * time.Second
	routerStopLimit  = 3 * time.Second
)

// routerProcess is a router as a child process. It dies with this process, whatever becomes of that.
type routerProcess struct {
	pid       int
	log       string
	listen    string
	adminAddr string
	admin     *cluster.Admin
	announced chan map[string]string
	exited    chan struct{}
}

// startRouter starts args and returns when the router listens. Its log goes to a file.
func startRouter(binary, log string, args []string) (*routerProcess, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("make log of the router: %w", err)
	}
	defer file.Close()
	p := &routerProcess{log: log, announced: make(chan map[string]string, 1), exited: make(chan struct{})}
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = &announcements{to: p.announced}, file
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SEGUE_ROUTER_") })
	// A group of its own keeps the terminal's Ctrl-C from it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	// Ends with the child. The parent-death signal belongs to the thread that forked, so that is kept until then.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start router: %w", err)
	}
	p.pid = cmd.Process.Pid
	limit := time.NewTimer(routerStartLimit)
	defer limit.Stop()
	select {
	case a := <-p.announced:
		p.listen, p.adminAddr, p.admin = a["listen"], a["admin"], cluster.NewAdmin(a["admin"])
		return p, nil
	case <-p.exited:
		return nil, p.died()
	case <-limit.C:
		p.stop()
		return nil, fmt.Errorf("the router printed no address within %v; its log is %s", routerStartLimit, log)
	}
}

func (p *routerProcess) died() error {
	tail, _ := os.ReadFile(p.log)
	const longest = 2 << 10
	tail = tail[max(len(tail)-longest, 0):]
	return fmt.Errorf("the router ended: %s (log: %s)", bytes.TrimSpace(tail), p.log)
}

// awaitReady waits until the router has met its upstream.
func (p *routerProcess) awaitReady(ctx context.Context) error {
	for begun := time.Now(); ; {
		err := p.admin.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return p.died()
		default:
		}
		if time.Since(begun) > routerStartLimit {
			return fmt.Errorf("the router isn't ready after %v: %w", routerStartLimit, err)
		}
		if err := rest(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// cpu is the user and system time of the process so far. Its unit is 10 ms.
func (p *routerProcess) cpu() (time.Duration, error) {
	path := filepath.Join("/proc", strconv.Itoa(p.pid), "stat")
	line, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read the router's processor time: %w", err)
	}
	d, err := statTime(line)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return d, nil
}

// memory is the resident memory of the process in MiB, and the most it has been.
func (p *routerProcess) memory() (now, peak float64, err error) {
	path := filepath.Join("/proc", strconv.Itoa(p.pid), "status")
	page, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, fmt.Errorf("read the router's memory: %w", err)
	}
	now, peak, err = statusMemory(page)
	if err != nil {
		return 0, 0, fmt.Errorf("read %s: %w", path, err)
	}
	return now, peak, nil
}

// statusMemory reads VmRSS and VmHWM of a page of /proc/PID/status, in MiB.
func statusMemory(page []byte) (now, peak float64, err error) {
	const perMiB = 1024
	found := 0
	for line := range bytes.Lines(page) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		to := &now
		switch string(key) {
		case "VmRSS":
		case "VmHWM":
			to = &peak
		default:
			continue
		}
		kib, ok := bytes.CutSuffix(bytes.TrimSpace(value), []byte(" kB"))
		n, err := strconv.ParseUint(string(bytes.TrimSpace(kib)), 10, 40)
		if !ok || err != nil {
			return 0, 0, fmt.Errorf("%q is no size in kB", bytes.TrimSpace(line))
		}
		*to = float64(n) / perMiB
		found++
	}
	if found != 2 {
		return 0, 0, errors.New("it lacks VmRSS or VmHWM")
	}
	return now, peak, nil
}

// statTime reads utime and stime from a line of /proc/PID/stat.
func statTime(line []byte) (time.Duration, error) {
	const utime, stime, tick = 11, 12, time.Second / 100 // counted from after the command name, which may have spaces
	fields := bytes.Fields(line[bytes.LastIndexByte(line, ')')+1:])
	if len(fields) <= stime {
		return 0, fmt.Errorf("only %d fields", len(fields))
	}
	u, err := strconv.Atoi(string(fields[utime]))
	s, err2 := strconv.Atoi(string(fields[stime]))
	return time.Duration(u+s) * tick, errors.Join(err, err2)
}

// stop asks the process to end, forces it after a while, and waits for it.
func (p *routerProcess) stop() {
	_ = syscall.Kill(p.pid, syscall.SIGTERM)
	limit := time.NewTimer(routerStopLimit)
	defer limit.Stop()
	select {
	case <-p.exited:
	case <-limit.C:
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
		<-p.exited
	}
}

// announcements hands on the fields of the first line that is written to it, and drops the rest.
type announcements struct {
	to   chan<- map[string]string
	line []byte
	once sync.Once
}

// Write never fails. The line may come in pieces.
func (a *announcements) Write(b []byte) (int, error) {
	const longest = 4 << 10
	if len(a.line) < longest {
		a.line = append(a.line, b...)
	}
	if line, _, ok := bytes.Cut(a.line, []byte("\n")); ok {
		a.once.Do(func() {
			fields := make(map[string]string)
			for f := range strings.FieldsSeq(string(line)) {
				key, value, _ := strings.Cut(f, "=")
				fields[key] = value
			}
			a.to <- fields
		})
	}
	return len(b), nil
}
