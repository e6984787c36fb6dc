// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer_test

import (
	"context"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/transfer"
)

// direct is the server's side of a stream without a connection: it delivers what is in in, then io.EOF, and
// keeps the answers.
type direct struct {
	grpc.ServerStream
	ctx context.Context
	in  []any
	out []*seguev1.ReplicateResponse
}

func (d *direct) Context() context.Context { return d.ctx }

// RecvMsg passes the next message through the codec, as gRPC does.
func (d *direct) RecvMsg(m any) error {
	if len(d.in) == 0 {
		return io.EOF
	}
	b, err := transfer.Codec{}.Marshal(d.in[0])
	if err != nil {
		return err
	}
	d.in = d.in[1:]
	flat := b.Materialize()
	var data mem.BufferSlice
	for len(flat) > 0 {
		n := min(len(flat), 1000)
		data = append(data, mem.SliceBuffer(flat[:n]))
		flat = flat[n:]
	}
	return transfer.Codec{}.Unmarshal(data, m)
}

func (d *direct) Send(m *seguev1.ReplicateResponse) error {
	d.out = append(d.out, m)
	return nil
}

// Recv isn't how the receiver reads.
func (d *direct) Recv() (*seguev1.ReplicateRequest, error) {
	return nil, fmt.Errorf("recv of a protobuf message")
}
