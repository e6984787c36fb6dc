// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
)

// admin calls the operators' listener.
func (w *world) adminCall(method, path string, into any) int {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, "http://admin"+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := w.http.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode
}

// onA starts a protected stream that a runs to n tokens and then holds.
func (w *world) onA(n int) (answer func() *transcript, resp *http.Response, id string) {
	w.t.Helper()
	w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error {
		if err := e.begin("b", n); err != nil {
			return err
		}
		return e.hang()
	}
	resp = w.post("/v1/chat/completions", chat(true, ""))
	answer = w.reading(resp)
	synctest.Wait()
	return answer, resp, resp.Header.Get("X-Segue-Session")
}

func TestMigrate_ContinuesOnTheHolder(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		b.takeover = continues(4)
		wait, resp, id := w.onA(3)
		var m router.Move
		if code := w.adminCall(http.MethodPost, "/v1/sessions/"+id+"/migrate", &m); code != http.StatusOK {
			t.Fatalf("status %d: %+v", code, m)
		}
		want := router.Move{Session: id, Result: "moved", From: "a", To: "b", Delivered: 3, Index: 4, PauseMillis: m.PauseMillis}
		if diff := cmp.Diff(want, m); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if tr := wait(); !tr.done || tr.text != words(0, total) {
			t.Errorf("%s", tr.raw)
		}
		w.settle()
		if len(a.parks) != 1 || a.parks[0].GetEpoch() != 1 {
			t.Errorf("parks %v", a.parks)
		}
		c := a.calls()
		if !slices.ContainsFunc(c.cancels, func(r *seguev1.CancelRequest) bool { return r.GetEpoch() == 1 }) {
			t.Errorf("what is parked is cancelled with %v", c.cancels)
		}
		info := w.session(resp)
		if got := attempts(info); len(got) != 2 || got[0].Cause != router.CauseMigrate || got[1].Node != "b" {
			t.Errorf("attempts %+v", got)
		}
		if w.counter("segue_router_failures_total", "dead") != 0 {
			t.Error("a planned move counts as a failure")
		}
	})
}

func TestMigrate_ReturnsWhenTheTargetFails(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		b.takeover = func(*seguev1.TakeoverRequest, *events) error {
			return refusal(seguev1.Reason_REASON_DIGEST_MISMATCH, "row 7")
		}
		a.takeover = continues(3)
		wait, _, id := w.onA(3)
		var m router.Move
		if code := w.adminCall(http.MethodPost, "/v1/sessions/"+id+"/migrate", &m); code != http.StatusConflict || m.Result != "returned" || m.To != "a" {
			t.Errorf("status %d: %+v", code, m)
		}
		if tr := wait(); !tr.done || tr.text != words(0, total) {
			t.Errorf("%s", tr.raw)
		}
		if c := a.calls(); len(c.takeovers) != 1 || c.takeovers[0].GetEpoch() != 3 || c.takeovers[0].GetDelivered() != 3 {
			t.Errorf("takeovers of a: %v", c.takeovers)
		}
	})
}

// Whatever stands against it is found before the run is fenced: it goes on.
func TestMigrate_RefusedBeforeAnythingHappens(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(*agent)
		reason  string
	}{
		"no room": {func(b *agent) {
			b.prepare = func(*seguev1.PrepareRequest) (int, error) {
				return 0, refusal(seguev1.Reason_REASON_NO_CAPACITY, "all contexts are in use")
			}
		}, "no_capacity: all contexts are in use"},
		"not covered": {func(b *agent) {
			b.prepare = func(*seguev1.PrepareRequest) (int, error) {
				return 0, refusal(seguev1.Reason_REASON_NOT_COVERED, "the base is in progress")
			}
		}, "not_covered: the base is in progress"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "a b", nil, func(t *testing.T, w *world) {
				a, b := w.agents["a"], w.agents["b"]
				tt.prepare(b)
				end := make(chan struct{})
				a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
					if err := e.begin("b", 3); err != nil {
						return err
					}
					<-end
					return e.finish("stop")
				}
				resp := w.post("/v1/chat/completions", chat(true, ""))
				wait, id := w.reading(resp), resp.Header.Get("X-Segue-Session")
				synctest.Wait()
				var m router.Move
				if code := w.adminCall(http.MethodPost, "/v1/sessions/"+id+"/migrate", &m); code != http.StatusConflict || m.Result != "refused" || m.Reason != tt.reason {
					t.Errorf("status %d: %+v", code, m)
				}
				close(end)
				if tr := wait(); !tr.done {
					t.Errorf("%s", tr.raw)
				}
				if info := w.session(resp); len(info.Attempts) != 1 || len(a.parks) != 0 {
					t.Errorf("attempts %+v, parks %v", info.Attempts, a.parks)
				}
			})
		})
	}
}

