// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// errExited is the cause of a link that ends since its process did.
var errExited = errors.New("engine host exited")

// child is one host process. A goroutine reaps it; end waits for both.
type child struct {
	cmd    *exec.Cmd
	conn   net.Conn
	output *tail
	exited context.Context // ends when the process is reaped
}

// startChild starts the command with one end of a socket pair as file descriptor 3. The child stays in the
// agent's process group.
func startChild(cfg ProcessConfig) (*child, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	ours.Close() // FileConn has duplicated it
	if err != nil {
		return nil, fmt.Errorf("engine link socket: %w", err)
	}
	c := &child{conn: conn, output: &tail{out: cfg.Stderr}}
	c.cmd = exec.Command(cfg.Command[0], cfg.Command[1:]...)
	c.cmd.Env = append(os.Environ(), cfg.Env...)
	c.cmd.Stdout, c.cmd.Stderr = c.output, c.output
	c.cmd.ExtraFiles = []*os.File{theirs}
	c.cmd.WaitDelay = endGrace // the host's own children may hold its stderr
	if err := c.cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start engine host: %w", err)
	}
	exited, reaped := context.WithCancel(context.Background())
	c.exited = exited
	go func() { // ends with the process, for which end waits
		_ = c.cmd.Wait() // end reads the process state
		reaped()
	}()
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// onExit calls f when the process is reaped, until stop is called.
func (c *child) onExit(f func()) (stop func() bool) {
	return context.AfterFunc(c.exited, f)
}

// end closes the link, which tells the host to exit, kills it if it doesn't within endGrace, and reaps it. It
// returns err, why the link is gone, with how the process ended and its last line of output.
func (c *child) end(err error) error {
	c.conn.Close()
	t := time.NewTimer(endGrace)
	defer t.Stop()
	select {
	case <-c.exited.Done():
	case <-t.C:
		_ = c.cmd.Process.Kill() // it may have exited just now
		<-c.exited.Done()
	}
	state := c.cmd.ProcessState.String()
	if line := c.output.line(); line != "" {
		return fmt.Errorf("engine host: %s: %s (%w)", state, line, err)
	}
	return fmt.Errorf("engine host: %s (%w)", state, err)
}

// socketPair returns two connected stream sockets which no other child inherits.
func socketPair() (a, b *os.File, err error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, fmt.Errorf("engine link socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "engine link, agent"), os.NewFile(uintptr(fds[1]), "engine link, host"), nil
}
