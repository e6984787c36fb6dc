// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package faultnet_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/internal/faultnet"
)

func TestShape_LatencyAndRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.net.Shape("a", "b", faultnet.Link{Latency: 50 * time.Millisecond, BytesPerSecond: 1000})
		began := time.Now()
		write(t, p.a, strings.Repeat("x", 500))
		write(t, p.a, strings.Repeat("y", 500))
		took(t, began, 0)
		read(t, p.b, strings.Repeat("x", 500))
		took(t, began, 550*time.Millisecond)
		read(t, p.b, strings.Repeat("y", 500))
		took(t, began, 1050*time.Millisecond)
		write(t, p.b, "back")
		read(t, p.a, "back")
		took(t, began, 1050*time.Millisecond)
	})
}

func TestShape_NewestCoveringRuleHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.net.Shape("a", "b", faultnet.Link{Latency: time.Second})
		p.net.Shape("", "b", faultnet.Link{Latency: 2 * time.Second})
		p.net.Shape("c", "b", faultnet.Link{Latency: 3 * time.Second})
		began := time.Now()
		write(t, p.a, "x")
		read(t, p.b, "x")
		took(t, began, 2*time.Second)
		p.net.Shape("a", "b", faultnet.Link{})
		write(t, p.a, "y")
		read(t, p.b, "y")
		took(t, began, 2*time.Second)
		// A host's own loop isn't part of "every host".
		p.net.Shape("", "", faultnet.Link{Cut: true})
		self, other := connect(t, p.net, p.l, "b")
		write(t, self, "z")
		read(t, other, "z")
	})
}

func TestCut_HoldsBytesAndEndsUntilHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.net.Shape("", "", faultnet.Link{Latency: time.Second})
		write(t, p.a, "arrived ")
		time.Sleep(time.Second)
		write(t, p.a, "in transit ")
		p.net.Shape("", "", faultnet.Link{Cut: true})
		write(t, p.a, "held")
		_ = p.a.Close()
		read(t, p.b, "arrived ")
		quiet(t, p.b)
		write(t, p.b, "to nobody")
		if s := p.net.Stats("a", "b"); s.Held != int64(len("in transit held")) || s.Read != int64(len("arrived ")) {
			t.Errorf("stats %+v", s)
		}
		p.net.Heal()
		read(t, p.b, "in transit held")
		// What b wrote met a closed end.
		readFails(t, p.b, syscall.ECONNRESET)
	})
}

func TestCut_OneWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.net.Shape("a", "b", faultnet.Link{Cut: true})
		write(t, p.a, "lost")
		write(t, p.b, "heard")
		read(t, p.a, "heard")
		quiet(t, p.b)
		p.net.Shape("a", "b", faultnet.Link{Latency: time.Second})
		began := time.Now()
		read(t, p.b, "lost")
		took(t, began, time.Second)
	})
}

func TestCut_FullBufferBlocksUntilHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.net.Shape("a", "b", faultnet.Link{Cut: true})
		sent := strings.Repeat("0123456789", 50_000)
		go func() { _, _ = p.a.Write([]byte(sent)) }()
		synctest.Wait()
		if got := p.net.Stats("a", "b").Bytes; got != 256<<10 {
			t.Fatalf("%d bytes were taken", got)
		}
		p.net.Heal()
		read(t, p.b, sent)
	})
}

func TestTruncate_ExactToTheByte(t *testing.T) {
	for _, size := range []int64{1, 9, 10, 11, 25} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t)
			p.net.Shape("a", "b", faultnet.Link{Latency: time.Second, TruncateAfter: size})
			write(t, p.b, "answer")
			sent := "0123456789abcdefghijklmnopqrstuvwxyz"
			written, err := 0, error(nil)
			for i := 0; i+10 <= 30 && err == nil; i += 10 {
				var n int
				n, err = p.a.Write([]byte(sent[i : i+10]))
				written += n
			}
			if int64(written) != size || !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%d: wrote %d, %v", size, written, err)
			}
			got, err := io.ReadAll(p.b)
			if string(got) != sent[:size] || !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%d: read %q, %v", size, got, err)
			}
			read(t, p.a, "answer") // It had arrived.
			readFails(t, p.a, syscall.ECONNRESET)
			if s := p.net.Stats("a", "b"); s.Resets != 1 || s.Bytes != size {
				t.Errorf("%d: stats %+v", size, s)
			}
			// Once only.
			c, d := connect(t, p.net, p.l, "a")
			write(t, c, sent)
			read(t, d, sent)
		})
	}
}

func TestReset_EndsBothSides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		other, _ := connect(t, p.net, p.l, "c")
		write(t, p.a, "arrived")
		p.net.Shape("a", "b", faultnet.Link{Latency: time.Second})
		write(t, p.a, "lost")
		p.net.Reset("b", "a")
		read(t, p.b, "arrived")
		readFails(t, p.b, syscall.ECONNRESET)
		readFails(t, p.a, syscall.ECONNRESET)
		if _, err := p.a.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Write: %v", err)
		}
		quiet(t, other)
	})
}

