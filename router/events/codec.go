// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package events

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// Field numbers of segue.v1. Event is the same one in GenerateResponse and TakeoverResponse.
const (
	fieldEvent   = 1
	fieldToken   = 4 // of Event
	fieldIndex   = 1 // these of Token
	fieldID      = 2
	fieldText    = 3
	fieldTextEnd = 4
	fieldRawEnd  = 5
)

// lendLimit bounds what a message keeps between its uses, in bytes of one encoded response.
const lendLimit = 1 << 10

// Message is a GenerateResponse or TakeoverResponse that the codec decodes. The zero value is ready for use. It must
// not be copied.
type Message struct {
	event *seguev1.Event
	// What event points to when it is a token.
	lent  seguev1.Event
	inner seguev1.Event_Token
	token seguev1.Token
}

// Event is the response's event, or nil if it has none. One with a token, its text included, is valid until the message
// is decoded into again; any other stays as it is.
func (m *Message) Event() *seguev1.Event { return m.event }

// Codec is gRPC's codec for protobuf, which also decodes into a *Message. The bytes are the same: any agent that speaks
// protobuf can be called with it. It has no state of its own.
type Codec struct{ encoding.CodecV2 }

// NewCodec returns a codec, for grpc.ForceCodecV2.
func NewCodec() Codec { return Codec{encoding.GetCodecV2(proto.Name)} }

// Unmarshal decodes into a *Message or a protobuf message. What isn't exactly one short token is left to gRPC's codec, so
// that it alone decides what is an error and what to skip.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*Message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if len(data) == 1 && m.lend(data[0].ReadOnlyData()) {
		return nil
	}
	m.event = nil
	var r seguev1.GenerateResponse
	if err := c.CodecV2.Unmarshal(data, &r); err != nil {
		return err
	}
	m.event = r.GetEvent()
	return nil
}

// lend decodes response into m and reports true if it is one token of known fields and short.
func (m *Message) lend(response []byte) bool {
	if len(response) > lendLimit {
		return false
	}
	event, ok := sole(response, fieldEvent)
	if !ok {
		return false
	}
	fields, ok := sole(event, fieldToken)
	if !ok {
		return false
	}
	t := &m.token
	t.Index, t.Id, t.Text, t.TextEnd, t.RawEnd = 0, 0, t.Text[:0], 0, 0
	for len(fields) > 0 {
		number, kind, n := protowire.ConsumeTag(fields)
		if n < 0 {
			return false
		}
		fields = fields[n:]
		if number == fieldText && kind == protowire.BytesType {
			text, n := protowire.ConsumeBytes(fields)
			if n < 0 {
				return false
			}
			t.Text, fields = append(t.Text[:0], text...), fields[n:]
			continue
		}
		if kind != protowire.VarintType {
			return false
		}
		v, n := protowire.ConsumeVarint(fields)
		if n < 0 {
			return false
		}
		fields = fields[n:]
		switch number {
		case fieldIndex:
			t.Index = uint32(v)
		case fieldID:
			t.Id = int32(v)
		case fieldTextEnd:
			t.TextEnd = v
		case fieldRawEnd:
			t.RawEnd = v
		default:
			return false
		}
	}
	m.inner.Token, m.lent.Event, m.event = t, &m.inner, &m.lent
	return true
}

// sole returns the bytes of a message whose only field is that one.
func sole(message []byte, field protowire.Number) ([]byte, bool) {
	number, kind, n := protowire.ConsumeTag(message)
	if n < 0 || number != field || kind != protowire.BytesType {
		return nil, false
	}
	inner, k := protowire.ConsumeBytes(message[n:])
	return inner, k >= 0 && n+k == len(message)
}
