// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/transfer"
)

// cut is b in buffers of at most n bytes, as a transport delivers it.
func cut(b []byte, n int) mem.BufferSlice {
	var out mem.BufferSlice
	for len(b) > 0 {
		k := min(n, len(b))
		out = append(out, mem.SliceBuffer(b[:k]))
		b = b[k:]
	}
	return out
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	b, err := transfer.Codec{}.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b.Materialize()
}

func hello() *seguev1.ReplicateHello {
	return &seguev1.ReplicateHello{Version: transfer.ProtocolVersion, NodeId: "a", BootId: bytes.Repeat([]byte{1}, 16)}
}

// A frame's bytes are those of the same ReplicateRequest.
func TestCodec_FrameIsReplicateRequest(t *testing.T) {
	for _, size := range []int{1, 127, 128, 16383, 16384, 1 << 20} {
		records := make([]byte, size)
		for i := range records {
			records[i] = byte(i * 7)
		}
		want, err := proto.Marshal(&seguev1.ReplicateRequest{Frame: &seguev1.ReplicateRequest_Records{Records: records}})
		if err != nil {
			t.Fatal(err)
		}
		got := marshal(t, &transfer.Frame{Records: [][]byte{records[:size/3], nil, records[size/3:]}})
		if !bytes.Equal(got, want) {
			t.Fatalf("frame of %d bytes differs from protobuf", size)
		}
		for _, n := range []int{1, 2, 3, 1000, 1 << 21} {
			if n == 1 && size > 1<<15 {
				continue
			}
			var f transfer.Frame
			if err := (transfer.Codec{}).Unmarshal(cut(want, n), &f); err != nil {
				t.Fatal(err)
			}
			r := f.Reader()
			back, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(back, records) {
				t.Fatalf("frame of %d bytes in pieces of %d: %v", size, n, err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			f.Free()
		}
	}
	h := &seguev1.ReplicateRequest{Frame: &seguev1.ReplicateRequest_Hello{Hello: hello()}}
	want, err := proto.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	if got := marshal(t, &transfer.Frame{Hello: hello()}); !bytes.Equal(got, want) {
		t.Fatal("hello differs from protobuf")
	}
	var f transfer.Frame
	if err := (transfer.Codec{}).Unmarshal(cut(want, 3), &f); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(hello(), f.Hello, protocmp.Transform()); diff != "" {
		t.Fatal(diff)
	}
}

// An empty frame has no records; it is still a ReplicateRequest with an empty field.
func TestCodec_EmptyFrame(t *testing.T) {
	b := marshal(t, new(transfer.Frame))
	var m seguev1.ReplicateRequest
	if err := proto.Unmarshal(b, &m); err != nil || m.GetFrame() == nil {
		t.Fatalf("%v, %v", m.GetFrame(), err)
	}
	var f transfer.Frame
	if err := (transfer.Codec{}).Unmarshal(cut(b, 1), &f); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(f.Reader()); err != nil || len(rest) != 0 {
		t.Fatalf("%x, %v", rest, err)
	}
	f.Free()
	f.Free()
}

func TestCodec_MessagesAreProtobuf(t *testing.T) {
	if (transfer.Codec{}).Name() != "proto" {
		t.Fatal("content subtype isn't proto")
	}
	want := &seguev1.Ack{Session: []byte("0123456789abcdef"), Epoch: 3, Rows: 7, Committed: 2}
	plain, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(marshal(t, want), plain) {
		t.Fatal("message differs from protobuf")
	}
	got := new(seguev1.Ack)
	if err := (transfer.Codec{}).Unmarshal(cut(plain, 5), got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Fatal(diff)
	}
	if _, err := (transfer.Codec{}).Marshal("text"); err == nil {
		t.Error("a string is marshalled")
	}
	if err := (transfer.Codec{}).Unmarshal(cut(plain, 5), new(string)); err == nil {
		t.Error("a string is unmarshalled")
	}
}

func TestCodec_RefusesMalformedFrames(t *testing.T) {
	both := append(marshal(t, &transfer.Frame{Hello: hello()}), marshal(t, &transfer.Frame{Records: [][]byte{{1}}})...)
	for name, b := range map[string][]byte{
		"empty":               nil,
		"other field":         {0x1a, 1, 0},
		"other wire type":     {0x10, 1},
		"endless tag":         bytes.Repeat([]byte{0xff}, 20),
		"no length":           {0x12},
		"length too long":     {0x12, 5, 1, 2},
		"length too short":    {0x12, 1, 1, 2},
		"length over 64 bits": append([]byte{0x12}, bytes.Repeat([]byte{0xff}, 11)...),
		"records twice":       {0x12, 1, 1, 0x12, 1, 1},
		"hello and records":   both,
		"broken hello":        {0x0a, 9, 1},
		"huge hello":          marshal(t, &transfer.Frame{Hello: &seguev1.ReplicateHello{NodeId: string(make([]byte, 1<<16))}}),
	} {
		f := transfer.Frame{Records: [][]byte{{1}}}
		if err := (transfer.Codec{}).Unmarshal(cut(b, 2), &f); !errors.Is(err, transfer.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		if f.Hello != nil {
			t.Errorf("%s: a hello is left", name)
		}
	}
}

// pool counts the buffers that are out.
type pool struct{ out int }

func (p *pool) Get(n int) *[]byte {
	p.out++
	b := make([]byte, n)
	return &b
}

func (p *pool) Put(*[]byte) { p.out-- }

// Every received buffer goes back to its pool exactly once, read or not (G10).
func TestFrame_FreesBuffers(t *testing.T) {
	b := marshal(t, &transfer.Frame{Records: [][]byte{make([]byte, 20000)}})
	for _, read := range []int{0, 1, 5000, 20000} {
		var p pool
		var data mem.BufferSlice
		for at := 0; at < len(b); at += 4096 {
			buf := p.Get(4096)
			n := copy(*buf, b[at:])
			*buf = (*buf)[:n]
			data = append(data, mem.NewBuffer(buf, &p))
		}
		var f transfer.Frame
		if err := (transfer.Codec{}).Unmarshal(data, &f); err != nil {
			t.Fatal(err)
		}
		data.Free() // the transport's reference
		if p.out != len(data) {
			t.Fatalf("%d of %d buffers are out while the frame is in use", p.out, len(data))
		}
		r := f.Reader()
		if _, err := io.ReadFull(r, make([]byte, read)); err != nil {
			t.Fatal(err)
		}
		if p.out != len(data) {
			t.Fatalf("%d of %d buffers are out before Free", p.out, len(data))
		}
		_ = r.Close()
		f.Free()
		if p.out != 0 {
			t.Fatalf("%d buffers stay out after reading %d bytes", p.out, read)
		}
	}
}
