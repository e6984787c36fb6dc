// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"fmt"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/router"
)

// uploads opens n requests whose bodies don't end.
func (w *world) uploads(n int) []net.Conn {
	w.t.Helper()
	list := make([]net.Conn, n)
	for i := range list {
		conn, err := w.client.dial(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\nContent-Length: 100\r\n\r\n{")
		list[i] = conn
	}
	synctest.Wait()
	return list
}

// Request bodies are read before any admission, so their number is bounded by itself.
func TestRouter_BodiesAreBounded(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		for _, conn := range w.uploads(router.BodiesAtOnce) {
			defer conn.Close()
		}
		start := time.Now()
		resp := w.post("/v1/chat/completions", chat(true, ""))
		e := w.failure(resp)
		if resp.StatusCode != http.StatusServiceUnavailable || e.Code != "no_capacity" || e.Cause != "no_capacity" || !e.Retryable || resp.Header.Get("Retry-After") == "" {
			t.Errorf("status %d: %+v", resp.StatusCode, e)
		}
		within(t, "the refusal", time.Since(start), router.BodyWait, router.BodyWait)
		if n := len(w.agents["a"].calls().generates); n != 0 {
			t.Errorf("%d runs", n)
		}
	})
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		uploads := w.uploads(router.BodiesAtOnce)
		for _, conn := range uploads {
			defer conn.Close()
		}
		go func() {
			time.Sleep(3 * time.Second)
			uploads[0].Close()
		}()
		start := time.Now()
		if tr := w.stream(w.post("/v1/chat/completions", chat(true, ""))); !tr.done {
			t.Errorf("%s", tr.raw)
		}
		within(t, "the answer", time.Since(start), 3*time.Second, 3*time.Second)
	})
}
