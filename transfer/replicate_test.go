// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer_test

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/compat"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

const window = 8 << 20

func TestReplication_OneSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		b := n.listen(t, "b", 1, 64<<20, acceptAll)
		s := to(t, senders(t, n), "b")
		r := newRun(t, newHead(baseOf(1, 1), 40, 32, 1000), window)
		s.Attach(r.outbox)
		for at := 0; at < 40; at += 16 { // chunk by chunk while prefill runs
			count := min(16, 40-at)
			r.prefill(at, count)
			st := r.await("rows", func(s transfer.Status) bool { return s.AckRows == at+count })
			if st.Committed != 0 || st.Replicating || !st.Connected || !st.Attached {
				t.Fatalf("base in progress: %+v", st)
			}
		}
		for i := 1; i <= 32; i++ {
			r.decode(i)
			st := r.awaitCommitted(i)
			if st.Captured != i || st.Sent != i || !st.Replicating || !st.OldestUncommitted.IsZero() {
				t.Fatalf("boundary %d: %+v", i, st)
			}
		}
		r.checkTakeover(b.store, 32)
		if used, _ := b.budget.Used(); used != 0 {
			t.Fatalf("%d bytes stay in use", used)
		}
	})
}

func TestReplication_ManySessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		b := n.listen(t, "b", 1, 64<<20, acceptAll)
		s := to(t, senders(t, n), "b")
		var all []*run
		for i := range byte(20) {
			r := newRun(t, newHead(baseOf(i, 1), 10+int(i), 64, 600+2*int(i)), 5000)
			s.Attach(r.outbox)
			all = append(all, r.capture(1))
		}
		for n := 2; n <= 64; n++ {
			for _, r := range all {
				r.decode(n)
			}
			if n%16 == 0 {
				for _, r := range all {
					r.awaitCommitted(n)
				}
			}
		}
		for _, r := range all {
			r.checkTakeover(b.store, 64)
		}
		if n.dialed() != 1 {
			t.Fatalf("%d connections, want 1", n.dialed())
		}
	})
}

// slow delays what it writes to rate bytes a second.
type slow struct {
	net.Conn
	rate int
}

func (c slow) Write(b []byte) (int, error) {
	time.Sleep(time.Duration(len(b)) * time.Second / time.Duration(c.rate))
	return c.Conn.Write(b)
}

// A delta waits behind a few frames of a base, not behind the base.
func TestReplication_DeltasOvertakeBases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.setWrap(func(c net.Conn) net.Conn { return slow{c, 10 << 20} })
		n.listen(t, "b", 1, 1<<30, acceptAll)
		s := to(t, senders(t, n), "b")
		small := newRun(t, newHead(baseOf(1, 1), 4, 200, 1000), window).capture(1)
		s.Attach(small.outbox)
		small.awaitCommitted(1)
		var bases []*run
		began := time.Now()
		for i := range byte(8) { // 64 MiB: 6.4 s
			r := newRun(t, newHead(baseOf(2+i, 1), 32, 4, 256<<10), window).capture(1)
			bases = append(bases, r)
			s.Attach(r.outbox)
		}
		var worst time.Duration
		for i := 2; time.Since(began) < 5*time.Second; i++ {
			time.Sleep(20 * time.Millisecond)
			at := time.Now()
			small.decode(i)
			small.awaitCommitted(i)
			worst = max(worst, time.Since(at))
		}
		for _, r := range bases {
			r.awaitCommitted(1)
		}
		if took := time.Since(began); took < 6*time.Second {
			t.Fatalf("the bases took %v: the link isn't slow", took)
		}
		if worst > 600*time.Millisecond {
			t.Fatalf("a delta waited %v behind bases of 6.4 s", worst)
		}
		t.Logf("worst delta behind 64 MiB of bases at 10 MiB/s: %v", worst)
	})
}