func TestFreeze_NothingMovesNothingCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		write(t, p.b, "before ")
		p.net.Freeze("b")
		_ = p.b.SetDeadline(time.Now().Add(time.Second))
		write(t, p.a, "to the frozen")
		wrote := make(chan error, 1)
		go func() { _, err := p.b.Write([]byte("late")); wrote <- err }()
		heard := make(chan net.Conn, 1)
		go func() { c, _ := p.l.Accept(); heard <- c }()
		c, err := p.net.Dial(t.Context(), "a", "b:1") // Its kernel answers.
		if err != nil {
			t.Fatal(err)
		}
		write(t, c, "early")
		read(t, p.a, "before ")
		quiet(t, p.a)
		_ = p.b.SetDeadline(time.Time{})
		select {
		case <-wrote:
			t.Fatal("a frozen host wrote")
		case <-heard:
			t.Fatal("a frozen host accepted")
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.net.Dial(ctx, "b", "b:1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a frozen host's dial: %v", err)
		}
		if p.net.Stats("b", "a").Frozen == 0 {
			t.Error("the freeze met nothing")
		}
		p.net.Thaw("b")
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		read(t, p.a, "late")
		read(t, p.b, "to the frozen")
		read(t, <-heard, "early")
	})
}

func TestFreeze_HoldsTheEndOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		write(t, p.b, "last words")
		p.net.Freeze("b")
		_ = p.b.Close()
		read(t, p.a, "last words")
		quiet(t, p.a)
		p.net.Heal()
		readFails(t, p.a, io.EOF)
	})
}

func TestCrash_PeersLearn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		c, d := connect(t, p.net, p.l, "a")
		write(t, p.b, "last words")
		write(t, c, "unread")
		p.net.Crash("b")
		read(t, p.a, "last words")
		readFails(t, p.a, io.EOF)
		readFails(t, c, syscall.ECONNRESET)
		readFails(t, d, net.ErrClosed)
		write(t, p.a, "to the dead") // Taken, and answered by a reset.
		if _, err := p.a.Write([]byte("again")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("second Write: %v", err)
		}
		if _, err := p.l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept: %v", err)
		}
		if _, err := p.net.Dial(t.Context(), "a", "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Dial: %v", err)
		}
		if _, err := p.net.Dial(t.Context(), "b", "b:1"); !errors.Is(err, faultnet.ErrDown) {
			t.Errorf("Dial by the dead: %v", err)
		}
		l, err := p.net.Listen("b", "b:1")
		if err != nil {
			t.Fatal(err)
		}
		connect(t, p.net, l, "b")
	})
}

func TestCrash_BehindACutIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.net.Shape("b", "a", faultnet.Link{Cut: true})
		p.net.Crash("b")
		quiet(t, p.a)
		p.net.Heal()
		readFails(t, p.a, io.EOF)
	})
}

func TestPowerOff_SilenceThenReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		idle, _ := connect(t, p.net, p.l, "a")
		write(t, p.b, "arrived")
		p.net.Shape("b", "a", faultnet.Link{Latency: time.Second})
		write(t, p.b, "in transit")
		p.net.PowerOff("b")
		read(t, p.a, "arrived")
		quiet(t, p.a)
		write(t, p.a, "into silence")
		quiet(t, p.a)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.net.Dial(ctx, "a", "b:1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Dial: %v", err)
		}
		began := time.Now()
		if _, err := p.net.Listen("b", "b:1"); err != nil {
			t.Fatal(err)
		}
		readFails(t, p.a, syscall.ECONNRESET)
		took(t, began, time.Second)
		quiet(t, idle)
		write(t, idle, "x")
		readFails(t, idle, syscall.ECONNRESET)
	})
}

func TestPowerOff_BehindAListenerThatNobodyServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		c, err := p.net.Dial(t.Context(), "a", "b:1")
		if err != nil {
			t.Fatal(err)
		}
		p.net.PowerOff("b")
		quiet(t, c)
		p.net.Start("b")
		write(t, c, "x")
		readFails(t, c, syscall.ECONNRESET)
	})
}

func TestCrash_EndsAFrozenHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.net.Freeze("b")
		ended := make(chan error, 1)
		go func() { _, err := p.b.Write([]byte("x")); ended <- err }()
		synctest.Wait()
		p.net.Crash("b")
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("ended with %v", err)
		}
		readFails(t, p.a, io.EOF)
		// A client's host is up again without listening.
		p.net.Crash("a")
		if _, err := p.net.Dial(t.Context(), "a", "c:1"); !errors.Is(err, faultnet.ErrDown) {
			t.Errorf("Dial: %v", err)
		}
		p.net.Start("a")
		if _, err := p.net.Dial(t.Context(), "a", "c:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Dial: %v", err)
		}
	})
}
