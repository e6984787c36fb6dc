// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package netns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrUnavailable means that this machine, or the rights of this process, don't allow such networks.
var ErrUnavailable = errors.New("netns: network namespaces can't be used here")

// Host is one network namespace.
type Host struct {
	name string
	// addr is its IPv4 address, on its loopback interface, reachable from all hosts of the network.
	addr string
	fd   int

	closing context.CancelFunc
	ctx     context.Context
	running sync.WaitGroup
}

// Addr is the host's IPv4 address.
func (h *Host) Addr() string { return h.addr }

const own = "/proc/thread-self/ns/net"

// newHost makes a namespace on a thread that ends with it.
func newHost(name, addr string) (*Host, error) {
	type made struct {
		fd  int
		err error
	}
	done := make(chan made, 1)
	go func() { // ends at once
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- made{err: fmt.Errorf("%w: unshare: %w (needs root)", ErrUnavailable, err)}
			return
		}
		fd, err := unix.Open(own, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		done <- made{fd, err}
	}()
	m := <-done
	if m.err != nil {
		return nil, m.err
	}
	h := &Host{name: name, addr: addr, fd: m.fd}
	h.ctx, h.closing = context.WithCancel(context.Background())
	return h, nil
}

// Do runs f on the calling goroutine with its thread inside the namespace: processes that f starts and sockets that
// it opens belong to the host, whatever happens later. f must not hand work to other goroutines.
func (h *Host) Do(f func()) error {
	runtime.LockOSThread()
	before, err := unix.Open(own, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("netns: open own namespace: %w", err)
	}
	defer unix.Close(before)
	if err := unix.Setns(h.fd, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("netns: enter %s: %w", h.name, err)
	}
	defer func() {
		// A thread that can't leave stays locked and ends with its goroutine.
		if unix.Setns(before, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	f()
	return nil
}

// Dial connects from inside the host. The address must have a numeric host.
func (h *Host) Dial(ctx context.Context, network, addr string) (c net.Conn, err error) {
	if inside := h.Do(func() { c, err = new(net.Dialer).DialContext(ctx, network, addr) }); inside != nil {
		return nil, inside
	}
	return c, err
}

// Forward opens a loopback address outside whose connections are made to addr inside the host.
func (h *Host) Forward(addr string) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("netns: forward to %s: %w", addr, err)
	}
	context.AfterFunc(h.ctx, func() { _ = l.Close() })
	h.running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			h.running.Go(func() { h.relay(in, addr) })
		}
	})
	return l.Addr().String(), nil
}

// relay copies both ways until both ends have closed or the host does.
func (h *Host) relay(in net.Conn, addr string) {
	defer in.Close()
	out, err := h.Dial(h.ctx, "tcp", addr)
	if err != nil {
		return
	}
	defer out.Close()
	defer context.AfterFunc(h.ctx, func() { _ = in.Close(); _ = out.Close() })()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		both.Go(func() {
			_, _ = io.Copy(way[1], way[0])
			if t, ok := way[1].(*net.TCPConn); ok {
				_ = t.CloseWrite()
			}
		})
	}
	both.Wait()
}

func (h *Host) close() error {
	h.closing()
	h.running.Wait()
	return unix.Close(h.fd)
}

func (h *Host) command(args ...string) error {
	_, err := h.output(args...)
	return err
}

// output runs a program inside the host.
func (h *Host) output(args ...string) (out []byte, err error) {
	cmd := exec.Command(args[0], args[1:]...)
	var said strings.Builder
	cmd.Stderr = &said
	if inside := h.Do(func() { out, err = cmd.Output() }); inside != nil {
		return nil, inside
	}
	if err == nil {
		return out, nil
	}
	err = fmt.Errorf("netns: %s on %s: %w: %s", strings.Join(args, " "), h.name, err, strings.TrimSpace(said.String()))
	if errors.Is(err, exec.ErrNotFound) || lacking(said.String()) {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil, err
}

// lacking reports what ip and tc say of a kernel without the part that was asked for.
func lacking(said string) bool {
	for _, s := range []string{"Unknown device type", "kind is unknown", "not supported", "not permitted"} {
		if strings.Contains(said, s) {
			return true
		}
	}
	return false
}
