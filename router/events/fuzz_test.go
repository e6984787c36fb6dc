// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package events_test

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router/events"
)

// agree decodes b as protobuf does and into a message that has held a token, whole and in two pieces.
func agree(tb interface {
	Helper()
	Fatalf(string, ...any)
}, b, before []byte, cut int,
) {
	tb.Helper()
	var want seguev1.GenerateResponse
	wantErr := proto.Unmarshal(b, &want)
	for _, cuts := range [][]int{nil, {cut}} {
		var m events.Message
		if err := events.NewCodec().Unmarshal(pieces(before), &m); err != nil {
			tb.Fatalf("token before: %v", err)
		}
		err := events.NewCodec().Unmarshal(pieces(b, cuts...), &m)
		if (err == nil) != (wantErr == nil) {
			tb.Fatalf("%x gives error %v, with protobuf %v", b, err, wantErr)
		}
		if err == nil && !proto.Equal(m.Event(), want.GetEvent()) {
			tb.Fatalf("%x gives %v, with protobuf %v", b, m.Event(), want.GetEvent())
		}
		if err != nil && m.Event() != nil {
			tb.Fatalf("%x gives %v and %v", b, m.Event(), err)
		}
	}
}

// wrapped is a response with a token of these bytes.
func wrapped(token ...byte) []byte {
	event := protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), token)
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), event)
}

// FuzzCodec decodes arbitrary responses: what is accepted is what protobuf accepts, with the same event.
func FuzzCodec(f *testing.F) {
	before := generated(f, tokenEvent(full(f)))
	for _, seed := range [][]byte{
		nil, before, before[:len(before)-1], append(before, before...), generated(f, finishEvent(3)), generated(f, &seguev1.Event{}),
		generated(f, tokenEvent(&seguev1.Token{})), generated(f, tokenEvent(&seguev1.Token{Id: -1})),
		wrapped(0x1a, 1, 'a', 0x1a, 1, 'b'),       // two texts
		wrapped(0x18, 0),                          // a varint as text
		wrapped(0x0d, 0x80, 0x80, 0x80, 1),        // a fixed32 as index
		wrapped(0x08, 0x80, 0x80, 0x80, 0x80, 16), // an index of 33 bits
		wrapped(0x30, 1),                          // an unknown field
	} {
		f.Add(seed, uint16(1))
	}
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) { agree(t, b, before, int(cut)%(len(b)+1)) })
}

// TestCodec_AgreesWithProtobuf makes responses whose tokens have fields in any order and number, of any wire type, and some
// that no message has.
func TestCodec_AgreesWithProtobuf(t *testing.T) {
	before := generated(t, tokenEvent(full(t)))
	rapid.Check(t, func(rt *rapid.T) {
		b := message(rt, "response", []protowire.Number{1, 1, 1, 1, 1, 1, 2}, 2, func() []byte {
			return message(rt, "event", []protowire.Number{4, 4, 4, 4, 4, 1, 2, 3, 5, 6, 7}, 2, func() []byte {
				return message(rt, "token", []protowire.Number{1, 2, 3, 3, 4, 5, 6}, 8, func() []byte {
					return rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(rt, "bytes")
				})
			})
		})
		agree(rt, b, before, rapid.IntRange(0, len(b)).Draw(rt, "cut"))
	})
}

// message has up to most of the fields, mostly with inner as their bytes if they aren't of a token, and mostly varints else.
func message(rt *rapid.T, name string, fields []protowire.Number, most int, inner func() []byte) []byte {
	var b []byte
	for range rapid.IntRange(0, most).Draw(rt, name+" fields") {
		number := rapid.SampledFrom(fields).Draw(rt, name+" field")
		kind := protowire.BytesType
		if name == "token" && number != 3 {
			kind = protowire.VarintType
		}
		if rapid.IntRange(0, 19).Draw(rt, "odd type") == 0 {
			kind = rapid.SampledFrom([]protowire.Type{protowire.VarintType, protowire.Fixed32Type, protowire.Fixed64Type, protowire.BytesType}).Draw(rt, "type")
		}
		b = protowire.AppendTag(b, number, kind)
		switch kind {
		case protowire.VarintType:
			b = protowire.AppendVarint(b, rapid.Uint64().Draw(rt, "varint"))
		case protowire.Fixed32Type:
			b = protowire.AppendFixed32(b, rapid.Uint32().Draw(rt, "fixed32"))
		case protowire.Fixed64Type:
			b = protowire.AppendFixed64(b, rapid.Uint64().Draw(rt, "fixed64"))
		default:
			b = protowire.AppendBytes(b, inner())
		}
	}
	return b
}
