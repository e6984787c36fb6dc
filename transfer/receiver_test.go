// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

// stream is a plain protobuf client of the replication service, without this package's codec.
type stream = grpc.BidiStreamingClient[seguev1.ReplicateRequest, seguev1.ReplicateResponse]

func dialPlain(t *testing.T, n *network, addr string) seguev1.ReplicationServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, n.options()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return seguev1.NewReplicationServiceClient(conn)
}

// open opens a stream and exchanges hello and welcome.
func open(t *testing.T, c seguev1.ReplicationServiceClient, h *seguev1.ReplicateHello) (stream, *seguev1.ReplicateWelcome) {
	t.Helper()
	st, err := c.Replicate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Send(&seguev1.ReplicateRequest{Frame: &seguev1.ReplicateRequest_Hello{Hello: h}}); err != nil {
		t.Fatal(err)
	}
	m, err := st.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return st, m.GetWelcome()
}

func mustSend(t *testing.T, st stream, m *seguev1.ReplicateRequest) {
	t.Helper()
	if err := st.Send(m); err != nil {
		t.Fatal(err)
	}
}

func mustRecv(t *testing.T, st stream) *seguev1.ReplicateResponse {
	t.Helper()
	m, err := st.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Any protobuf client can replicate; there is one ack a frame and base, after its last record.
func TestReceiver_PlainClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		b := n.listen(t, "b", 7, 1<<20, acceptAll)
		client := dialPlain(t, n, "b")
		st, w := open(t, client, hello())
		if w.GetVersion() != transfer.ProtocolVersion || w.GetNodeId() != "b" || w.GetBootId()[0] != 7 || len(w.GetOffers()) != 0 {
			t.Fatalf("welcome %v", w)
		}
		r := newRun(t, newHead(baseOf(1, 1), 8, 24, 100), window).capture(3)
		r2 := newRun(t, newHead(baseOf(2, 1), 8, 24, 100), window).capture(1)
		list, list2 := r.encode(), r2.encode()
		for i := range list { // records one by one
			mustSend(t, st, frame(list[i]))
			a := mustRecv(t, st).GetAck()
			want := []struct{ rows, n uint32 }{{0, 0}, {8, 0}, {8, 1}, {9, 1}, {9, 2}, {10, 2}, {10, 3}}[i]
			if a == nil || a.GetRows() != want.rows || a.GetCommitted() != want.n {
				t.Fatalf("record %d: %v", i, a)
			}
		}
		mustSend(t, st, frame(append(slices.Clone(list2), list...)...)) // two sessions, one of them anew
		for i := range 2 {
			a := mustRecv(t, st).GetAck()
			want := []struct{ id, rows, n uint32 }{{2, 8, 1}, {1, 10, 3}}[i]
			if uint32(a.GetSession()[0]) != want.id || a.GetRows() != want.rows || a.GetCommitted() != want.n {
				t.Fatalf("ack %d: %v", i, a)
			}
		}
		if err := st.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Recv(); !errors.Is(err, io.EOF) {
			t.Fatalf("the stream ends with %v", err)
		}
		// The next stream's welcome offers what is there.
		_, w = open(t, client, hello())
		if len(w.GetOffers()) != 2 {
			t.Fatalf("offers %v", w.GetOffers())
		}
		for _, o := range w.GetOffers() {
			if o.GetSession()[0] != 1 {
				continue
			}
			d, s := r.chain.DigestAt(10), r.chain.SealAt(3)
			if o.GetRows() != 10 || o.GetBoundary() != 3 || !bytes.Equal(o.GetChain(), d[:]) || !bytes.Equal(o.GetSeal(), s[:]) {
				t.Fatalf("offer %v", o)
			}
		}
		r.checkTakeover(b.store, 3)
	})
}