// The lease of a run that is to be parked isn't given back before the agent has answered: a renewal that names it as
// ended would end it, and nothing would stay.
func TestMigrate_LeaseLivesUntilParked(t *testing.T) {
	onlyTakeovers := func(_ *router.Config, agents map[string]*agent) {
		agents["b"].describe.ContextsReserved = agents["b"].describe.GetContexts()
	}
	bubble(t, "a b", onlyTakeovers, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		b.takeover = continues(3)
		var ended atomic.Int64
		a.renew = func(r *seguev1.RenewRequest) error {
			ended.Add(int64(len(r.GetEnded())))
			return nil
		}
		early, parked := make(chan int64, 1), make(chan struct{})
		// The run is there, and asks for its lease, until it has been parked.
		a.generate = func(r *seguev1.GenerateRequest, e *events) error {
			if err := e.begin("b", 3); err != nil {
				return err
			}
			over := parked
			if r.GetProtection() == seguev1.ProtectionMode_PROTECTION_MODE_OFF {
				over = nil
			}
			for {
				select {
				case <-over:
					return nil
				case <-time.After(time.Second):
					if err := e.progress(3, 3, 3); err != nil && over == nil {
						return err
					}
				}
			}
		}
		// Another run keeps renewals going.
		other := w.post("/v1/chat/completions", chat(true, ""), "X-Segue-Protection", "off")
		defer other.Body.Close()
		a.park = func(*seguev1.ParkRequest) error {
			time.Sleep(1500 * time.Millisecond) // longer than a renewal's interval
			early <- ended.Load()
			close(parked)
			return nil
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		wait, id := w.reading(resp), resp.Header.Get("X-Segue-Session")
		time.Sleep(5 * time.Second) // both runs are renewed
		var m router.Move
		if code := w.adminCall(http.MethodPost, "/v1/sessions/"+id+"/migrate", &m); code != http.StatusOK {
			t.Errorf("status %d: %+v", code, m)
		}
		wait()
		if n := <-early; n != 0 || len(a.renewed()) < 2 {
			t.Errorf("%d runs were named as ended before park was answered", n)
		}
	})
}

func TestDrain_MovesEverySessionAndKeepsNewOnesAway(t *testing.T) {
	bubble(t, "a b c", nil, func(t *testing.T, w *world) {
		for _, n := range []string{"b", "c"} {
			w.agents[n].takeover = continues(3)
		}
		wait, _, _ := w.onA(3)
		var d router.Drained
		if code := w.adminCall(http.MethodPost, "/v1/agents/a/drain", &d); code != http.StatusOK || d.Moved != 1 || d.Staying != 0 || len(d.Moves) != 1 {
			t.Fatalf("status %d: %+v", code, d)
		}
		if tr := wait(); !tr.done {
			t.Errorf("%s", tr.raw)
		}
		for range 4 {
			w.stream(w.post("/v1/chat/completions", chat(true, "")))
		}
		if n := len(w.agents["a"].calls().generates); n != 1 {
			t.Errorf("%d sessions began on a drained node", n-1)
		}
		var off map[string]any
		if code := w.adminCall(http.MethodDelete, "/v1/agents/a/drain", &off); code != http.StatusOK {
			t.Errorf("status %d: %v", code, off)
		}
		var missing map[string]any
		if code := w.adminCall(http.MethodPost, "/v1/agents/z/drain", &missing); code != http.StatusNotFound {
			t.Errorf("status %d: %v", code, missing)
		}
	})
}
