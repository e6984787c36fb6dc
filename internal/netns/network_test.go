// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package netns_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/internal/netns"
)

// network is two hosts, or a skip that says what is missing.
func network(t *testing.T) *netns.Network {
	t.Helper()
	n, err := netns.New("a", "b")
	if errors.Is(err, netns.ErrUnavailable) {
		t.Skipf("SKIPPED: %v; run as root on Linux with iproute2", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// echo answers each line on a host with the same line until the test ends.
func echo(t *testing.T, h *netns.Host) string {
	t.Helper()
	var l net.Listener
	var err error
	if inside := h.Do(func() { l, err = net.Listen("tcp", h.Addr()+":0") }); inside != nil || err != nil {
		t.Fatal(inside, err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

// caller sends lines over one connection.
type caller struct {
	conn net.Conn
	in   *bufio.Reader
}

func call(t *testing.T, n *netns.Network) *caller {
	t.Helper()
	addr := echo(t, n.Host("b"))
	c, err := n.Host("a").Dial(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &caller{c, bufio.NewReader(c)}
}

// line sends a line of so many bytes and reports whether it came back in time.
func (c *caller) line(t *testing.T, size int, limit time.Duration) bool {
	t.Helper()
	want := strings.Repeat("x", size-1) + "\n"
	if err := c.conn.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c.conn, want); err != nil {
		return false
	}
	got, err := c.in.ReadString('\n')
	return err == nil && got == want
}

const (
	soon   = 20 * time.Second
	moment = 300 * time.Millisecond
)

func TestNetwork_HostsReachEachOtherAndNothingElse(t *testing.T) {
	n := network(t)
	if c := call(t, n); !c.line(t, 100, soon) {
		t.Error("b doesn't answer a")
	}
	if _, err := new(net.Dialer).DialContext(t.Context(), "tcp", echo(t, n.Host("b"))); err == nil {
		t.Error("a host is reachable from outside")
	}
	if c, err := n.Host("a").Dial(t.Context(), "tcp", "198.51.100.1:9"); err == nil {
		c.Close()
		t.Error("a host reaches what isn't in its network")
	}
}

func TestNetwork_DropIsOneWay(t *testing.T) {
	n := network(t)
	for _, way := range [][2]string{{"a", "b"}, {"b", "a"}} {
		c := call(t, n)
		if err := n.Set(way[0], way[1], netns.Drop()); err != nil {
			t.Fatal(err)
		}
		if c.line(t, 100, moment) {
			t.Errorf("a line and its echo passed although %s to %s drops", way[0], way[1])
		}
		lost, err := n.Dropped(way[0], way[1])
		other, otherErr := n.Dropped(way[1], way[0])
		if err != nil || otherErr != nil || lost == 0 {
			t.Errorf("dropped %d and %d packets (%v, %v)", lost, other, err, otherErr)
		}
		if err := n.Clear(way[0], way[1]); err != nil {
			t.Fatal(err)
		}
		if c := call(t, n); !c.line(t, 100, soon) {
			t.Error("the cable is still cut")
		}
	}
}

func TestNetwork_LossIsRepairedByTCP(t *testing.T) {
	n := network(t)
	if err := n.Set("a", "b", netns.Lose(20)); err != nil {
		t.Fatal(err)
	}
	c := call(t, n)
	for range 20 {
		if !c.line(t, 5000, soon) {
			t.Fatal("a line was lost")
		}
	}
	if lost, err := n.Dropped("a", "b"); err != nil || lost == 0 {
		t.Errorf("dropped %d (%v)", lost, err)
	}
}

func TestNetwork_PacketsObeyTheMTU(t *testing.T) {
	n := network(t)
	if err := n.SetMTU("a", "b", 600); err != nil {
		t.Fatal(err)
	}
	if err := n.Set("a", "b", netns.DropLarger(600)); err != nil {
		t.Fatal(err)
	}
	c := call(t, n)
	if !c.line(t, 50_000, soon) {
		t.Error("50 kB don't pass packets of 600 bytes")
	}
	if lost, err := n.Dropped("a", "b"); err != nil || lost != 0 {
		t.Errorf("%d packets were larger than the MTU (%v)", lost, err)
	}
}

func TestNetwork_DropLargerLetsSmallPacketsPass(t *testing.T) {
	n := network(t)
	c := call(t, n)
	if err := n.Set("a", "b", netns.DropLarger(600)); err != nil {
		t.Fatal(err)
	}
	if !c.line(t, 200, soon) {
		t.Error("a small packet was dropped")
	}
	if c.line(t, 50_000, moment) {
		t.Error("large packets pass")
	}
	if lost, err := n.Dropped("a", "b"); err != nil || lost == 0 {
		t.Errorf("dropped %d (%v)", lost, err)
	}
}

func TestHost_ForwardReachesInside(t *testing.T) {
	n := network(t)
	addr, err := n.Host("a").Forward(echo(t, n.Host("b")))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if c := (&caller{conn, bufio.NewReader(conn)}); !c.line(t, 100, soon) {
		t.Error("no answer through the forward")
	}
}

func TestHost_DoRestoresTheThread(t *testing.T) {
	n := network(t)
	name := func() string {
		s, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	outside, inside := name(), ""
	if err := n.Host("a").Do(func() { inside = name() }); err != nil {
		t.Fatal(err)
	}
	if inside == outside || name() != outside {
		t.Errorf("outside %s, inside %s, after %s", outside, inside, name())
	}
}