// A broken stream resumes where the holder is: acknowledged rows aren't sent again.
func TestReplication_ResumesWithoutResending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		b := n.listen(t, "b", 1, 64<<20, acceptAll)
		p := senders(t, n)
		s := to(t, p, "b")
		r := newRun(t, newHead(baseOf(1, 1), 40, 64, 1000), window)
		s.Attach(r.outbox)
		r.prefill(0, 20)
		r.await("rows", func(s transfer.Status) bool { return s.AckRows == 20 })
		cut := func() {
			n.cut("b")
			r.await("break", func(s transfer.Status) bool { return !s.Connected })
		}
		cut() // in the base
		r.prefill(20, 20)
		r.decode(1)
		r.awaitCommitted(1)
		for i := 2; i <= 64; i++ {
			if i%10 == 0 {
				cut()
			}
			r.decode(i)
			r.awaitCommitted(i)
		}
		if n.dialed() != 8 {
			t.Fatalf("%d connections, want 8", n.dialed())
		}
		// One base record, 103 rows of 1000 bytes in 65 records or more, 64 boundaries: nothing twice.
		limit := int64(103*1000 + 80*72 + 64*92 + 500)
		if got := s.SentBytes(); got < 103*1000 || got > limit || p.SentBytes() != got {
			t.Fatalf("sent %d bytes, want at most %d", got, limit)
		}
		r.checkTakeover(b.store, 64)
	})
}

// Cut in the middle of a frame: at most what was in flight goes twice.
func TestReplication_ResumesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.setWrap(func(c net.Conn) net.Conn { return slow{c, 1 << 20} })
		b := n.listen(t, "b", 1, 64<<20, acceptAll)
		s := to(t, senders(t, n), "b")
		const row, window = 10 << 10, 1 << 20
		r := newRun(t, newHead(baseOf(1, 1), 800, 8, row), window).capture(1)
		s.Attach(r.outbox) // 8 MiB: 8 s
		for range 4 {
			time.Sleep(1900 * time.Millisecond)
			n.cut("b")
		}
		r.awaitCommitted(1)
		if got, limit := s.SentBytes(), int64(800*row+5*(window+(1<<20))); got > limit {
			t.Fatalf("sent %d bytes, limit %d", got, limit)
		}
		r.checkTakeover(b.store, 1)
	})
}

// A new boot of the holder inherits no ack.
func TestReplication_NewBootStartsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		first := n.listen(t, "b", 1, 64<<20, acceptAll)
		s := to(t, senders(t, n), "b")
		r := newRun(t, newHead(baseOf(1, 1), 40, 64, 1000), window)
		s.Attach(r.outbox)
		r.capture(5)
		r.awaitCommitted(5)
		before := s.SentBytes()
		first.end()
		st := r.await("break", func(s transfer.Status) bool { return !s.Connected })
		if st.Committed != 5 {
			t.Fatalf("a broken stream lost acks: %+v", st)
		}
		slowly := make(chan transfer.Status, 100)
		go func() { // ends when the second boot has committed
			for {
				changed := r.outbox.Changed()
				st := r.outbox.Status()
				slowly <- st
				if st.Connected && st.Committed == 5 {
					close(slowly)
					return
				}
				<-changed
			}
		}()
		second := n.listen(t, "b", 2, 64<<20, acceptAll)
		fell := false
		for st := range slowly {
			if st.Connected {
				fell = fell || st.Committed == 0
				if st.Committed > 0 && !fell {
					t.Fatalf("the new boot inherits acks: %+v", st)
				}
			}
		}
		if !fell {
			t.Fatal("committed never fell to 0")
		}
		if again := s.SentBytes() - before; again < 44*1000 {
			t.Fatalf("sent %d bytes to the new boot, want everything", again)
		}
		r.checkTakeover(second.store, 5)
	})
}

// A holder whose rows of this base are others gets a new base.
func TestReplication_OtherRowsMakeANewBase(t *testing.T) {
	for _, x := range []struct{ theirs, ours int }{{2, 0}, {2, 3}, {0, 0}, {0, 3}} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			b := n.listen(t, "b", 1, 64<<20, acceptAll)
			p := senders(t, n)
			other := newRun(t, newHead(baseOf(1, 1), 40, 64, 1000), window)
			other.seed = 0xff
			fill(t, b.store, other.capture(x.theirs))
			r := newRun(t, newHead(baseOf(1, 1), 40, 64, 1000), window).capture(x.ours)
			to(t, p, "b").Attach(r.outbox)
			r.await("rows or a refusal", func(s transfer.Status) bool { return s.AckRows >= 40 || s.Rejected })
			if got := r.outbox.Base(); got.Base != 1 || got.Epoch != 1 {
				t.Fatalf("base %+v, want number 1", got)
			}
			r.decode(5)
			r.awaitCommitted(5)
			r.checkTakeover(b.store, 5)
		})
	}
}

