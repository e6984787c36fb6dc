// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package faultnet_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/internal/faultnet"
)

// TestNet_InOrderLossless sends random bytes both ways over links that change all the time, heals, and wants every byte.
func TestNet_InOrderLossless(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			first, second := exchange(t, seed), exchange(t, seed)
			if first != second {
				t.Fatalf("seed %d took %v, then %v", seed, first, second)
			}
		})
	}
}

// exchange returns how long a seed's exchange took.
func exchange(t *testing.T, seed uint64) time.Duration {
	t.Helper()
	n := faultnet.New(seed)
	defer n.Close()
	l, err := n.Listen("b", "b:1")
	if err != nil {
		t.Fatal(err)
	}
	a, b := connect(t, n, l, "a")
	began := time.Now()
	sums := make(chan [2]string, 2)
	for i, c := range []struct{ w, r net.Conn }{{a, b}, {b, a}} {
		sent := make(chan string, 1)
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		go func() { sent <- sendRandom(c.w, rng) }()
		rng2 := rand.New(rand.NewPCG(seed, uint64(i)+10))
		go func() {
			got := receive(c.r, rng2)
			sums <- [2]string{<-sent, got}
		}()
	}
	rng := rand.New(rand.NewPCG(seed, 99))
	for range 30 {
		time.Sleep(time.Duration(rng.Int64N(int64(200 * time.Millisecond))))
		switch from, to := "a", "b"; rng.IntN(8) {
		case 0:
			n.Heal()
		case 1:
			n.Freeze(from)
		case 2:
			n.Thaw(from)
		default:
			if rng.IntN(2) == 0 {
				from, to = to, from
			}
			n.Shape(from, to, faultnet.Link{
				Latency: time.Duration(rng.Int64N(int64(50 * time.Millisecond))), Jitter: time.Duration(rng.Int64N(int64(50 * time.Millisecond))),
				BytesPerSecond: rng.IntN(2) * (1 + rng.IntN(1_000_000)), Cut: rng.IntN(4) == 0,
			})
		}
	}
	n.Heal()
	for range 2 {
		if s := <-sums; s[0] != s[1] {
			t.Fatalf("seed %d: sent %s, got %s", seed, s[0], s[1])
		}
	}
	return time.Since(began)
}

// sendRandom writes pieces of all sizes with pauses, ends the direction, and returns a digest of what it wrote.
func sendRandom(c net.Conn, rng *rand.Rand) string {
	h := sha256.New()
	for range 1 + rng.IntN(40) {
		b := make([]byte, 1+rng.IntN(1<<rng.IntN(18)))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		h.Write(b)
		if _, err := c.Write(b); err != nil {
			return err.Error()
		}
		if rng.IntN(2) == 0 {
			time.Sleep(time.Duration(rng.Int64N(int64(100 * time.Millisecond))))
		}
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err.Error()
	}
	return hex.EncodeToString(h.Sum(nil))
}

// receive reads to the end and returns a digest of what it read.
func receive(c net.Conn, rng *rand.Rand) string {
	h := sha256.New()
	for {
		b := make([]byte, 1+rng.IntN(1<<rng.IntN(18)))
		k, err := c.Read(b)
		h.Write(b[:k])
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(h.Sum(nil))
		}
		if err != nil {
			return err.Error()
		}
		if rng.IntN(4) == 0 {
			time.Sleep(time.Duration(rng.Int64N(int64(10 * time.Millisecond))))
		}
	}
}

// TestNet_ResetLosesOnlyATail breaks connections at random moments: what was read is always the beginning of what was written.
func TestNet_ResetLosesOnlyATail(t *testing.T) {
	lost := 0
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			p := newPair(t)
			p.net.Shape("", "", faultnet.Link{Latency: 20 * time.Millisecond, BytesPerSecond: 200_000})
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() {
				for i := range 10_000 {
					if _, err := p.a.Write([]byte{byte(i), byte(i >> 8)}); err != nil {
						return
					}
				}
				_ = p.a.Close()
			})
			wg.Go(func() {
				time.Sleep(time.Duration(rng.Int64N(int64(150 * time.Millisecond))))
				switch rng.IntN(3) {
				case 0:
					p.net.Reset("a", "b")
				case 1:
					p.net.Crash("a")
				case 2:
					p.net.Shape("a", "b", faultnet.Link{TruncateAfter: 1 + rng.Int64N(1000)})
				}
			})
			got, err := io.ReadAll(p.b)
			for i := 0; i+1 < len(got); i += 2 {
				if int(got[i])|int(got[i+1])<<8 != i/2 {
					t.Fatalf("seed %d: byte %d is wrong", seed, i)
				}
			}
			if err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if len(got) < 20_000 {
				lost++
			} else if err != nil {
				t.Fatalf("seed %d: everything came, then %v", seed, err)
			}
		})
	}
	if lost < 20 {
		t.Fatalf("only %d of 100 runs lost anything", lost)
	}
}

func TestNet_OutsideABubble(t *testing.T) {
	p := newPair(t)
	p.net.Shape("", "", faultnet.Link{Latency: time.Millisecond})
	write(t, p.a, "x")
	read(t, p.b, "x")
	_ = p.a.Close()
	readFails(t, p.b, io.EOF)
}
