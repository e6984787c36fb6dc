// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/internal/invariant"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

// messages splits b into messages, each behind its length in four bytes. The last one may be shorter.
func messages(b []byte) (list [][]byte) {
	for len(b) >= 4 && len(list) < 64 {
		n := min(uint64(binary.LittleEndian.Uint32(b)), uint64(len(b)-4))
		list = append(list, b[4:4+n])
		b = b[4+n:]
	}
	return list
}

// pack is the inverse of messages.
func pack(list ...[]byte) (b []byte) {
	for _, m := range list {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(m)))
		b = append(b, m...)
	}
	return b
}

func protoBytes(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func helloBytes(tb testing.TB) []byte {
	return protoBytes(tb, &seguev1.ReplicateRequest{Frame: &seguev1.ReplicateRequest_Hello{Hello: hello()}})
}

// FuzzCodec decodes arbitrary frames: what is accepted is what protobuf accepts, with the same records.
func FuzzCodec(f *testing.F) {
	f.Add([]byte{0x12, 2, 1, 2}, 1)
	f.Add([]byte{0x92, 0x00, 2, 1, 2}, 2)
	f.Add([]byte{0x0a, 2, 8, 1}, 3)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		data := cut(b, max(1, n))
		var x transfer.Frame
		var err error
		if over := invariant.WithinBytes(1<<20+8*len(b), func() { err = transfer.Codec{}.Unmarshal(data, &x) }); over != nil {
			t.Fatalf("a frame of %d bytes: %v", len(b), over)
		}
		if err != nil {
			if !errors.Is(err, transfer.ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		var m seguev1.ReplicateRequest
		if err := proto.Unmarshal(b, &m); err != nil {
			t.Fatalf("accepted, and protobuf says %v", err)
		}
		if x.Hello != nil {
			if !proto.Equal(x.Hello, m.GetHello()) {
				t.Fatal("another hello")
			}
			return
		}
		got, err := io.ReadAll(x.Reader())
		if err != nil || !bytes.Equal(got, m.GetRecords()) {
			t.Fatalf("records %x, protobuf %x, %v", got, m.GetRecords(), err)
		}
		x.Free()
	})
}

// rawStream is the server's side of a stream whose messages are arbitrary bytes. What the codec refuses breaks
// it, as gRPC does.
type rawStream struct {
	direct
	raw [][]byte
}

func (s *rawStream) RecvMsg(m any) error {
	if len(s.raw) == 0 {
		return io.EOF
	}
	b := s.raw[0]
	s.raw = s.raw[1:]
	if err := (transfer.Codec{}).Unmarshal(cut(b, 1000), m); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// FuzzReplicate plays an arbitrary primary: the holder ends with a clear status, acknowledges nothing that it
// doesn't hold, and stays within its memory.
func FuzzReplicate(f *testing.F) {
	r := newRun(f, newHead(baseOf(1, 1), 8, 24, 100), window).capture(3)
	records := r.encode()
	one := protoBytes(f, frame(records...))
	list := [][]byte{helloBytes(f)}
	for _, x := range records {
		list = append(list, protoBytes(f, frame(x)))
	}
	f.Add(pack(helloBytes(f), one))
	f.Add(pack(list...))
	f.Add(pack(helloBytes(f), one, helloBytes(f)))
	f.Add(pack(one))
	f.Add(pack(helloBytes(f), one[:len(one)/2]))
	f.Add(pack(helloBytes(f), protoBytes(f, frame(records[0], records[2], records[1]))))
	f.Fuzz(func(t *testing.T, script []byte) {
		store := snapshot.NewStore(snapshot.NewBudget(1<<20), acceptAll)
		taken := 0
		rc := transfer.NewReceiver(transfer.Self{NodeID: "b", Boot: [16]byte{7}}, store, nil, func(n int) { taken += n }, quiet())
		st := &rawStream{direct: direct{ctx: t.Context()}, raw: messages(script)}
		var err error
		over := invariant.WithinBytes(4<<20+64*len(script), func() { err = rc.Replicate(st) })
		if over != nil {
			t.Fatalf("a script of %d bytes: %v", len(script), over)
		}
		switch c := status.Code(err); c {
		case codes.OK, codes.InvalidArgument, codes.FailedPrecondition, codes.DataLoss, codes.Internal:
		default:
			t.Fatalf("ends with %v", err)
		}
		if taken > len(script) {
			t.Fatalf("%d bytes of records in a script of %d", taken, len(script))
		}
		checkAnswers(t, store, st.out, err == nil)
	})
}

// checkAnswers checks what a holder has said against what it holds. A frame that can't be read to its end ends the
// stream without an answer to its beginning, which the next welcome offers.
func checkAnswers(t *testing.T, store *snapshot.Store, out []*seguev1.ReplicateResponse, whole bool) {
	t.Helper()
	acked, rejected := make(map[snapshot.BaseID]*seguev1.Ack), make(map[snapshot.BaseID]bool)
	for i, m := range out {
		if (m.GetWelcome() != nil) != (i == 0) {
			t.Fatalf("answer %d is %v", i, m)
		}
		if a := m.GetAck(); a != nil {
			acked[snapshot.BaseID{Session: snapshot.SessionID(a.GetSession()), Epoch: fence.Epoch(a.GetEpoch()), Base: a.GetBase()}] = a
		}
		if x := m.GetReject(); x != nil {
			if x.GetReason() == seguev1.Reason_REASON_UNSPECIFIED {
				t.Fatalf("a reject without a reason: %v", x)
			}
			rejected[snapshot.BaseID{Session: snapshot.SessionID(x.GetSession()), Epoch: fence.Epoch(x.GetEpoch()), Base: x.GetBase()}] = true
		}
	}
	for _, o := range store.Offers() {
		a := acked[o.BaseID]
		if rejected[o.BaseID] {
			continue // the primary counts on nothing of it
		}
		if a == nil && whole {
			t.Fatalf("%+v is held and was never acknowledged", o.BaseID)
		}
		if rows, n := int(a.GetRows()), int(a.GetCommitted()); rows > o.Rows || n > o.Committed || whole && (rows != o.Rows || n != o.Committed) {
			t.Fatalf("the last ack is %v, held are %d rows and boundary %d", a, o.Rows, o.Committed)
		}
	}
}

// holderConn is a connection to a holder that answers with arbitrary bytes, then breaks, and is never reached
// again.
type holderConn struct {
	grpc.ClientConnInterface
	answers [][]byte
	opened  int
	gone    context.CancelFunc
}

func (c *holderConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	if c.opened++; c.opened > 1 {
		c.gone()
		return nil, io.ErrClosedPipe
	}
	return &holderStream{c: c}, nil
}

type holderStream struct {
	grpc.ClientStream
	c *holderConn
}

func (s *holderStream) SendMsg(any) error { return nil }

// RecvMsg answers when the sender has sent all it may.
func (s *holderStream) RecvMsg(m any) error {
	synctest.Wait()
	if len(s.c.answers) == 0 {
		return io.EOF
	}
	b := s.c.answers[0]
	s.c.answers = s.c.answers[1:]
	if err := proto.Unmarshal(b, m.(proto.Message)); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// FuzzAnswers plays an arbitrary holder: the primary never believes more committed than it has sent, whatever
// it is told.
func FuzzAnswers(f *testing.F) {
	id := session(1)
	answer := func(m *seguev1.ReplicateResponse) []byte { return protoBytes(f, m) }
	welcome := answer(&seguev1.ReplicateResponse{Frame: &seguev1.ReplicateResponse_Welcome{Welcome: &seguev1.ReplicateWelcome{
		Version: transfer.ProtocolVersion, NodeId: "b", BootId: make([]byte, 16),
	}}})
	offer := answer(&seguev1.ReplicateResponse{Frame: &seguev1.ReplicateResponse_Welcome{Welcome: &seguev1.ReplicateWelcome{
		Version: transfer.ProtocolVersion, NodeId: "b", BootId: make([]byte, 16),
		Offers: []*seguev1.ResumeOffer{{Session: id[:], Epoch: 1, Rows: 8, Boundary: 1, Chain: make([]byte, 16), Seal: make([]byte, 16)}},
	}}})
	ack := func(rows, n uint32) []byte {
		return answer(&seguev1.ReplicateResponse{Frame: &seguev1.ReplicateResponse_Ack{Ack: &seguev1.Ack{Session: id[:], Epoch: 1, Rows: rows, Committed: n}}})
	}
	reject := answer(&seguev1.ReplicateResponse{Frame: &seguev1.ReplicateResponse_Reject{Reject: &seguev1.Reject{Session: id[:], Epoch: 1, Reason: 15, Detail: "full"}}})
	f.Add(pack(welcome, ack(8, 0), ack(8, 1), ack(10, 3)))
	f.Add(pack(welcome, ack(10, 4)))
	f.Add(pack(welcome, ack(10, 3), ack(8, 1)))
	f.Add(pack(offer, ack(4294967295, 4294967295)))
	f.Add(pack(welcome, reject, ack(10, 3)))
	f.Add(pack(ack(8, 1)))
	f.Add(pack(welcome[:5]))
	f.Fuzz(func(t *testing.T, script []byte) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r := newRun(t, newHead(baseOf(1, 1), 8, 24, 100), window).capture(3)
			s := transfer.NewSender(transfer.Self{NodeID: "a", Boot: [16]byte{1}}, &holderConn{answers: messages(script), gone: cancel}, quiet())
			s.Attach(r.outbox)
			over := invariant.WithinBytes(4<<20+64*len(script), func() {
				if err := s.Run(ctx); !errors.Is(err, context.Canceled) {
					t.Errorf("Run = %v", err)
				}
			})
			if over != nil {
				t.Errorf("a script of %d bytes: %v", len(script), over)
			}
			if x := r.outbox.Status(); x.Committed > x.Sent || x.Sent > x.Captured || x.Captured != 3 || x.AckRows > x.Rows {
				t.Errorf("status %+v", x)
			}
			if r.outbox.Status().Connected {
				t.Error("still connected")
			}
		})
	})
}