// What the holder has of another epoch, or of an earlier base, doesn't disturb a base that has no boundary yet.
func TestReplication_OldOffersGiveWay(t *testing.T) {
	for name, x := range map[string]struct{ held, ours snapshot.BaseID }{
		"lower epoch": {baseOf(1, 1), baseOf(1, 2)},
		"lower base":  {baseOf(1, 1), snapshot.BaseID{Session: session(1), Epoch: 1, Base: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				b := n.listen(t, "b", 1, 64<<20, acceptAll)
				p := senders(t, n)
				fill(t, b.store, newRun(t, newHead(x.held, 40, 64, 1000), window).capture(2))
				r := newRun(t, newHead(x.ours, 40, 64, 1000), window)
				r.prefill(0, 16)
				to(t, p, "b").Attach(r.outbox)
				st := r.await("rows or a refusal", func(s transfer.Status) bool { return s.AckRows == 16 || s.Rejected })
				if st.Rejected || r.outbox.Base() != x.ours {
					t.Fatalf("%+v, base %+v", st, r.outbox.Base())
				}
				r.prefill(16, 24)
				r.decode(3)
				r.awaitCommitted(3)
				r.checkTakeover(b.store, 3)
			})
		})
	}
}

// A restored base begins above its restored ids.
func TestReplication_RestoredBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		b := n.listen(t, "b", 1, 64<<20, acceptAll)
		c := n.listen(t, "c", 2, 64<<20, acceptAll)
		p := senders(t, n)
		r := newRun(t, newHead(baseOf(1, 1), 40, 64, 1000), window).capture(7)
		to(t, p, "b").Attach(r.outbox)
		r.awaitCommitted(7)
		got, err := b.store.Takeover(session(1), 2, r.need(6))
		if err != nil {
			t.Fatal(err)
		}
		chain, err := got.Chain.Rebase(baseOf(1, 2))
		if err != nil {
			t.Fatal(err)
		}
		next := &run{t: t, head: *chain.Head(), row: r.row, n: 7, chain: chain, outbox: transfer.NewOutbox(chain, window)}
		to(t, p, "c").Attach(next.outbox)
		next.awaitCommitted(7)
		next.decode(20)
		next.awaitCommitted(20)
		if o, _ := held(c.store, session(1)); o.First != 7 {
			t.Fatalf("held %+v", o)
		}
		next.checkTakeover(c.store, 20)
	})
}

// A refused base tells why, takes nothing more, and leaves other sessions alone.
func TestReplication_Rejections(t *testing.T) {
	mismatch := &compat.MismatchError{Mismatches: []compat.Mismatch{{Field: "threads", Have: "1", Want: "2", Reason: "numerics"}}}
	for name, x := range map[string]struct {
		limit  int64
		accept func(*snapshot.Head) error
		reason seguev1.Reason
	}{
		"store full": {40_000, acceptAll, seguev1.Reason_REASON_STORE_FULL},
		"fingerprint": {1 << 20, func(h *snapshot.Head) error {
			if h.Session == session(2) {
				return mismatch
			}
			return nil
		}, seguev1.Reason_REASON_FINGERPRINT_MISMATCH},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				b := n.listen(t, "b", 1, x.limit, x.accept)
				s := to(t, senders(t, n), "b")
				good := newRun(t, newHead(baseOf(1, 1), 8, 24, 1000), window).capture(1)
				s.Attach(good.outbox)
				good.awaitCommitted(1)
				bad := newRun(t, newHead(baseOf(2, 1), 8, 24, 1000), window).capture(1)
				s.Attach(bad.outbox)
				st := bad.await("rejection", func(s transfer.Status) bool { return s.Rejected })
				if st.Reason != x.reason || st.Detail == "" || st.Committed != 0 || st.Connected {
					t.Fatalf("%+v", st)
				}
				synctest.Wait()
				before := s.SentBytes()
				bad.decode(20)
				synctest.Wait()
				if s.SentBytes() != before {
					t.Fatal("a rejected session goes on sending")
				}
				good.decode(10)
				good.awaitCommitted(10)
				good.checkTakeover(b.store, 10)
				if n.dialed() != 1 {
					t.Fatal("a rejection broke the stream")
				}
			})
		})
	}
}

