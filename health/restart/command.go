// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package restart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// termTime is how long a command that took too long has between SIGTERM and SIGKILL.
	termTime = 5 * time.Second
	// pipeTime is how long output is waited for that processes outside the command's group hold open.
	pipeTime = time.Second
)

// ErrTimeout is wrapped by the Result's error of a command that took too long.
var ErrTimeout = errors.New("it took too long and was ended")

// Call is what a command is run for. It gets it as SEGUE_TARGET, SEGUE_VERDICT and SEGUE_REASONS in its environment.
type Call struct {
	Target, Verdict, Reasons string
}

// Result is how a command ended.
type Result struct {
	// Err is nil when it ended with exit code 0.
	Err  error
	Took time.Duration
	// Output is the last of what it wrote, printable, in one line.
	Output string
}

// Shell returns a function that runs a command line with /bin/sh in a process group of its own, and kills what is left of the group when the
// command has ended: a server that it starts has to leave the group, as setsid, a service manager or a container runtime
// have it do. When ctx ends, the group gets SIGTERM, and SIGKILL 5 s later.
func Shell(command string) func(ctx context.Context, call Call) Result {
	return func(ctx context.Context, call Call) Result { return shell(ctx, command, call) }
}

func shell(ctx context.Context, command string, call Call) Result {
	began := time.Now()
	var out tail
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.Env = append(os.Environ(), "SEGUE_TARGET="+call.Target, "SEGUE_VERDICT="+call.Verdict, "SEGUE_REASONS="+call.Reasons)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = pipeTime
	if err := cmd.Start(); err != nil {
		return Result{Err: fmt.Errorf("it can't be started: %w", err), Took: time.Since(began)}
	}
	pid := cmd.Process.Pid
	exited := make(chan struct{})
	go func() { // ends with the command
		defer close(exited)
		// The process stays a zombie until Wait below: its id, and its group's, belong to nobody else meanwhile.
		for {
			if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	late := false
	select {
	case <-exited:
	case <-ctx.Done():
		late = true
		_ = unix.Kill(-pid, unix.SIGTERM)
		timer := time.NewTimer(termTime)
		select {
		case <-exited:
		case <-timer.C:
		}
		timer.Stop()
	}
	_ = unix.Kill(-pid, unix.SIGKILL)
	err := cmd.Wait()
	switch {
	case late:
		err = fmt.Errorf("%w after %v", ErrTimeout, time.Since(began).Round(time.Millisecond))
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil
	}
	return Result{Err: err, Took: time.Since(began), Output: out.String()}
}
