// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer

import (
	"encoding/binary"
	"fmt"
	"io"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// Field numbers of segue.v1.ReplicateRequest, as the codec writes and reads them.
const (
	fieldHello   = 1
	fieldRecords = 2
)

// MaxFrameBytes bounds one replication frame. A frame carries at least one record, so it exceeds the
// largest record.
const MaxFrameBytes = 24 << 20

// Frame is a ReplicateRequest that the codec sends and receives without copying its records.
type Frame struct {
	// Hello is set on the first frame of a stream, and only there.
	Hello *seguev1.ReplicateHello
	// Records are the pieces of the records field when sending. They must not change until the send has
	// returned and the transport has written them; rows in a chain never change.
	Records [][]byte
	// received holds the records field when receiving.
	received mem.BufferSlice
	skip     int
}

// Reader reads the received records. It is valid until Free; Close gives back what wasn't read.
func (f *Frame) Reader() io.ReadCloser {
	r := f.received.Reader()
	_, _ = r.Discard(f.skip)
	return r
}

// Free gives the received buffers back.
func (f *Frame) Free() {
	f.received.Free()
	f.received = nil
}

// Codec is the gRPC codec of agents: protobuf for messages, and for a Frame the same protobuf encoding made
// and read in place. Any protobuf client can speak to it. It has no state.
type Codec struct{}

var _ encoding.CodecV2 = Codec{}

// Name is "proto": the bytes are protobuf.
func (Codec) Name() string { return "proto" }

// Marshal encodes a *Frame or a proto.Message.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*Frame)
	if !ok {
		m, ok := v.(proto.Message)
		if !ok {
			return nil, fmt.Errorf("transfer: marshal %T: not a protobuf message", v)
		}
		b, err := proto.Marshal(m)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	if f.Hello != nil {
		b, err := proto.Marshal(&seguev1.ReplicateRequest{Frame: &seguev1.ReplicateRequest_Hello{Hello: f.Hello}})
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	n := 0
	for _, p := range f.Records {
		n += len(p)
	}
	head := protowire.AppendTag(make([]byte, 0, 12), fieldRecords, protowire.BytesType)
	head = binary.AppendUvarint(head, uint64(n))
	out := make(mem.BufferSlice, 0, len(f.Records)+1)
	out = append(out, mem.SliceBuffer(head))
	for _, p := range f.Records {
		out = append(out, mem.SliceBuffer(p))
	}
	return out, nil
}

// Unmarshal decodes into a *Frame or a proto.Message. A frame keeps a reference to data until Free.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*Frame)
	if !ok {
		m, ok := v.(proto.Message)
		if !ok {
			return fmt.Errorf("transfer: unmarshal %T: not a protobuf message", v)
		}
		return proto.Unmarshal(data.Materialize(), m)
	}
	*f = Frame{}
	r := data.Reader()
	defer func() { _ = r.Close() }()
	total := r.Remaining()
	tag, err := binary.ReadUvarint(r)
	if err != nil {
		return fmt.Errorf("%w: empty frame", ErrProtocol)
	}
	switch tag {
	case protowire.EncodeTag(fieldHello, protowire.BytesType):
		if total > 1<<16 {
			return fmt.Errorf("%w: hello of %d bytes", ErrProtocol, total)
		}
		var m seguev1.ReplicateRequest
		if err := proto.Unmarshal(data.Materialize(), &m); err != nil {
			return fmt.Errorf("%w: hello: %w", ErrProtocol, err)
		}
		if f.Hello = m.GetHello(); f.Hello == nil {
			return fmt.Errorf("%w: frame with a hello and records", ErrProtocol)
		}
		return nil
	case protowire.EncodeTag(fieldRecords, protowire.BytesType):
		n, err := binary.ReadUvarint(r)
		if err != nil || n != uint64(r.Remaining()) {
			return fmt.Errorf("%w: records of %d bytes in a frame with %d left", ErrProtocol, n, r.Remaining())
		}
		f.skip = total - r.Remaining()
		data.Ref()
		f.received = data
		return nil
	}
	return fmt.Errorf("%w: frame with tag %d", ErrProtocol, tag)
}
