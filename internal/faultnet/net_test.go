// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package faultnet_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/internal/faultnet"
)

// pair is a connection from host a to host b.
type pair struct {
	net  *faultnet.Net
	a, b net.Conn
	l    net.Listener
}

func newPair(t *testing.T) pair {
	t.Helper()
	n := faultnet.New(1)
	t.Cleanup(n.Close)
	l, err := n.Listen("b", "b:1")
	if err != nil {
		t.Fatal(err)
	}
	a, b := connect(t, n, l, "a")
	return pair{n, a, b, l}
}

func connect(t *testing.T, n *faultnet.Net, l net.Listener, from string) (a, b net.Conn) {
	t.Helper()
	a, err := n.Dial(t.Context(), from, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

func write(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if n, err := c.Write([]byte(s)); n != len(s) || err != nil {
		t.Fatalf("Write(%q) = %d, %v", s, n, err)
	}
}

// read reads exactly as much as want has.
func read(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); string(got) != want {
		t.Fatalf("read %q, %v; want %q", got[:n], err, want)
	}
}

func readFails(t *testing.T, c net.Conn, want error) {
	t.Helper()
	if n, err := c.Read(make([]byte, 10)); n != 0 || !errors.Is(err, want) {
		t.Fatalf("Read = %d, %v; want %v", n, err, want)
	}
}

// quiet fails unless nothing, no end either, comes within a minute.
func quiet(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	readFails(t, c, os.ErrDeadlineExceeded)
	_ = c.SetReadDeadline(time.Time{})
}

func took(t *testing.T, since time.Time, want time.Duration) {
	t.Helper()
	if d := time.Since(since); d != want {
		t.Fatalf("took %v, want %v", d, want)
	}
}

func TestNet_CarriesBothWaysAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		write(t, p.a, "ping")
		read(t, p.b, "ping")
		write(t, p.b, "pong")
		if err := p.b.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		read(t, p.a, "pong")
		readFails(t, p.a, io.EOF)
		write(t, p.a, "after the half close")
		read(t, p.b, "after the half close")
		if _, err := p.b.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("Write after CloseWrite: %v", err)
		}
		if p.a.RemoteAddr().String() != "b:1" || p.b.RemoteAddr().String() != p.a.LocalAddr().String() {
			t.Error("addresses don't match")
		}
		_ = p.a.Close()
		readFails(t, p.b, io.EOF)
		if p.net.Open() != 1 {
			t.Errorf("Open = %d with one end open", p.net.Open())
		}
		_ = p.b.Close()
		if p.net.Open() != 0 {
			t.Errorf("Open = %d", p.net.Open())
		}
		if err := p.a.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("second Close: %v", err)
		}
		readFails(t, p.a, net.ErrClosed)
	})
}

func TestNet_WriterWaitsForReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		sent := bytes.Repeat([]byte("0123456789abcdef"), 40<<10) // 640 KiB
		done := make(chan error, 1)
		go func() {
			_, err := p.a.Write(sent)
			done <- err
		}()
		synctest.Wait()
		if got := p.net.Stats("a", "b").Bytes; got != 256<<10 {
			t.Fatalf("%d bytes were taken without a reader", got)
		}
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(p.b, got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("read %v", err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		_ = p.a.SetWriteDeadline(time.Now().Add(time.Second))
		began := time.Now()
		n, err := p.a.Write(sent)
		if n != 256<<10 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Write = %d, %v", n, err)
		}
		took(t, began, time.Second)
	})
}

func TestNet_Deadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		began := time.Now()
		_ = p.a.SetDeadline(began.Add(3 * time.Second))
		_, err := p.a.Read(make([]byte, 1))
		if e, ok := errors.AsType[net.Error](err); !ok || !e.Timeout() {
			t.Fatalf("Read: %v", err)
		}
		took(t, began, 3*time.Second)
		_ = p.a.SetDeadline(time.Time{})
		// A deadline that is set while a read waits ends it.
		go func() {
			time.Sleep(time.Second)
			_ = p.a.SetReadDeadline(time.Unix(1, 0))
		}()
		readFails(t, p.a, os.ErrDeadlineExceeded)
		took(t, began, 4*time.Second)
		_ = p.a.SetReadDeadline(time.Time{})
		go func() {
			time.Sleep(time.Second)
			_ = p.a.Close()
		}()
		readFails(t, p.a, net.ErrClosed)
		took(t, began, 5*time.Second)
	})
}

func TestNet_Dial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := faultnet.New(1)
		defer n.Close()
		if _, err := n.Dial(t.Context(), "a", "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("nobody listens: %v", err)
		}
		l, err := n.Listen("b", "b:1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Listen("c", "b:1"); !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatalf("address in use: %v", err)
		}
		n.Shape("b", "a", faultnet.Link{Cut: true}) // The answer is lost.
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		if _, err := n.Dial(ctx, "a", "b:1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("cut: %v", err)
		}
		took(t, began, 7*time.Second)
		n.Shape("b", "a", faultnet.Link{Latency: 20 * time.Millisecond})
		n.Shape("a", "b", faultnet.Link{Latency: 10 * time.Millisecond})
		began = time.Now()
		connect(t, n, l, "a")
		took(t, began, 30*time.Millisecond)
		unaccepted, err := n.Dial(t.Context(), "c", "b:1")
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		readFails(t, unaccepted, syscall.ECONNRESET)
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("Accept after Close: %v", err)
		}
		if _, err := n.Dial(t.Context(), "a", "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("after Close: %v", err)
		}
		if s := n.Stats("a", "b"); s.Dials != 3 || s.Refused != 1 || s.Hung != 1 {
			t.Errorf("stats %+v", s)
		}
		if _, err := n.Listen("c", "b:1"); err != nil {
			t.Errorf("address of a closed listener: %v", err)
		}
	})
}

func TestNet_CloseEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.net.Shape("", "", faultnet.Link{Cut: true})
		ends := make(chan error, 4)
		go func() { _, err := p.a.Read(make([]byte, 1)); ends <- err }()
		go func() { _, err := p.b.Write(make([]byte, 1<<20)); ends <- err }()
		go func() { _, err := p.l.Accept(); ends <- err }()
		go func() { _, err := p.net.Dial(context.Background(), "c", "b:1"); ends <- err }()
		synctest.Wait()
		p.net.Close()
		for range cap(ends) {
			if err := <-ends; !errors.Is(err, net.ErrClosed) {
				t.Errorf("ended with %v", err)
			}
		}
		if p.net.Open() != 0 {
			t.Errorf("Open = %d", p.net.Open())
		}
	})
}