// G4: a fenced epoch gets no ack and learns that it is fenced.
func TestReplication_FencedEpoch(t *testing.T) {
	for name, raise := range map[string]func(s *snapshot.Store, r *run) error{
		"takeover": func(s *snapshot.Store, r *run) error {
			_, err := s.Takeover(r.head.Session, 2, r.need(2))
			return err
		},
		"refused takeover": func(s *snapshot.Store, r *run) error {
			if _, err := s.Takeover(r.head.Session, 2, r.need(20)); err == nil {
				return errors.New("covered")
			}
			return nil
		},
		"attempt": func(s *snapshot.Store, r *run) error { return s.Admit(r.head.Session, 2) },
		"cancel": func(s *snapshot.Store, r *run) error {
			s.Cancel(r.head.Session, 1)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				b := n.listen(t, "b", 1, 1<<20, acceptAll)
				s := to(t, senders(t, n), "b")
				r := newRun(t, newHead(baseOf(1, 1), 8, 24, 1000), window).capture(3)
				s.Attach(r.outbox)
				r.awaitCommitted(3)
				if err := raise(b.store, r); err != nil {
					t.Fatal(err)
				}
				r.decode(4)
				st := r.await("fence", func(s transfer.Status) bool { return s.Rejected || s.Committed > 3 })
				if st.Committed > 3 || st.Reason != seguev1.Reason_REASON_FENCED {
					t.Fatalf("%+v", st)
				}
			})
		})
	}
}

// A session moves from one holder to another and back; each holder's acks count for itself only.
func TestReplication_DetachAndAttach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		b := n.listen(t, "b", 1, 1<<20, acceptAll)
		c := n.listen(t, "c", 2, 1<<20, acceptAll)
		p := senders(t, n)
		toB, toC := to(t, p, "b"), to(t, p, "c")
		r := newRun(t, newHead(baseOf(1, 1), 8, 100, 1000), window).capture(3)
		toB.Attach(r.outbox)
		r.awaitCommitted(3)
		toB.Detach(r.outbox)
		if st := r.outbox.Status(); st.Attached || st.Committed != 0 || st.Sent != 0 || st.Connected {
			t.Fatalf("detached: %+v", st)
		}
		toB.Detach(r.outbox)
		toC.Attach(r.outbox)
		if st := r.outbox.Status(); st.Committed != 0 {
			t.Fatalf("the new holder inherits acks: %+v", st)
		}
		r.decode(6)
		r.awaitCommitted(6)
		if o, _ := held(b.store, session(1)); o.Committed != 3 {
			t.Fatalf("the old holder has %+v", o)
		}
		toB.Detach(r.outbox) // not its holder any more
		if !r.outbox.Status().Attached {
			t.Fatal("detached by a sender that it isn't attached to")
		}
		toC.Detach(r.outbox)
		toB.Attach(r.outbox) // the stream is up and the holder has base 0 of it
		r.decode(9)
		r.awaitCommitted(9)
		if got := r.outbox.Base().Base; got != 1 {
			t.Fatalf("base number %d after coming back, want 1", got)
		}
		if n.dialed() != 2 {
			t.Fatalf("%d connections, want 2", n.dialed())
		}
		if o, _ := held(c.store, session(1)); o.Committed != 6 {
			t.Fatalf("the other holder has %+v", o)
		}
		r.checkTakeover(b.store, 9)
	})
}

// Without sessions there is no connection; with the pool's end there are no senders.
func TestPool_Lifecycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		idle := transfer.NewPool(transfer.Self{}, n.options(), quiet())
		if _, err := idle.To("b", "passthrough:///b"); !errors.Is(err, transfer.ErrClosed) {
			t.Fatalf("before Run: %v", err)
		}
		n.listen(t, "b", 1, 1<<20, acceptAll)
		p, stop := runPool(t, n)
		s := to(t, p, "b")
		if s != to(t, p, "b") {
			t.Fatal("two senders to one peer")
		}
		time.Sleep(time.Minute)
		if n.dialed() != 0 {
			t.Fatal("an idle sender dials")
		}
		stop()
		if _, err := p.To("b", "passthrough:///b"); !errors.Is(err, transfer.ErrClosed) {
			t.Fatalf("after Run: %v", err)
		}
	})
}
