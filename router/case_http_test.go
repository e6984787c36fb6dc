// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/fleet"
)

// onSockets starts a router over real sockets with one scripted agent, and returns its address.
func onSockets(t *testing.T, a *agent) *url.URL {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	seguev1.RegisterNodeServiceServer(server, a)
	go server.Serve(listener) // ends with Stop
	t.Cleanup(server.Stop)
	cfg := router.DefaultConfig()
	cfg.Listen, cfg.Admin = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Agents = []fleet.Member{{ID: a.id, Addr: listener.Addr().String()}}
	addrs := make(chan string, 1)
	r, err := router.New(cfg, router.Deps{Listening: func(client, _ net.Addr) { addrs <- client.String() }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }() // ends with stop
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return &url.URL{Scheme: "http", Host: <-addrs}
}

// The cut shows on the wire itself: an error event and no [DONE], in a body that ends as a body should, over HTTP/1.1
// and behind a front end that speaks HTTP/2.
func TestCase_C10_CutIsVisibleOverHTTP1AndHTTP2(t *testing.T) {
	a := newAgent("a")
	a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
		e.begin("", 3)
		return refusal(seguev1.Reason_REASON_ENGINE_LOST, "signal: killed")
	}
	at := onSockets(t, a)
	front := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(at) },
		FlushInterval: -1,
	})
	front.EnableHTTP2 = true
	front.StartTLS()
	defer front.Close()
	for major, c := range map[int]struct {
		client *http.Client
		url    string
	}{
		1: {&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, at.String()},
		2: {front.Client(), front.URL},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/chat/completions", strings.NewReader(chat(true, "")))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Segue-Protection", "off")
		resp, err := c.client.Do(req)
		if err != nil {
			t.Fatalf("HTTP/%d: %v", major, err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		text := string(body)
		if err != nil || resp.ProtoMajor != major || resp.StatusCode != http.StatusOK {
			t.Errorf("HTTP/%d: %s, status %d, the body ends with %v", major, resp.Proto, resp.StatusCode, err)
		}
		if strings.Contains(text, "[DONE]") || strings.Contains(text, `"finish_reason":"stop"`) || !strings.Contains(text, word(2)) {
			t.Errorf("HTTP/%d: %s", major, text)
		}
		last := text[strings.LastIndex(strings.TrimSpace(text), "\n")+1:]
		if !strings.HasPrefix(last, `data: {"error":{`) || !strings.Contains(last, `"delivered_output_tokens":3`) {
			t.Errorf("HTTP/%d: the last event is %s", major, last)
		}
	}
}
