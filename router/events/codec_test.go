// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package events_test

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router/events"
)

func encode(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func generated(tb testing.TB, e *seguev1.Event) []byte {
	return encode(tb, &seguev1.GenerateResponse{Event: e})
}

func tokenEvent(t *seguev1.Token) *seguev1.Event {
	return &seguev1.Event{Event: &seguev1.Event_Token{Token: t}}
}

func finishEvent(n uint32) *seguev1.Event {
	return &seguev1.Event{Event: &seguev1.Event_Finish{Finish: &seguev1.Finish{Tokens: n, Reason: "stop"}}}
}

// decode decodes b, in pieces that end at the cuts, and fails the test unless that works.
func decode(tb testing.TB, m *events.Message, b []byte, cuts ...int) {
	tb.Helper()
	if err := events.NewCodec().Unmarshal(pieces(b, cuts...), m); err != nil {
		tb.Fatal(err)
	}
}

func pieces(b []byte, cuts ...int) mem.BufferSlice {
	var s mem.BufferSlice
	from := 0
	for _, to := range append(cuts, len(b)) {
		s = append(s, mem.SliceBuffer(b[from:to]))
		from = to
	}
	return s
}

// full is a token with a value in each field that the descriptor has.
func full(tb testing.TB) *seguev1.Token {
	t := &seguev1.Token{}
	r := t.ProtoReflect()
	fields := r.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		n := uint64(1)<<40 + uint64(i)
		switch f.Kind() {
		case protoreflect.Uint32Kind:
			r.Set(f, protoreflect.ValueOfUint32(uint32(n)+1))
		case protoreflect.Int32Kind:
			r.Set(f, protoreflect.ValueOfInt32(-int32(i)-1))
		case protoreflect.Uint64Kind:
			r.Set(f, protoreflect.ValueOfUint64(n))
		case protoreflect.BytesKind:
			r.Set(f, protoreflect.ValueOfBytes([]byte("wörd ")))
		default:
			tb.Fatalf("no value for field %s", f.FullName())
		}
	}
	return t
}

func TestMessage_LendsTokens(t *testing.T) {
	var m events.Message
	want := full(t)
	decode(t, &m, generated(t, tokenEvent(want)))
	first := m.Event()
	if !proto.Equal(first.GetToken(), want) {
		t.Fatalf("got %v, want %v", first, want)
	}
	// Both responses are the same on the wire.
	decode(t, &m, encode(t, &seguev1.TakeoverResponse{Event: tokenEvent(&seguev1.Token{Index: 7})}))
	if m.Event() != first {
		t.Error("another event")
	}
	if want := (&seguev1.Token{Index: 7}); !proto.Equal(m.Event().GetToken(), want) {
		t.Errorf("got %v, want %v", m.Event(), want)
	}
	data, codec := pieces(generated(t, tokenEvent(want))), events.NewCodec()
	if n := testing.AllocsPerRun(100, func() {
		if err := codec.Unmarshal(data, &m); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per token", n)
	}
}

func TestMessage_KeepsOtherEvents(t *testing.T) {
	var m events.Message
	token := generated(t, tokenEvent(full(t)))
	decode(t, &m, token)
	decode(t, &m, generated(t, finishEvent(1)))
	finish := m.Event()
	decode(t, &m, generated(t, finishEvent(2)))
	decode(t, &m, token)
	if !proto.Equal(finish, finishEvent(1)) {
		t.Errorf("became %v", finish)
	}
	decode(t, &m, nil)
	if m.Event() != nil {
		t.Errorf("a response without event gives %v", m.Event())
	}
}

func TestMessage_KeepsNoMemoryOfLongTokens(t *testing.T) {
	var m events.Message
	long := &seguev1.Token{Text: bytes.Repeat([]byte("x"), 1<<20)}
	decode(t, &m, generated(t, tokenEvent(long)))
	if !proto.Equal(m.Event().GetToken(), long) {
		t.Error("another token")
	}
	decode(t, &m, generated(t, tokenEvent(&seguev1.Token{Text: []byte("x")})))
	if n := cap(m.Event().GetToken().GetText()); n > 2<<10 {
		t.Errorf("%d bytes kept", n)
	}
}

func TestCodec_IsGRPCsForOtherMessages(t *testing.T) {
	codec := events.NewCodec()
	if codec.Name() != "proto" {
		t.Errorf("name %q", codec.Name())
	}
	want := &seguev1.GenerateRequest{Session: []byte("session"), Epoch: 7}
	data, err := codec.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got seguev1.GenerateRequest
	if err := codec.Unmarshal(data, &got); err != nil || !proto.Equal(&got, want) {
		t.Errorf("%v, %v", &got, err)
	}
	if err := codec.Unmarshal(data, "no message"); err == nil {
		t.Error("decoded into a string")
	}
}
