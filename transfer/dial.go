// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package transfer

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// Bulk connections move KV rows: large static windows, so that a frame is never cut up waiting for window
// updates, and buffers of a frame's size, so that it costs few system calls.
const (
	bulkWindow = 16 << 20
	bulkBuffer = 1 << 20
)

// DialOptions are the options of a bulk connection to a peer.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(bulkWindow),
		grpc.WithStaticConnWindowSize(bulkWindow),
		grpc.WithReadBufferSize(64 << 10),
		grpc.WithWriteBufferSize(bulkBuffer),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: backoffMin, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 250 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
	}
}

// ServerOptions are the options of an agent's server.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec{}),
		grpc.MaxRecvMsgSize(MaxFrameBytes),
		grpc.StaticStreamWindowSize(bulkWindow),
		grpc.StaticConnWindowSize(bulkWindow),
		grpc.ReadBufferSize(bulkBuffer),
		grpc.WriteBufferSize(64 << 10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
	}
}
