// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/fleet"
)

func TestRouter_Admin(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		w.agents["b"].setDescribe(func(d *seguev1.DescribeResponse) { d.Ready = false; d.NotReadyReason = "the engine is starting" })
		time.Sleep(time.Second)
		var agents []fleet.Status
		w.get("/v1/agents", &agents)
		want := []fleet.Status{
			{ID: "a", Addr: "a:1", Ready: true, Contexts: 4, ContextsReserved: 2, BootID: "626f6f742d6f662d612d30303031", EngineBootID: "656e67696e652d6f662d612d3031", Model: "sim"},
			{ID: "b", Addr: "b:1", Reason: "the engine is starting", Contexts: 4, ContextsReserved: 2, BootID: "626f6f742d6f662d622d30303031", EngineBootID: "656e67696e652d6f662d622d3031", Model: "sim"},
		}
		if diff := cmp.Diff(want, agents); diff != "" {
			t.Errorf("agents (-want +got):\n%s", diff)
		}
		for path, code := range map[string]int{
			"/livez": 200, "/readyz": 200, "/healthz": 200, "/v1/sessions": 200, "/nothing": 404, "/v1/sessions/xyz": 400,
			"/v1/sessions/00000000000000000000000000000000": 404,
		} {
			if got := w.get(path, nil); got != code {
				t.Errorf("%s: %d, want %d", path, got, code)
			}
		}
	})
}

func TestRouter_SessionJSONGolden(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = a.dies("b", 3)
		b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
			e.next, e.textEnd = int(r.GetDelivered()), int(r.GetTextEnd())
			e.seam(4)
			e.progress(5, 4, 4)
			time.Sleep(40 * time.Millisecond)
			e.tokens(total)
			return e.finish("length")
		}
		resp := w.post("/v1/chat/completions", chat(true, `"seed":7`), "X-Request-Id", "golden")
		id := resp.Header.Get("X-Segue-Session")
		w.stream(resp)
		w.settle()
		got, err := w.http.Get("http://admin/v1/sessions/" + id)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "session.json", strings.ReplaceAll(body(t, got), id, "SESSION"))
	})
}

func TestRouter_KeepsFinishedSessions(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		const extra = 3
		for range router.FinishedKept + extra {
			io.Copy(io.Discard, w.post("/v1/chat/completions", chat(false, "")).Body)
		}
		live := w.post("/v1/chat/completions", chat(true, ""))
		var list []router.SessionInfo
		w.get("/v1/sessions", &list)
		if len(list) != router.FinishedKept+1 || list[0].Session != live.Header.Get("X-Segue-Session") {
			t.Errorf("%d sessions, newest %s", len(list), list[0].Session)
		}
		w.stream(live)
	})
}

func TestRouter_Metrics(t *testing.T) {
	bubble(t, "a b c", nil, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = a.dies("b", 3)
		b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
			e.next, e.textEnd = int(r.GetDelivered()), int(r.GetTextEnd())
			e.seam(4)
			e.protection("", "no_holder")
			for i := 4; i <= total; i++ {
				time.Sleep(500 * time.Millisecond)
				e.progress(i+1, i, i)
				e.tokens(i)
			}
			return e.finish("length")
		}
		wait := w.reading(w.post("/v1/chat/completions", chat(true, "")))
		time.Sleep(1200 * time.Millisecond)
		for name, want := range map[string]float64{
			"segue_router_active_sessions": 1, "segue_router_ready_agents": 2, "segue_router_queued_sessions": 0,
			"segue_router_captured_boundaries": 6, "segue_router_sent_boundaries": 5, "segue_router_committed_boundaries": 5, "segue_router_delivered_boundaries": 5,
		} {
			if got := w.counter(name); got != want {
				t.Errorf("%s = %v, want %v", name, got, want)
			}
			if pair := strings.HasSuffix(name, "_boundaries"); pair && w.counter(name, "b", "c") != want {
				t.Errorf("%s of b and its holder c = %v, want %v", name, w.counter(name, "b", "c"), want)
			}
		}
		wait()
		w.failure(w.post("/v1/chat/completions", `{}`))
		for _, id := range []string{"b", "c"} {
			w.agents[id].generate = w.agents[id].dies("", 0)
		}
		w.failure(w.post("/v1/chat/completions", chat(false, ""), "X-Segue-Protection", "off"))
		synctest.Wait() // what is counted after the last byte of an answer is counted
		for name, labels := range map[string][]string{
			"segue_router_sessions_total": {"ok"}, "segue_router_takeovers_total": {"ok", "reset"}, "segue_router_retries_total": {"reset"},
			"segue_router_takeover_pause_seconds": nil, "segue_router_detection_seconds": nil, "segue_router_first_text_seconds": nil,
			"segue_router_delivered_tokens_total": nil, "segue_router_pairings_total": {"ok"},
			"segue_router_protection_changes_total": {"protected"},
		} {
			if w.counter(name, labels...) == 0 {
				t.Errorf("%s%v didn't move", name, labels)
			}
		}
		for _, result := range []string{"rejected", "failed"} {
			if w.counter("segue_router_sessions_total", result) == 0 {
				t.Errorf("no session is counted as %s", result)
			}
		}
		families, err := w.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), "segue_router_") && !strings.HasPrefix(f.GetName(), "segue_journal_") || f.GetHelp() == "" {
				t.Errorf("metric %s", f.GetName())
			}
		}
		exposed, err := w.http.Get("http://admin/metrics")
		if err != nil || exposed.StatusCode != http.StatusOK {
			t.Fatalf("metrics: %v", err)
		}
		if text := body(t, exposed); !strings.Contains(text, "segue_router_takeovers_total") {
			t.Errorf("metrics: %s", text)
		}
	})
}

