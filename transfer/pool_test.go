// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer_test

import (
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/seguekv/segue/transfer"
)

// Holders that restart on new ports are new peers: a process meets more of them than it replicates to at a time. Those to
// which nothing is attached make room, the longest unused first, and nothing else does.
func TestPool_ForgetsIdlePeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		b := n.listen(t, "b", 1, 64<<20, acceptAll)
		c := n.listen(t, "c", 2, 64<<20, acceptAll)
		p := senders(t, n)
		busy, first := to(t, p, "b"), to(t, p, "c")
		r := newRun(t, newHead(baseOf(1, 1), 40, 64, 1000), window).capture(1)
		busy.Attach(r.outbox)
		r.awaitCommitted(1)
		moved := newRun(t, newHead(baseOf(2, 1), 40, 64, 1000), window).capture(1)
		first.Attach(moved.outbox)
		moved.awaitCommitted(1)
		first.Detach(moved.outbox)
		sent := p.SentBytes()
		seen := map[*transfer.Sender]bool{busy: true, first: true}
		last := first
		for i := range 1000 {
			last = to(t, p, strconv.Itoa(i))
			if seen[last] {
				t.Fatalf("peer %d has another one's sender", i)
			}
			seen[last] = true
		}
		if to(t, p, "999") != last {
			t.Fatal("the newest peer was dropped")
		}
		if got := p.SentBytes(); got != sent {
			t.Fatalf("%d bytes were sent, now %d", sent, got)
		}
		r.decode(5)
		r.awaitCommitted(5)
		if to(t, p, "b") != busy {
			t.Fatal("a peer with a session was dropped")
		}
		r.checkTakeover(b.store, 5)
		again := to(t, p, "c")
		if again == first {
			t.Fatal("the peer that was unused for longest is still there")
		}
		again.Attach(moved.outbox)
		moved.decode(3)
		moved.awaitCommitted(3)
		moved.checkTakeover(c.store, 3)
	})
}

// The pool is bounded by the peers with sessions: one more is refused until one of them is free.
func TestPool_IsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := senders(t, newNetwork())
		var list []*transfer.Sender
		var runs []*run
		for len(list) < 1000 {
			name := strconv.Itoa(len(list))
			s, err := p.To(name, "passthrough:///"+name)
			if err != nil {
				break
			}
			r := newRun(t, newHead(baseOf(1, 1), 4, 4, 100), window)
			s.Attach(r.outbox)
			list, runs = append(list, s), append(runs, r)
		}
		if len(list) < 64 || len(list) > 512 {
			t.Fatalf("a pool takes %d peers", len(list))
		}
		list[20].Detach(runs[20].outbox)
		to(t, p, "one more")
		if to(t, p, "19") != list[19] || to(t, p, "21") != list[21] {
			t.Fatal("a peer with a session was dropped")
		}
	})
}
