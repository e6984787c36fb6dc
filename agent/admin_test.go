// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// get returns a page of the admin listener.
func (b *testNode) get(t *testing.T, path string) (int, string) {
	t.Helper()
	r, err := b.admin.Get("http://admin" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

func TestAdmin_Health(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		for path, want := range map[string]int{
			"/livez": 200, "/readyz": 200, "/v1/node": 200, "/v1/sessions": 200, "/metrics": 200,
			"/": 404, "/v1/sessions/xyz": 400, "/v1/sessions/" + strings.Repeat("0", 32): 404,
		} {
			if code, body := a.get(t, path); code != want {
				t.Errorf("GET %s: %d %s", path, code, body)
			}
		}
		r, err := a.admin.Post("http://admin/v1/sessions", "application/json", strings.NewReader("{}"))
		if err != nil || r.StatusCode != http.StatusMethodNotAllowed {
			t.Fatalf("POST: %v %v", r, err)
		}
		r.Body.Close()
		node := func() map[string]any {
			var v map[string]any
			_, body := a.get(t, "/v1/node")
			if err := json.Unmarshal([]byte(body), &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
		d := a.describe(t)
		want := map[string]any{
			"id": "a", "boot_id": hex.EncodeToString(d.GetBootId()), "engine_boot_id": hex.EncodeToString(d.GetEngineBootId()), "engine_pid": 1.0, "ready": true, "health": "idle", "health_reasons": []any{"nothing_runs"}, "gpu": "off",
		}
		if diff := cmp.Diff(want, node()); diff != "" {
			t.Errorf("node (-want +got):\n%s", diff)
		}
		a.host.kill(nil)
		for path, want := range map[string]int{"/livez": 200, "/readyz": 503, "/v1/node": 200, "/metrics": 200} {
			if code, body := a.get(t, path); code != want {
				t.Errorf("GET %s without an engine: %d %s", path, code, body)
			}
		}
		if v := node(); v["ready"] != false || v["reason"] == "" || v["engine_boot_id"] != "" {
			t.Errorf("node without an engine: %v", v)
		}
		if d := a.describe(t); d.GetReady() || d.GetNotReadyReason() == "" || len(d.GetEngineBootId()) != 0 {
			t.Errorf("description without an engine: %v", d)
		}
		_, err = generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: request(5), Protection: modeOff})()
		wantReason(t, err, seguev1.Reason_REASON_NOT_READY)
	})
}

func TestAdmin_Sessions(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		if _, body := a.get(t, "/v1/sessions"); strings.TrimSpace(body) != "[]" {
			t.Errorf("no sessions: %s", body)
		}
		r, id := request(300), newID(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		recv := generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 3, Request: r, Protection: modeSync, Holder: b.peer})
		var x transcript
		x.read(recv, tokens(20))
		other := newID(t)
		new(transcript).read(generate(t, ctx, b, &seguev1.GenerateRequest{Session: other, Epoch: 1, Request: r, Protection: modeOff}), tokens(1))
		list := func(b *testNode, path string) []map[string]any {
			var v []map[string]any
			_, body := b.get(t, path)
			if err := json.Unmarshal([]byte(body), &v); err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			return v
		}
		p := list(a, "/v1/sessions/"+hex.EncodeToString(id))
		if len(p) != 1 {
			t.Fatalf("primary: %v", p)
		}
		captured, committed := p[0]["captured"].(float64), p[0]["committed"].(float64)
		if captured < 20 || committed < 20 || p[0]["sent"].(float64) > captured || committed > p[0]["sent"].(float64) {
			t.Errorf("watermarks %v", p[0])
		}
		for key, want := range map[string]any{
			"session": hex.EncodeToString(id), "epoch": 3.0, "role": "primary", "peer": "b", "state": "decode", "protected": true,
			"prompt_tokens": float64(x.prompt.GetTokens()), "base": 0.0,
		} {
			if p[0][key] != want {
				t.Errorf("primary's %s is %v, want %v", key, p[0][key], want)
			}
		}
		h := list(b, "/v1/sessions/"+strings.ToUpper(hex.EncodeToString(id)))
		if len(h) != 1 || h[0]["role"] != "holder" || h[0]["epoch"] != 3.0 || h[0]["state"] != "held" || h[0]["bytes"].(float64) == 0 || h[0]["committed"].(float64) < committed {
			t.Errorf("holder: %v", h)
		}
		all := list(b, "/v1/sessions")
		if len(all) != 2 || all[0]["session"].(string) > all[1]["session"].(string) {
			t.Errorf("holder's sessions: %v", all)
		}
		if _, err := b.client.Release(t.Context(), &seguev1.ReleaseRequest{Session: id, Epoch: 3}); err != nil {
			t.Fatal(err)
		}
		if h := b.view(t, id, "holder"); h != nil {
			t.Errorf("after the release: %v", h)
		}
		// The primary learns with its next delta that the holder has let go, and goes on without it.
		x.read(recv, protection(2))
		if x.protected() {
			t.Errorf("protections %v", x.protections)
		}
	})
}