// Neither prompts nor answers are logged, at any level.
func TestRouter_LogsNoText(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = a.dies("b", 3)
		b.takeover = continues(3)
		w.stream(w.post("/v1/completions", `{"model":"sim","prompt":"my secret","stream":true}`))
		w.failure(w.post("/v1/completions", `{"model":"sim","prompt":"my secret",`))
		w.failure(w.post("/v1/completions", `{"model":"sim","prompt":"my secret","n":2}`))
		w.settle()
		for _, word := range []string{"secret", word(1)} {
			if strings.Contains(w.log.String(), word) {
				t.Errorf("%q in the log:\n%s", word, w.log)
			}
		}
	})
}

func TestRouter_PortInUse(t *testing.T) {
	cfg := router.DefaultConfig()
	cfg.Agents = []fleet.Member{{ID: "a", Addr: "127.0.0.1:1"}}
	closed := false
	r, err := router.New(cfg, router.Deps{Listen: func(_, addr string) (net.Listener, error) {
		if addr == cfg.Admin {
			return nil, &net.OpError{Op: "listen", Err: syscall.EADDRINUSE}
		}
		return closing{newPipes(), &closed}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	err = r.Run(t.Context())
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "router.admin: 127.0.0.1:8081 is in use") {
		t.Errorf("Run = %v", err)
	}
	if !closed {
		t.Error("the other listener stays open")
	}
}

type closing struct {
	*pipes
	closed *bool
}

func (c closing) Close() error { *c.closed = true; return c.pipes.Close() }

func TestConfig_Validate(t *testing.T) {
	good := router.DefaultConfig()
	good.Agents = []fleet.Member{{ID: "a", Addr: "127.0.0.1:1"}, {ID: "b", Addr: "127.0.0.1:2"}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	bad := good
	bad.Listen, bad.Admin = "8080", "8080"
	bad.Agents = []fleet.Member{{ID: "a", Addr: "127.0.0.1:1"}, {ID: "a", Addr: "127.0.0.1:1"}, {ID: "", Addr: "nope"}}
	bad.Protection, bad.OnUnprotected = "maybe", "panic"
	bad.Window, bad.MaxAttempts, bad.MaxTakeovers, bad.MaxBody, bad.Queue.Depth = 0, 0, -1, 1, -1
	bad.CommitTimeout, bad.StallTimeout, bad.HeaderHold, bad.ClientStall, bad.Drain, bad.Queue.Wait = 0, 0, -1, 0, -1, -1
	bad.TakeoverWait = -1
	err := bad.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, key := range []string{
		"listen", "admin", "agents[1].id", "agents[1].addr", "agents[2].id", "agents[2].addr", "protection", "on_unprotected", "window",
		"max_attempts", "max_takeovers", "max_body", "queue.depth", "queue.wait", "takeover_wait", "commit_timeout", "stall_timeout", "header_hold", "client_stall", "drain",
	} {
		if !strings.Contains(err.Error(), "router."+key+": ") {
			t.Errorf("no word about %s in:\n%v", key, err)
		}
	}
	if _, err := router.New(router.DefaultConfig(), router.Deps{}); err == nil || !strings.Contains(err.Error(), "router.agents") {
		t.Errorf("New without agents = %v", err)
	}
}
