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
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/fleet"
)

// Real sockets, ports by the system, everything else by default.
func TestRouter_RealSockets(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := newAgent("a")
	server := grpc.NewServer()
	seguev1.RegisterNodeServiceServer(server, a)
	go server.Serve(listener) // ends with Stop
	defer server.Stop()

	cfg := router.DefaultConfig()
	cfg.Listen, cfg.Admin = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Agents = []fleet.Member{{ID: "a", Addr: listener.Addr().String()}}
	addrs := make(chan [2]string, 1)
	r, err := router.New(cfg, router.Deps{Listening: func(client, admin net.Addr) { addrs <- [2]string{client.String(), admin.String()} }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }() // ends with stop
	at := <-addrs
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at[0]+"/v1/chat/completions", strings.NewReader(chat(true, "")))
	if err != nil {
		t.Fatal(err)
	}
	// No waiting for readiness: the queue covers the start.
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
		t.Errorf("%v: %s", err, text)
	}
	ready, err := http.Get("http://" + at[1] + "/readyz")
	if err != nil || ready.StatusCode != http.StatusOK {
		t.Errorf("readyz: %v %v", ready, err)
	}
	ready.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestConfig_YAML(t *testing.T) {
	const file = `
listen: 127.0.0.1:0
upstreams:
  - {id: u, url: "http://127.0.0.1:8000", models: [m], weight: 2}
agents:
- {id: a, addr: "127.0.0.1:7070"}
protection: async
commit_timeout: 250ms
queue: {depth: 3, wait: 1s}
`
	got := router.DefaultConfig()
	dec := yaml.NewDecoder(strings.NewReader(file))
	dec.KnownFields(true)
	if err := dec.Decode(&got); err != nil {
		t.Fatal(err)
	}
	want := router.DefaultConfig()
	want.Listen, want.Protection, want.CommitTimeout = "127.0.0.1:0", router.ProtectionAsync, 250*time.Millisecond
	want.Agents = []fleet.Member{{ID: "a", Addr: "127.0.0.1:7070"}}
	want.Queue = router.Queue{Depth: 3, Wait: time.Second}
	want.Upstreams = []router.Upstream{{ID: "u", URL: "http://127.0.0.1:8000", Models: []string{"m"}, Weight: 2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	text, err := yaml.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var again router.Config
	if err := yaml.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, again); diff != "" {
		t.Errorf("round trip (-want +got):\n%s", diff)
	}
}