// A stream that isn't the protocol ends with a status that says so.
func TestReceiver_RefusesBrokenStreams(t *testing.T) {
	helloOf := func(change func(h *seguev1.ReplicateHello)) *seguev1.ReplicateRequest {
		h := hello()
		change(h)
		return &seguev1.ReplicateRequest{Frame: &seguev1.ReplicateRequest_Hello{Hello: h}}
	}
	good := helloOf(func(*seguev1.ReplicateHello) {})
	for name, x := range map[string]struct {
		send []*seguev1.ReplicateRequest
		code codes.Code
	}{
		"nothing":           {nil, codes.InvalidArgument},
		"records first":     {[]*seguev1.ReplicateRequest{frame([]byte{1})}, codes.InvalidArgument},
		"empty message":     {[]*seguev1.ReplicateRequest{{}}, codes.Internal},
		"another version":   {[]*seguev1.ReplicateRequest{helloOf(func(h *seguev1.ReplicateHello) { h.Version++ })}, codes.FailedPrecondition},
		"short boot id":     {[]*seguev1.ReplicateRequest{helloOf(func(h *seguev1.ReplicateHello) { h.BootId = h.BootId[1:] })}, codes.InvalidArgument},
		"long node id":      {[]*seguev1.ReplicateRequest{helloOf(func(h *seguev1.ReplicateHello) { h.NodeId = string(make([]byte, 257)) })}, codes.InvalidArgument},
		"second hello":      {[]*seguev1.ReplicateRequest{good, good}, codes.InvalidArgument},
		"no record":         {[]*seguev1.ReplicateRequest{good, frame(make([]byte, 100))}, codes.DataLoss},
		"part of a header":  {[]*seguev1.ReplicateRequest{good, frame([]byte("SGR1"))}, codes.DataLoss},
		"another format":    {[]*seguev1.ReplicateRequest{good, frame([]byte("SGR1\x09\x00\x01\x00"), make([]byte, 48))}, codes.DataLoss},
		"part of a payload": {[]*seguev1.ReplicateRequest{good, frame(exampleBase(t)[:80])}, codes.DataLoss},
		"frame too large":   {[]*seguev1.ReplicateRequest{good, frame(make([]byte, transfer.MaxFrameBytes))}, codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				b := n.listen(t, "b", 7, 1<<20, acceptAll)
				st, err := dialPlain(t, n, "b").Replicate(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range x.send {
					_ = st.Send(m) // the answer tells
				}
				if len(x.send) == 0 {
					_ = st.CloseSend()
				}
				for err == nil {
					_, err = st.Recv()
				}
				if status.Code(err) != x.code {
					t.Fatalf("got %v, want %v", err, x.code)
				}
				if len(b.store.Offers()) != 0 {
					t.Fatal("something is held")
				}
			})
		})
	}
}

func exampleBase(t *testing.T) []byte {
	h := newHead(baseOf(1, 1), 8, 24, 100)
	return snapshot.AppendBaseRecord(nil, &h)
}

// G6: no changed byte of a session's records is ever acknowledged: each ack is for records before it.
func TestReceiver_NeverAcksDamage(t *testing.T) {
	r := newRun(t, newHead(baseOf(1, 1), 4, 24, 24), window).capture(3)
	list := r.encode()
	for i := range list {
		for at := range list[i] {
			if i != 1 && at%3 != 0 && testing.Short() {
				continue
			}
			damaged := slices.Clone(list[i])
			damaged[at] ^= 1 << (at % 8)
			all := slices.Clone(list)
			all[i] = damaged
			store := snapshot.NewStore(snapshot.NewBudget(1<<20), acceptAll)
			answers, _ := apply(t, store, frame(all...))
			for _, m := range answers {
				a := m.GetAck()
				if a == nil || !bytes.Equal(a.GetSession(), r.head.Session[:]) {
					continue
				}
				o, ok := held(store, r.head.Session)
				if !ok || o.Chain != r.chain.DigestAt(o.Rows) || int(a.GetRows()) != o.Rows || int(a.GetCommitted()) != o.Committed {
					t.Fatalf("record %d, byte %d: acknowledged %v, held %+v", i, at, a, o)
				}
				if a.GetCommitted() == 3 {
					t.Fatalf("record %d, byte %d: everything is acknowledged", i, at)
				}
			}
		}
	}
}

// apply sends one frame to a receiver without a connection and returns its answers after the welcome.
func apply(t *testing.T, s *snapshot.Store, m *seguev1.ReplicateRequest) ([]*seguev1.ReplicateResponse, error) {
	t.Helper()
	st := &direct{ctx: t.Context(), in: []any{&transfer.Frame{Hello: hello()}, m}}
	err := transfer.NewReceiver(transfer.Self{}, s, nil, func(int) {}, quiet()).Replicate(st)
	return st.out[1:], err
}

