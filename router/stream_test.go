// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
)

var update = flag.Bool("update", false, "rewrite golden transcripts")

var variable = regexp.MustCompile(`(chatcmpl-|cmpl-|req_)[0-9a-f]+`)

// golden compares a body, with minted ids replaced, with testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	got = variable.ReplaceAllString(got, "${1}ID")
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func body(t *testing.T, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// held is a script with text held back and released later, a token without text, and a stop string at the
// end: the released text is shorter than what was produced.
func held(_ *seguev1.GenerateRequest, e *events) error {
	if err := e.begin("b", 1); err != nil {
		return err
	}
	for _, step := range []struct {
		text string
		held int
	}{{"", 2}, {"\u00e9<", 0}, {"", 0}, {"\U0001f600\n", 0}, {"", 4}} {
		if err := e.text(step.text, step.held); err != nil {
			return err
		}
	}
	return e.finish("stop")
}

func TestRouter_StreamGolden(t *testing.T) {
	for _, tt := range []struct {
		name, path, body string
	}{
		{"chat.sse", "/v1/chat/completions", chat(true, `"return_token_ids":true,"stream_options":{"include_usage":true}`)},
		{"chat_plain.sse", "/v1/chat/completions", chat(true, "")},
		{"completion.sse", "/v1/completions", `{"model":"sim","prompt":"hi","stream":true,"return_token_ids":true}`},
		{"chat.json", "/v1/chat/completions", chat(false, `"return_token_ids":true`)},
		{"completion.json", "/v1/completions", `{"model":"sim","prompt":[1,2,3]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, "a b", nil, func(t *testing.T, w *world) {
				w.agents["a"].generate = held
				resp := w.post(tt.path, tt.body)
				golden(t, tt.name, body(t, resp))
				if got, want := resp.Header.Get("X-Segue-Protection"), "sync"; got != want {
					t.Errorf("X-Segue-Protection = %q, want %q", got, want)
				}
				info := w.session(resp)
				if info.Phase != "done" || info.AcceptedTokens != 6 || info.DeliveredTokens != 6 || info.Finish != "stop" {
					t.Errorf("session %+v", info)
				}
			})
		})
	}
}

func TestRouter_StreamHeaders(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		resp := w.post("/v1/chat/completions", chat(true, ""), "X-Request-Id", "mine-1")
		w.stream(resp)
		want := map[string]string{
			"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no",
			"X-Request-Id": "mine-1", "Content-Encoding": "",
		}
		for k, v := range want {
			if got := resp.Header.Get(k); got != v {
				t.Errorf("%s = %q, want %q", k, got, v)
			}
		}
		if id := resp.Header.Get("X-Segue-Session"); len(id) != 32 {
			t.Errorf("X-Segue-Session = %q", id)
		}
	})
}

func TestRouter_SendsCompleteRequest(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		resp := w.post("/v1/chat/completions", chat(false, `"temperature":0.5,"stop":"END","max_completion_tokens":7`))
		body(t, resp)
		g := w.agents["a"].calls().generates[0]
		info := w.session(resp)
		if g.GetEpoch() != 1 || g.GetHolder().GetId() != "b" || g.GetHolder().GetAddr() != "b:1" || g.GetProtection() != seguev1.ProtectionMode_PROTECTION_MODE_SYNC ||
			g.GetWindow() != 32 || g.GetCommitTimeoutMs() != 500 || g.GetRequireProtection() {
			t.Errorf("generate %v", g)
		}
		r := g.GetRequest()
		if r.GetSampling().GetSeed() != info.Seed || info.Seed == 0 || info.Seed >= 1<<53 {
			t.Errorf("seed %d, in the record %d", r.GetSampling().GetSeed(), info.Seed)
		}
		if r.GetSampling().GetTemperature() != 0.5 || r.GetSampling().GetTopP() != 1 || r.GetMaxTokens() != 7 || len(r.GetStop()) != 1 {
			t.Errorf("request %v", r)
		}
		if m := r.GetChat().GetMessages(); len(m) != 1 || m[0].GetRole() != "user" {
			t.Errorf("messages %v: no system prompt may be inserted", m)
		}
	})
}

func TestRouter_KeepsClientSeed(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		resp := w.post("/v1/completions", `{"model":"sim","prompt":"x","seed":18446744073709551615}`)
		body(t, resp)
		if got := w.agents["a"].calls().generates[0].GetRequest().GetSampling().GetSeed(); got != 1<<64-1 {
			t.Errorf("seed %d", got)
		}
	})
}

func TestRouter_HoldsHeaders(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error {
			for range 45 { // a long prefill
				if err := e.progress(0, 0, 0); err != nil {
					return err
				}
				time.Sleep(time.Second)
			}
			return e.whole(2)
		}
		start := time.Now()
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if held := time.Since(start); held != 10*time.Second {
			t.Errorf("headers came after %v, want header_hold", held)
		}
		tr := w.stream(resp)
		// At 10 s, 25 s and 40 s.
		if tr.comments != 3 || tr.text != words(0, 2) || !tr.done || tr.roles != 1 {
			t.Errorf("%d comments: %s", tr.comments, tr.raw)
		}
	})
}

func TestRouter_FirstByteIsFirstContent(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error {
			if err := e.prompt(); err != nil {
				return err
			}
			time.Sleep(1500 * time.Millisecond)
			return e.whole(2)
		}
		start := time.Now()
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if held := time.Since(start); held != 1500*time.Millisecond {
			t.Errorf("headers after %v", held)
		}
		w.stream(resp)
	})
}

func TestRouter_FlushesEveryEvent(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error {
			for i := range 3 {
				if err := e.begin("", i+1); err != nil {
					return err
				}
				time.Sleep(time.Second)
			}
			return e.finish("stop")
		}
		start := time.Now()
		resp := w.post("/v1/chat/completions", chat(true, ""))
		defer resp.Body.Close()
		buf := make([]byte, 4096)
		for i := range 3 {
			read := ""
			for !strings.Contains(read, word(i)) {
				n, err := resp.Body.Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				read += string(buf[:n])
			}
			if got, want := time.Since(start), time.Duration(i)*time.Second; got != want {
				t.Errorf("token %d came at %v, want %v", i, got, want)
			}
		}
		io.Copy(io.Discard, resp.Body)
	})
}

func TestRouter_NoContentAtAll(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.prompt()
			e.text("", 0)
			return e.finish("stop")
		}
		tr := w.stream(w.post("/v1/chat/completions", chat(true, `"return_token_ids":true`)))
		if tr.roles != 1 || tr.text != "" || tr.finish != "stop" || !tr.done || len(tr.ids) != 1 {
			t.Errorf("%s", tr.raw)
		}
	})
}

func TestRouter_Protection(t *testing.T) {
	for _, tt := range []struct {
		name, agents, header, want string
		wire                       seguev1.ProtectionMode
		holder                     string
	}{
		{"default", "a b", "", "sync", seguev1.ProtectionMode_PROTECTION_MODE_SYNC, "b"},
		{"async", "a b", "async", "async", seguev1.ProtectionMode_PROTECTION_MODE_ASYNC, "b"},
		{"off", "a b", "OFF", "off", seguev1.ProtectionMode_PROTECTION_MODE_OFF, ""},
		{"alone", "a", "sync", "none; reason=no_holder", seguev1.ProtectionMode_PROTECTION_MODE_SYNC, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, tt.agents, nil, func(t *testing.T, w *world) {
				var header []string
				if tt.header != "" {
					header = []string{"X-Segue-Protection", tt.header}
				}
				resp := w.post("/v1/chat/completions", chat(true, ""), header...)
				w.stream(resp)
				if got := resp.Header.Get("X-Segue-Protection"); got != tt.want {
					t.Errorf("granted %q, want %q", got, tt.want)
				}
				g := w.agents["a"].calls().generates[0]
				if g.GetProtection() != tt.wire || g.GetHolder().GetId() != tt.holder {
					t.Errorf("generate %v", g)
				}
			})
		})
	}
}

func TestRouter_ReportsLostProtection(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.prompt()
			e.protection("b", "store_full")
			return e.whole(2)
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		w.stream(resp)
		if got := resp.Header.Get("X-Segue-Protection"); got != "none; reason=store_full" {
			t.Errorf("granted %q", got)
		}
		want := []router.ProtectionInfo{{Holder: "b", Cause: "store_full"}}
		if diff := cmp.Diff(want, w.session(resp).ProtectionLog); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

func TestRouter_PrimariesAlternate(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		for range 4 {
			w.stream(w.post("/v1/chat/completions", chat(true, "")))
			w.settle()
		}
		a, b := w.agents["a"].calls(), w.agents["b"].calls()
		if len(a.generates) != 2 || len(b.generates) != 2 {
			t.Errorf("%d sessions on a, %d on b", len(a.generates), len(b.generates))
		}
		// Each was held by the other, and cancelled there with its epoch.
		if len(a.cancels) != 2 || len(b.cancels) != 2 || b.cancels[0].GetEpoch() != 1 || !bytes.Equal(b.cancels[0].GetSession(), a.generates[0].GetSession()) {
			t.Errorf("cancels on a %v, on b %v", a.cancels, b.cancels)
		}
	})
}

func TestRouter_ClientLeaves(t *testing.T) {
	for _, stream := range []bool{true, false} {
		bubble(t, "a b", nil, func(t *testing.T, w *world) {
			w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error {
				if err := e.begin("b", 3); err != nil {
					return err
				}
				return e.hang()
			}
			ctx, cancel := newTestContext(t)
			var resp *http.Response
			done := make(chan error, 1)
			go func() {
				var err error
				resp, err = w.tryPost(ctx, "/v1/chat/completions", chat(stream, ""))
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
				}
				done <- err
			}()
			time.Sleep(time.Second)
			cancel()
			if err := <-done; err == nil {
				t.Error("the request went on")
			}
			w.settle()
			a, b := w.agents["a"].calls(), w.agents["b"].calls()
			if len(a.cancels) != 1 || a.cancels[0].GetEpoch() != 1 || a.ended != 1 {
				t.Errorf("cancels on the primary: %v, streams ended: %d", a.cancels, a.ended)
			}
			// Not a release: the base may arrive after it.
			if len(b.cancels) != 1 || b.cancels[0].GetEpoch() != 2 || len(b.takeovers) != 0 || len(b.generates) != 0 {
				t.Errorf("holder: %+v", b)
			}
			if n := w.counter("segue_router_sessions_total", "client_gone"); n != 1 {
				t.Errorf("client_gone sessions: %v", n)
			}
		})
	}
}

func TestRouter_SlowClient(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		resp := w.post("/v1/chat/completions", chat(true, ""))
		defer resp.Body.Close()
		time.Sleep(20 * time.Second) // less than client_stall, more than stall_timeout
		tr := w.stream(resp)
		if tr.text != words(0, 5) || !tr.done {
			t.Errorf("%s", tr.raw)
		}
		if n := len(w.session(resp).Attempts); n != 1 {
			t.Errorf("%d attempts", n)
		}
	})
}

func TestRouter_DeadClientIsCut(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error { return e.begin("b", 1_000) }
		conn, err := w.client.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		request := chat(true, "")
		io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\nContent-Length: "+jsonInt(len(request))+"\r\n\r\n"+request)
		time.Sleep(29 * time.Second)
		if n := w.counter("segue_router_sessions_total", "client_gone"); n != 0 {
			t.Error("cut too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := w.counter("segue_router_sessions_total", "client_gone"); n != 1 {
			t.Error("not cut after client_stall")
		}
		if a := w.agents["a"].calls(); len(a.cancels) != 1 {
			t.Errorf("cancels: %v", a.cancels)
		}
	})
}

func jsonInt(n int) string { b, _ := json.Marshal(n); return string(b) }
