// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package partstore

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// Grace is how long an ended client may keep its output open.
	Grace = 5 * time.Second
	// tailBytes is how much of a client's output an error shows at least.
	tailBytes = 4 << 10
)

// Client is a call of a registry's client.
type Client struct {
	// Name is what errors call it.
	Name string
	// Command is the program, looked up in PATH, and its arguments.
	Command []string
	// Dir is where it runs, Env is added to the environment.
	Dir string
	Env []string
	// Progress is called once in each Every while it runs, by another goroutine. Nil is never.
	Progress func()
	Every    time.Duration
}

// Run runs the client and everything that it starts, until they end or ctx does. It returns the last lines of what it
// printed, indented; an error has them already. An ended ctx is returned as its cause.
func (c Client) Run(ctx context.Context) (said string, err error) {
	cmd := exec.CommandContext(ctx, c.Command[0], c.Command[1:]...)
	var output tail
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir, &output, &output
	cmd.Env = append(os.Environ(), c.Env...)
	// A group of its own, so that nothing of the client outlives an interrupted run.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = Grace

	err = c.watch(cmd.Run)
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w; its last lines:\n%s", c.Name, err, output.String())
	}
	return output.String(), nil
}

// watch runs fn with reports of its progress.
func (c Client) watch(fn func() error) error {
	if c.Progress == nil || c.Every <= 0 {
		return fn()
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(c.Every)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				c.Progress()
			}
		}
	})
	err := fn()
	close(done)
	wg.Wait()
	return err
}

// tail keeps the end of what a client prints. One goroutine writes at a time (exec joins the two outputs).
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > 2*tailBytes {
		t.b = append(t.b[:0], t.b[len(t.b)-tailBytes:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	s := strings.TrimSpace(string(t.b[max(0, len(t.b)-tailBytes):]))
	if s == "" {
		s = "(nothing)"
	}
	return "    " + strings.ReplaceAll(s, "\n", "\n    ")
}
