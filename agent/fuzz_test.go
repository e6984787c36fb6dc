// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/internal/invariant"
	"github.com/seguekv/segue/transfer"
)

// fuzzMethods numbers an agent's methods for scripts. New ones go to the end: committed scripts name them by number.
func fuzzMethods() []string {
	return []string{
		"NodeService/Describe", "NodeService/Generate", "NodeService/Takeover", "NodeService/Pair", "NodeService/Cancel",
		"NodeService/Release", "NodeService/Sessions", "NodeService/Renew", "ReplicationService/Replicate",
		"NodeService/Prepare", "NodeService/Park", "NodeService/WatchHealth",
	}
}

func TestFuzzMethods_AreComplete(t *testing.T) {
	services := seguev1.File_segue_v1_node_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			if name := string(services.Get(i).Name()) + "/" + string(methods.Get(j).Name()); !slices.Contains(fuzzMethods(), name) {
				t.Errorf("%s is never fuzzed: add it to the end of fuzzMethods", name)
			}
		}
	}
}

// rawCodec sends and receives *[]byte as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// rawCall sends messages to a method and reads whatever comes, for at most a while.
func rawCall(ctx context.Context, conn *grpc.ClientConn, method string, messages ...[]byte) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	st, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/segue.v1."+method, grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		return err
	}
	for _, m := range messages {
		if st.SendMsg(&m) != nil {
			break // the answer tells
		}
	}
	_ = st.CloseSend()
	for {
		var answer []byte
		if err := st.RecvMsg(&answer); err != nil {
			return err
		}
	}
}

// decodes reports whether b is a message of the method's kind.
func decodes(method string, b []byte) bool {
	name := seguev1.File_segue_v1_node_proto.Services().ByName("NodeService").Methods()
	if method == "ReplicationService/Replicate" {
		return (transfer.Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, new(transfer.Frame)) == nil
	}
	for i := range name.Len() {
		if "NodeService/"+string(name.Get(i).Name()) != method {
			continue
		}
		kind, err := protoregistry.GlobalTypes.FindMessageByName(name.Get(i).Input().FullName())
		return err == nil && proto.Unmarshal(b, kind.New().Interface()) == nil
	}
	return false
}

// script is a list of calls: length in four bytes, number of the method, message.
func script(calls ...any) (b []byte) {
	for i := 0; i < len(calls); i += 2 {
		m, err := proto.MarshalOptions{Deterministic: true}.Marshal(calls[i+1].(proto.Message))
		if err != nil {
			panic(err)
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(len(m)+1))
		b = append(append(b, byte(slices.Index(fuzzMethods(), calls[i].(string)))), m...)
	}
	return b
}

// FuzzNode plays an arbitrary caller and an arbitrary primary against an agent that holds a session: it answers every
// message with a status of its own making, and when everything it lists is cancelled it uses nothing.
func FuzzNode(f *testing.F) {
	id := []byte("a session of 16.")
	peer := &seguev1.Peer{Id: "b", Addr: "127.0.0.1:1002"}
	lease := &seguev1.Lease{Grantor: make([]byte, 16), TtlMs: 400, MarginMs: 100}
	fresh := &seguev1.GenerateRequest{Session: make([]byte, 16), Epoch: 1, Request: request(4), Protection: modeSync, Holder: peer, Lease: lease}
	over := &seguev1.TakeoverRequest{Session: id, Epoch: 2, Request: request(30), Protection: modeOff, OutputDigest: make([]byte, 16), Delivered: 3}
	f.Add(script("NodeService/Describe", &seguev1.DescribeRequest{}, "NodeService/Generate", fresh, "NodeService/Sessions", &seguev1.SessionsRequest{}))
	f.Add(script("NodeService/Takeover", over, "NodeService/Cancel", &seguev1.CancelRequest{Session: id, Epoch: 1<<64 - 1}, "NodeService/Takeover", over))
	f.Add(script("NodeService/Pair", &seguev1.PairRequest{Session: id, Epoch: 1, Holder: peer}, "NodeService/Release", &seguev1.ReleaseRequest{Session: id, Epoch: 1}))
	f.Add(script("NodeService/Renew", &seguev1.RenewRequest{Grantor: make([]byte, 16), BootId: make([]byte, 16), Number: 1, Ended: []*seguev1.Run{{Session: id, Epoch: 1}}}))
	prepare, park := &seguev1.PrepareRequest{Session: id, Epoch: 1, HoldMs: 1<<32 - 1}, &seguev1.ParkRequest{Session: id, Epoch: 1}
	f.Add(script("NodeService/Prepare", prepare, "NodeService/Takeover", over, "NodeService/Park", &seguev1.ParkRequest{Session: id, Epoch: 2}))
	f.Add(script("NodeService/Generate", fresh, "NodeService/Park", &seguev1.ParkRequest{Session: make([]byte, 16), Epoch: 1}, "NodeService/Takeover", &seguev1.TakeoverRequest{
		Session: make([]byte, 16), Epoch: 2, Request: request(4), Protection: modeOff, OutputDigest: make([]byte, 16),
	}))
	f.Add(script("NodeService/Park", park, "NodeService/Prepare", prepare, "NodeService/Park", park, "NodeService/Takeover", over))
	f.Add(script("ReplicationService/Replicate", &seguev1.ReplicateRequest{Frame: &seguev1.ReplicateRequest_Records{Records: []byte("SGR1")}}))
	f.Add([]byte{2, 0, 0, 0, 1, 0xff, 9, 0, 0, 0, 0})
	hello, err := proto.Marshal(&seguev1.ReplicateRequest{Frame: &seguev1.ReplicateRequest_Hello{Hello: &seguev1.ReplicateHello{
		Version: transfer.ProtocolVersion, NodeId: "c", BootId: make([]byte, 16),
	}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
			new(transcript).read(generate(t, t.Context(), b, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: request(30), Protection: modeSync, Holder: a.peer}), tokens(5))
			conn, err := grpc.NewClient(a.peer.GetAddr(), n.options("router")...)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			// What a whole short run costs in two processes, many times over, and a multiple of what comes in.
			over := invariant.WithinBytes(48<<20+256*len(script), func() { play(t, conn, hello, script) })
			if over != nil {
				t.Errorf("a script of %d bytes: %v", len(script), over)
			}
			a.describe(t)
		})
	})
}

func play(t *testing.T, conn *grpc.ClientConn, hello, script []byte) {
	for calls := 0; len(script) > 4 && calls < 8; calls++ {
		size := min(uint64(binary.LittleEndian.Uint32(script)), uint64(len(script)-4))
		call := script[4 : 4+size]
		script = script[4+size:]
		if size == 0 {
			continue
		}
		method := fuzzMethods()[int(call[0])%len(fuzzMethods())]
		messages := [][]byte{call[1:]}
		if method == "ReplicationService/Replicate" {
			messages = [][]byte{hello, call[1:]}
		}
		err := rawCall(t.Context(), conn, method, messages...)
		switch c := status.Code(err); c {
		case codes.Internal:
			if decodes(method, call[1:]) {
				t.Errorf("%s: %v", method, err)
			}
		case codes.Unimplemented, codes.Unknown:
			if err.Error() != "EOF" {
				t.Errorf("%s: %v", method, err)
			}
		}
	}
}
