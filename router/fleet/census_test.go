// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/router/fleet"
)

func TestFleet_Census(t *testing.T) {
	agent, srv := fleet.KindAgent, fleet.KindServer
	bubble(t, "s:m,n t:n u:m A:m B:a", func(c *fleet.Config) {
		c.Servers[2].Probe = nil // never lists anything
	}, func(t *testing.T, w *world) {
		pass(100 * time.Millisecond)
		for _, tt := range []struct {
			kinds      []fleet.Kind
			len, ready int
			models     string
		}{
			{nil, 5, 4, "a m n"}, {[]fleet.Kind{agent}, 2, 2, "a m"}, {[]fleet.Kind{srv}, 3, 2, "m n"}, {[]fleet.Kind{agent, srv}, 5, 4, "a m n"},
		} {
			if n, ready, models := w.Len(tt.kinds...), w.Ready(tt.kinds...), strings.Join(w.Models(tt.kinds...), " "); n != tt.len || ready != tt.ready || models != tt.models {
				t.Errorf("%v: %d nodes, %d ready, models %s", tt.kinds, n, ready, models)
			}
		}
		for model, want := range map[string][]fleet.Kind{"m": {agent, srv}, "n": {srv}, "a": {agent}, "x": nil, "": nil} {
			if got := w.ModelKinds(model); !slices.Equal(got, want) {
				t.Errorf("%q is served by %v, want %v", model, got, want)
			}
		}
		// u, of which nothing is known, may serve anything; exclusion and readiness don't matter.
		w.Node("s").Fail("502")
		w.Node("t").Suspect(true, "reset")
		for _, tt := range []struct {
			model string
			kind  fleet.Kind
			avoid []string
			want  int
		}{
			{"m", agent, nil, 1}, {"m", srv, nil, 2}, {"n", srv, nil, 3}, {"n", srv, []string{"s", "u", "A"}, 1}, {"x", srv, nil, 1}, {"x", agent, nil, 0},
		} {
			if got := w.Candidates(tt.model, tt.kind, tt.avoid); got != tt.want {
				t.Errorf("%s on %v without %v: %d, want %d", tt.model, tt.kind, tt.avoid, got, tt.want)
			}
		}
	})
}

// A server is none of the things that only agents are.
func TestServer_IsNoAgent(t *testing.T) {
	bubble(t, "A:m s:m", func(c *fleet.Config) { c.Servers[0].Weight, c.Members[0].Weight = 2.5, 0.5 }, func(t *testing.T, w *world) {
		pass(3 * time.Second)
		a, s := w.Node("A"), w.Node("s")
		if a.Kind() != fleet.KindAgent || s.Kind() != fleet.KindServer || a.Weight() != 0.5 || s.Weight() != 2.5 {
			t.Errorf("kinds %v %v, weights %v %v", a.Kind(), s.Kind(), a.Weight(), s.Weight())
		}
		if a.Handle() != nil || s.Handle() != "handle of s" {
			t.Errorf("handles %v %v", a.Handle(), s.Handle())
		}
		if s.Client() != nil || s.Boot() != "" || s.Fingerprint() != nil || a.Client() == nil || a.Boot() != "boot" {
			t.Errorf("client %v, boot %q, fingerprint %q", s.Client(), s.Boot(), s.Fingerprint())
		}
		if h := w.PickHolder(a, nil); h != nil {
			t.Errorf("holder %s", h.Node.ID())
		}
		if h := w.PickHolder(s, nil); h == nil || h.Node != a {
			t.Errorf("holder %v", h)
		}
		for range 4 {
			if c := w.try(fleet.Want{Model: "m"}); c != nil && c.Node != a {
				t.Error("a server got an agent's session")
			}
			if c := w.claim(server(nil)); c.Node != s {
				t.Error("an agent got a server's session")
			}
		}
		if renews := w.agents["A"].renews; renews < 3 {
			t.Errorf("%d renewals in 3 s", renews)
		}
	})
}

func TestFleet_StatusJSON(t *testing.T) {
	bubble(t, "A:m s:m,n", func(c *fleet.Config) {
		c.Servers[0].Weight, c.Servers[0].Addr, c.Servers[0].Contexts = 2, "http://s:8000", 8
	}, func(t *testing.T, w *world) {
		w.claim(server(func(x *fleet.Want) { x.Tokens = 40 })).Fail("status 502")
		pass(250 * time.Millisecond)
		b, err := json.MarshalIndent(w.Status(), "", " ")
		if err != nil {
			t.Fatal(err)
		}
		want := `[
 {
  "id": "A",
  "kind": "agent",
  "addr": "A",
  "ready": true,
  "reason": "",
  "contexts": 4,
  "contexts_reserved": 2,
  "contexts_used": 0,
  "boot_id": "626f6f74",
  "engine_boot_id": "",
  "model": "m",
  "outstanding_tokens": 0
 },
 {
  "id": "s",
  "kind": "server",
  "addr": "http://s:8000",
  "ready": true,
  "reason": "",
  "contexts": 8,
  "contexts_reserved": 0,
  "contexts_used": 1,
  "boot_id": "",
  "engine_boot_id": "",
  "model": "",
  "models": [
   "m",
   "n"
  ],
  "weight": 2,
  "outstanding_tokens": 40,
  "failures": 1,
  "failure": "status 502",
  "excluded_for": 0.75
 }
]`
		if string(b) != want {
			t.Errorf("got\n%s", b)
		}
		var back []fleet.Status
		if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back, w.Status()) {
			t.Errorf("read back: %v, %+v", err, back)
		}
	})
	if err := new(fleet.Kind).UnmarshalText([]byte("other")); err == nil || fleet.Kind(7).String() != "Kind(7)" {
		t.Error("an unknown kind passes")
	}
}
