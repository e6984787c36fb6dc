// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/fleet"
)

// BenchmarkRouter_Token is the whole way of one token over loopback: agent, gate, chunk, client.
func BenchmarkRouter_Token(b *testing.B) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	a := newAgent("a")
	a.generate = func(_ *seguev1.GenerateRequest, e *events) error { return e.whole(b.N) }
	server := grpc.NewServer()
	seguev1.RegisterNodeServiceServer(server, a)
	go server.Serve(listener) // ends with Stop
	defer server.Stop()
	cfg := router.DefaultConfig()
	cfg.Listen, cfg.Admin = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Agents = []fleet.Member{{ID: "a", Addr: listener.Addr().String()}}
	addrs := make(chan string, 1)
	r, err := router.New(cfg, router.Deps{Listening: func(client, _ net.Addr) { addrs <- client.String() }})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }() // ends with stop
	at := <-addrs
	b.ReportAllocs()
	b.ResetTimer()
	resp, err := http.Post("http://"+at+"/v1/chat/completions", "application/json", strings.NewReader(chat(true, `"return_token_ids":true`)))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	stop()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
