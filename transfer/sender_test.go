// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer_test

import (
	"bytes"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/transfer"
)

// scripted answers each stream with the next of its handlers; the last one serves all that follow.
type scripted struct {
	seguev1.UnimplementedReplicationServiceServer
	mu       sync.Mutex
	handlers []func(st serverStream) error
}

type serverStream = grpc.BidiStreamingServer[seguev1.ReplicateRequest, seguev1.ReplicateResponse]

func (s *scripted) Replicate(st serverStream) error {
	s.mu.Lock()
	h := s.handlers[0]
	if len(s.handlers) > 1 {
		s.handlers = s.handlers[1:]
	}
	s.mu.Unlock()
	return h(st)
}

// script starts a scripted holder.
func (n *network) script(t *testing.T, name string, handlers ...func(serverStream) error) *scripted {
	t.Helper()
	s := &scripted{handlers: handlers}
	server := grpc.NewServer(transfer.ServerOptions()...)
	seguev1.RegisterReplicationServiceServer(server, s)
	served := make(chan error, 1)
	n.serve(name, server, served)
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	return s
}

func (s *scripted) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.handlers)
}

func welcome(offers ...*seguev1.ResumeOffer) *seguev1.ReplicateResponse {
	return &seguev1.ReplicateResponse{Frame: &seguev1.ReplicateResponse_Welcome{Welcome: &seguev1.ReplicateWelcome{
		Version: transfer.ProtocolVersion, NodeId: "b", BootId: bytes.Repeat([]byte{7}, 16), Offers: offers,
	}}}
}

func ack(n byte, rows, committed uint32) *seguev1.ReplicateResponse {
	id := session(n)
	return &seguev1.ReplicateResponse{Frame: &seguev1.ReplicateResponse_Ack{Ack: &seguev1.Ack{
		Session: id[:], Epoch: 1, Rows: rows, Committed: committed,
	}}}
}

// answer sends what is given after the hello, and then reads until the stream ends.
func answer(list ...*seguev1.ReplicateResponse) func(st serverStream) error {
	return func(st serverStream) error {
		if _, err := st.Recv(); err != nil {
			return err
		}
		for _, m := range list {
			if err := st.Send(m); err != nil {
				return err
			}
		}
		for {
			if _, err := st.Recv(); err != nil {
				return err
			}
		}
	}
}

// A holder that breaks the protocol gains nothing: the stream is opened again, with back-off.
func TestSender_SurvivesBrokenHolders(t *testing.T) {
	change := func(f func(w *seguev1.ReplicateWelcome)) *seguev1.ReplicateResponse {
		m := welcome()
		f(m.GetWelcome())
		return m
	}
	for name, broken := range map[string]func(st serverStream) error{
		"refuses":            func(serverStream) error { return status.Error(codes.Unavailable, "no") },
		"ends at once":       func(serverStream) error { return nil },
		"no welcome":         answer(ack(1, 0, 0)),
		"another version":    answer(change(func(w *seguev1.ReplicateWelcome) { w.Version++ })),
		"no boot id":         answer(change(func(w *seguev1.ReplicateWelcome) { w.BootId = nil })),
		"second welcome":     answer(welcome(), welcome()),
		"empty answer":       answer(welcome(), &seguev1.ReplicateResponse{}),
		"ack of rows unsent": answer(welcome(), ack(1, 999, 0)),
		"ack of boundaries":  answer(welcome(), ack(1, 0, 99)),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				good := transfer.NewReceiver(transfer.Self{NodeID: "b"}, newStore(), nil, func(int) {}, quiet())
				s := n.script(t, "b", broken, broken, broken, good.Replicate)
				r := newRun(t, newHead(baseOf(1, 1), 8, 24, 100), window)
				r.capture(3)
				began := time.Now()
				to(t, senders(t, n), "b").Attach(r.outbox)
				wait := time.After(10 * time.Second)
				for s.left() > 1 {
					changed := r.outbox.Changed()
					if st := r.outbox.Status(); st.Committed > 0 && s.left() > 1 {
						t.Fatalf("a broken holder's ack counts: %+v", st)
					}
					select {
					case <-changed:
					case <-time.After(10 * time.Millisecond):
					case <-wait:
						t.Fatal("the sender gave up")
					}
				}
				r.awaitCommitted(3)
				if took := time.Since(began); took < 100*time.Millisecond || took > 5*time.Second {
					t.Fatalf("three broken streams took %v", took)
				}
			})
		})
	}
}

// An offer of more than was ever captured makes a new base; acks of the old one don't count.
func TestSender_OfferOfTooMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		id := session(1)
		offer := &seguev1.ResumeOffer{Session: id[:], Epoch: 1, Rows: 1 << 30, Boundary: 1 << 30, Chain: make([]byte, 16)}
		n.script(t, "b", answer(welcome(offer), ack(1, 1<<30, 1<<30)))
		r := newRun(t, newHead(baseOf(1, 1), 8, 24, 100), window).capture(1)
		to(t, senders(t, n), "b").Attach(r.outbox)
		synctest.Wait()
		if st := r.outbox.Status(); st.Committed != 0 || st.Sent != 1 || r.outbox.Base().Base != 1 || n.dialed() != 1 {
			t.Fatalf("%+v, base %+v", st, r.outbox.Base())
		}
	})
}

