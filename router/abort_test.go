// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/fleet"
)

// halfClosed sends a request over TCP, closes the sending side once ready says so, and returns the response with
// its body as far as it came.
func halfClosed(t *testing.T, addr, request string, ready func(*bufio.Reader)) (resp *http.Response, text string, err error) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\nContent-Length: %d\r\n\r\n%s", len(request), request)
	reader := bufio.NewReader(conn)
	ready(reader)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	resp, err = http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	return resp, string(b), err
}

// A client that has closed its sending side still reads: it must not take what came for the whole answer.
func TestRouter_HalfClosedClient(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := newAgent("a")
	started := make(chan struct{}, 2)
	a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
		e.begin("", 3)
		started <- struct{}{}
		return e.hang()
	}
	server := grpc.NewServer()
	seguev1.RegisterNodeServiceServer(server, a)
	go server.Serve(listener) // ends with Stop
	defer server.Stop()
	cfg := router.DefaultConfig()
	cfg.Listen, cfg.Admin, cfg.StallTimeout = "127.0.0.1:0", "127.0.0.1:0", time.Minute
	cfg.Lease.TTL = 2 * time.Minute
	cfg.Agents = []fleet.Member{{ID: "a", Addr: listener.Addr().String()}}
	addrs := make(chan string, 1)
	r, err := router.New(cfg, router.Deps{Listening: func(client, _ net.Addr) { addrs <- client.String() }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }() // ends with stop
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	}()
	addr := <-addrs

	_, text, err := halfClosed(t, addr, chat(true, ""), func(r *bufio.Reader) {
		<-started
		for { // until the content is here
			b, err := r.Peek(r.Buffered())
			if err != nil || bytes.Contains(b, []byte("w2 ")) {
				return
			}
			if _, err := r.Peek(r.Buffered() + 1); err != nil {
				return
			}
		}
	})
	if err == nil && (!strings.Contains(text, `"code":"upstream_decode_interrupted"`) || !strings.Contains(text, `"delivered_output_tokens":3`) || !strings.HasSuffix(text, "\n\n")) {
		t.Errorf("a stream that looks complete: %s", text)
	}
	if strings.Contains(text, "[DONE]") {
		t.Errorf("stream: %s", text)
	}

	resp, text, err := halfClosed(t, addr, chat(false, ""), func(*bufio.Reader) { <-started })
	var e struct {
		Error errorObject `json:"error"`
	}
	if err != nil || json.Unmarshal([]byte(text), &e) != nil || resp.StatusCode != 499 || e.Error.Code != "client_closed_request" || e.Error.Cause != "client_gone" || e.Error.Retryable {
		t.Errorf("status %d, %v: %q", resp.StatusCode, err, text)
	}
}

// deaf is a connection whose other side may end its sending without closing.
type deaf struct {
	net.Conn
	eof *atomic.Bool
}

func (d deaf) Read(b []byte) (int, error) {
	n, err := d.Conn.Read(b)
	if d.eof.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
		return n, io.EOF
	}
	return n, err
}

// A half-closed client that doesn't read either: no word can reach it, but no good end does.
func TestRouter_UnfinishedAnswerIsCutOff(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a := w.agents["a"]
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.begin("b", 3)
			return e.hang()
		}
		client, served := net.Pipe()
		defer client.Close()
		var eof atomic.Bool
		w.client.conns <- deaf{served, &eof}
		request := chat(true, "")
		fmt.Fprintf(client, "POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\nContent-Length: %d\r\n\r\n%s", len(request), request)
		reader := bufio.NewReader(client)
		resp, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		for text := ""; !strings.Contains(text, "w2 "); {
			buf := make([]byte, 256)
			n, err := resp.Body.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			text += string(buf[:n])
		}
		synctest.Wait()
		eof.Store(true)
		served.SetReadDeadline(time.Now())
		time.Sleep(1500 * time.Millisecond)
		if n := w.counter("segue_router_sessions_total", "client_gone"); n != 1 {
			t.Errorf("client_gone sessions: %v", n)
		}
		if text, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("a good end after %q", text)
		}
		if c := a.calls(); len(c.cancels) != 1 {
			t.Errorf("cancels: %v", c.cancels)
		}
		if live := w.counter("segue_router_active_sessions"); live != 0 {
			t.Errorf("%v sessions are left", live)
		}
	})
}