// A damaged record is rejected for its base only; other sessions of the frame go on.
func TestReceiver_RejectsPerBase(t *testing.T) {
	r1 := newRun(t, newHead(baseOf(1, 1), 4, 24, 24), window).capture(3)
	r2 := newRun(t, newHead(baseOf(2, 1), 4, 24, 24), window).capture(3)
	list, list2 := r1.encode(), r2.encode()
	list[1][60] ^= 1
	var mixed [][]byte
	for i := range list {
		mixed = append(mixed, list[i], list2[i])
	}
	mixed = append(mixed, r1.encode()...) // the frame has more of the rejected base, from its beginning
	s := snapshot.NewStore(snapshot.NewBudget(1<<20), acceptAll)
	answers, err := apply(t, s, frame(mixed...))
	if err != nil || len(answers) != 2 {
		t.Fatalf("%v, %v", answers, err)
	}
	if x := answers[0].GetReject(); x.GetReason() != seguev1.Reason_REASON_DIGEST_MISMATCH || x.GetSession()[0] != 1 {
		t.Errorf("first answer %v", answers[0])
	}
	if a := answers[1].GetAck(); a.GetCommitted() != 3 || a.GetSession()[0] != 2 {
		t.Errorf("second answer %v", answers[1])
	}
	if o := s.Offers(); len(o) != 1 || o[0].Session != session(2) {
		t.Errorf("held %v", o)
	}
}

// What an earlier stream of the same process still has doesn't change the store after a newer one's welcome.
func TestReceiver_NewStreamReplacesOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		b := n.listen(t, "b", 7, 1<<20, acceptAll)
		c := dialPlain(t, n, "b")
		r := newRun(t, newHead(baseOf(1, 1), 8, 24, 100), window).capture(3)
		list := r.encode()
		old, _ := open(t, c, hello())
		mustSend(t, old, frame(list[:2]...))
		mustRecv(t, old)
		other := hello()
		other.BootId[0]++ // another process isn't concerned
		foreign, _ := open(t, c, other)
		next, w := open(t, c, hello())
		if o := w.GetOffers(); len(o) != 1 || o[0].GetRows() != 8 {
			t.Fatalf("offers %v", o)
		}
		mustSend(t, next, frame(list[2:]...))
		if a := mustRecv(t, next).GetAck(); a.GetCommitted() != 3 {
			t.Fatalf("ack %v", a)
		}
		mustSend(t, old, frame(list[0])) // would begin the base again
		if _, err := old.Recv(); status.Code(err) != codes.Aborted {
			t.Fatalf("the old stream gets %v", err)
		}
		if o, _ := held(b.store, session(1)); o.Committed != 3 {
			t.Fatalf("the old stream changed the store: %+v", o)
		}
		mustSend(t, foreign, frame(newRun(t, newHead(baseOf(2, 1), 8, 24, 100), window).capture(1).encode()...))
		if a := mustRecv(t, foreign).GetAck(); a.GetCommitted() != 1 {
			t.Fatalf("ack of the other process: %v", a)
		}
	})
}

// A welcome lists what is held of the primary that says hello, at most as much as a message can carry: however many
// sessions are held, of it and of others, its stream opens.
func TestReceiver_ManyHeldSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 50_000
		n := newNetwork()
		b := n.listen(t, "b", 7, 1<<40, acceptAll)
		client := dialPlain(t, n, "b")
		hold := func(of byte, boot []byte) {
			h := newHead(snapshot.BaseID{Epoch: 1}, 4, 4, 100)
			for i := range many {
				h.Session = snapshot.SessionID{of, byte(i), byte(i >> 8), byte(i >> 16)}
				if err := b.store.Begin(h, [16]byte(boot)); err != nil {
					t.Fatal(err)
				}
			}
		}
		other := hello()
		other.BootId[0]++
		hold(1, other.BootId)
		r := newRun(t, newHead(baseOf(9, 1), 8, 24, 100), window).capture(3)
		st, w := open(t, client, hello())
		if len(w.GetOffers()) != 0 {
			t.Fatalf("%d offers of other primaries", len(w.GetOffers()))
		}
		mustSend(t, st, frame(r.encode()...))
		if a := mustRecv(t, st).GetAck(); a.GetCommitted() != 3 {
			t.Fatalf("ack %v", a)
		}
		_, w = open(t, client, hello())
		if o := w.GetOffers(); len(o) != 1 || [16]byte(o[0].GetSession()) != r.head.Session {
			t.Fatalf("%d offers, want the primary's own", len(o))
		}
		hold(2, hello().GetBootId())
		_, w = open(t, client, hello())
		if o := len(w.GetOffers()); o < 1000 || o >= many {
			t.Fatalf("%d offers of %d bases", o, many)
		}
	})
}

// Streams end when the agent stops, so a graceful stop doesn't wait for its peers.
func TestReceiver_StopEndsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		b := n.listen(t, "b", 7, 1<<20, acceptAll)
		st, _ := open(t, dialPlain(t, n, "b"), hello())
		close(b.stop)
		b.server.GracefulStop()
		if _, err := st.Recv(); status.Code(err) != codes.Unavailable {
			t.Fatalf("got %v", err)
		}
	})
}