// Acks and rejects of sessions, bases and epochs that aren't attached are old, and ignored.
func TestSender_IgnoresStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		id := session(1)
		reject := func(epoch uint64, base uint32) *seguev1.ReplicateResponse {
			return &seguev1.ReplicateResponse{Frame: &seguev1.ReplicateResponse_Reject{Reject: &seguev1.Reject{
				Session: id[:], Epoch: epoch, Base: base, Reason: seguev1.Reason_REASON_STORE_FULL,
			}}}
		}
		olds := ack(1, 8, 1)
		olds.GetAck().Base = 9
		lower := ack(1, 8, 1)
		lower.GetAck().Epoch = 0
		short := ack(1, 8, 1)
		short.GetAck().Session = id[:5]
		n.script(t, "b", answer(
			welcome(&seguev1.ResumeOffer{Session: id[:3]}, &seguev1.ResumeOffer{Session: make([]byte, 16), Epoch: 1, Rows: 3}),
			ack(2, 8, 1), olds, lower, short, reject(2, 0), reject(1, 1),
		))
		r := newRun(t, newHead(baseOf(1, 1), 8, 24, 100), window).capture(1)
		to(t, senders(t, n), "b").Attach(r.outbox)
		synctest.Wait()
		if st := r.outbox.Status(); st.Rejected || st.Committed != 0 || st.AckRows != 0 || !st.Connected || n.dialed() != 1 {
			t.Fatalf("%+v", st)
		}
	})
}

// flipper changes one byte of what the dialer writes: the one at offset at, or one inside the first
// occurrence of pattern.
type flipper struct {
	net.Conn
	at      int
	pattern []byte
	done    *bool
	written int
}

func (f *flipper) Write(b []byte) (int, error) {
	i := f.at - f.written
	if f.pattern != nil {
		i = -1
		if x := bytes.Index(b, f.pattern); x >= 0 {
			i = x + len(f.pattern)/2
		}
	}
	f.written += len(b)
	if *f.done || i < 0 || i >= len(b) {
		return f.Conn.Write(b)
	}
	*f.done = true
	b = bytes.Clone(b)
	b[i] ^= 0x10
	return f.Conn.Write(b)
}

// G6 on the wire: a damaged row is rejected, never acknowledged.
func TestReplication_CorruptRowOnTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		b := n.listen(t, "b", 1, 1<<20, acceptAll)
		r := newRun(t, newHead(baseOf(1, 1), 8, 24, 1000), window)
		done := false
		n.setWrap(func(c net.Conn) net.Conn { return &flipper{Conn: c, pattern: r.rowOf(9), done: &done} })
		s := to(t, senders(t, n), "b")
		s.Attach(r.capture(2).outbox)
		r.awaitCommitted(2)
		r.decode(3) // with row 9
		st := r.await("rejection", func(s transfer.Status) bool { return s.Rejected || s.Committed > 2 })
		if !done || st.Committed > 2 || st.Reason != seguev1.Reason_REASON_DIGEST_MISMATCH {
			t.Fatalf("flipped %v: %+v", done, st)
		}
		if o := b.store.Offers(); len(o) != 0 {
			t.Fatalf("a damaged base is held: %+v", o)
		}
	})
}

// A byte flipped anywhere in the connection: whatever is acknowledged is held and right.
func TestReplication_CorruptConnection(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	rounds := 150
	if testing.Short() {
		rounds = 30
	}
	outcomes := make(map[string]int)
	for range rounds {
		at := rng.IntN(14_000)
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			b := n.listen(t, "b", 1, 1<<20, acceptAll)
			done := false
			n.setWrap(func(c net.Conn) net.Conn { return &flipper{Conn: c, at: at, done: &done} })
			r := newRun(t, newHead(baseOf(1, 1), 4, 24, 400), window).capture(1)
			to(t, senders(t, n), "b").Attach(r.outbox)
			for i := 1; i <= 20; i++ {
				r.decode(i)
				timeout := time.After(5 * time.Second)
				for waiting := true; waiting; {
					changed := r.outbox.Changed()
					st := r.outbox.Status()
					if o, _ := held(b.store, session(1)); st.Connected && st.Committed > o.Committed {
						synctest.Wait()
						if st = r.outbox.Status(); st.Connected && st.Committed > o.Committed {
							t.Fatalf("byte %d: committed %d, held %d", at, st.Committed, o.Committed)
						}
					}
					if st.Committed == i || st.Rejected {
						break
					}
					select {
					case <-changed:
					case <-timeout: // the record went to a session that nobody knows
						waiting = false
					}
				}
			}
			o, ok := held(b.store, session(1))
			switch st := r.outbox.Status(); {
			case st.Rejected:
				outcomes["rejected"]++
			case st.Committed == 20:
				outcomes["complete"]++
			default:
				outcomes["stuck"]++
			}
			if !ok {
				return
			}
			if o.Rows > r.chain.Rows() || o.Chain != r.chain.DigestAt(o.Rows) {
				t.Fatalf("byte %d: other rows are held: %+v", at, o)
			}
			if o.Committed > 0 {
				r.checkTakeover(b.store, o.Committed)
			}
		})
	}
	t.Log(outcomes)
}
