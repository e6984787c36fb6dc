// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/seguekv/segue/router"
)

func TestRouter_BadRequests(t *testing.T) {
	const path = "/v1/chat/completions"
	for _, tt := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		code, param, message     string
	}{
		{"malformed", "POST", path, "{\"model\": \"sim\",\n  \"messages\": [}", nil, 400, "invalid_request", "", "line 2 column 16"},
		{"empty body", "POST", path, "", nil, 400, "invalid_request", "", "unexpected end"},
		{"not an object", "POST", path, `[1]`, nil, 400, "invalid_request", "", "want an object"},
		{"data after it", "POST", path, chat(true, "") + "x", nil, 400, "invalid_request", "", "after the JSON object"},
		{"not UTF-8", "POST", path, "{\"model\":\"\xff\"}", nil, 400, "invalid_request", "", "UTF-8"},
		{"oversize", "POST", path, `{"model":"` + strings.Repeat("x", 3000) + `"}`, nil, 413, "request_too_large", "", "2048 bytes"},
		{"unknown model", "POST", path, strings.Replace(chat(true, ""), `"sim"`, `"gpt-9"`, 1), nil, 404, "model_not_found", "model", "available: sim"},
		{"n", "POST", path, chat(true, `"n":2`), nil, 400, "unsupported_parameter", "n", "one choice"},
		{"protection", "POST", path, chat(true, ""), []string{"X-Segue-Protection", "maybe"}, 400, "invalid_request", "X-Segue-Protection", "off, async or sync"},
		{"compressed", "POST", path, chat(true, ""), []string{"Content-Encoding", "gzip"}, 415, "invalid_request", "", "compressed"},
		{"method", "GET", path, "", nil, 405, "method_not_allowed", "", "POST"},
		{"method of models", "POST", "/v1/models", "", nil, 405, "method_not_allowed", "", "GET"},
		{"path", "GET", "/v2/x", "", nil, 404, "not_found", "", "/v1/chat/completions"},
		{"model", "GET", "/v1/models/gpt-9", "", nil, 404, "model_not_found", "model", "available: sim"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, "a b", func(c *router.Config, _ map[string]*agent) { c.MaxBody = 2048 }, func(t *testing.T, w *world) {
				req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://router"+tt.path, strings.NewReader(tt.body))
				if err != nil {
					t.Fatal(err)
				}
				for i := 0; i+1 < len(tt.header); i += 2 {
					req.Header.Set(tt.header[i], tt.header[i+1])
				}
				resp, err := w.http.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				e := w.failure(resp)
				if resp.StatusCode != tt.status || e.Code != tt.code || e.Param != tt.param || !strings.Contains(e.Message, tt.message) || e.Type != "invalid_request_error" || e.Retryable || e.Partial {
					t.Errorf("status %d: %+v", resp.StatusCode, e)
				}
				if got := resp.Header.Get("Content-Type"); got != "application/json" {
					t.Errorf("Content-Type %q", got)
				}
				if tt.status == 405 && resp.Header.Get("Allow") == "" {
					t.Error("no Allow header")
				}
				for _, a := range w.agents {
					if n := len(a.calls().generates); n != 0 {
						t.Errorf("%d runs", n)
					}
				}
			})
		})
	}
}

func TestRouter_RequestID(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		for _, tt := range []struct {
			id   string
			kept bool
		}{{"client-1", true}, {"", false}, {"with space", false}, {strings.Repeat("x", 200), false}} {
			resp := w.post("/v1/chat/completions", chat(false, ""), "X-Request-Id", tt.id)
			resp.Body.Close()
			got := resp.Header.Get("X-Request-Id")
			if kept := got == tt.id; kept != tt.kept || got == "" {
				t.Errorf("id %q became %q", tt.id, got)
			}
		}
	})
}

func TestRouter_Models(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		resp, err := w.http.Get("http://router/v1/models")
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Object string
			Data   []struct{ ID, Object string }
		}
		if err := json.Unmarshal([]byte(body(t, resp)), &list); err != nil {
			t.Fatal(err)
		}
		if list.Object != "list" || len(list.Data) != 1 || list.Data[0].ID != "sim" || list.Data[0].Object != "model" {
			t.Errorf("%+v", list)
		}
		one, err := w.http.Get("http://router/v1/models/sim")
		if err != nil || one.StatusCode != http.StatusOK {
			t.Errorf("%v %v", one, err)
		}
		one.Body.Close()
	})
}
