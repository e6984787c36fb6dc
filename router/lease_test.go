// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"context"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/fleet"
)

// renewal is one Renew call that came.
type renewal struct {
	request *seguev1.RenewRequest
	at      time.Time
	// number of the answer; 0 when there was none.
	number uint64
}

// Renew asks for the streams that are open.
func (a *agent) Renew(_ context.Context, r *seguev1.RenewRequest) (*seguev1.RenewResponse, error) {
	a.mu.Lock()
	a.renewals = append(a.renewals, renewal{r, time.Now(), 0})
	i, f := len(a.renewals)-1, a.renew
	a.mu.Unlock()
	if err := f(r); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.renewals[i].number = uint64(i + 1)
	return &seguev1.RenewResponse{BootId: a.describe.GetBootId(), Number: uint64(i + 1), Runs: slices.Clone(a.running)}, nil
}

func (a *agent) renewed() []renewal {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.renewals)
}

// paced is a run of n tokens, one a second.
func paced(n int) func(*seguev1.GenerateRequest, *events) error {
	return func(_ *seguev1.GenerateRequest, e *events) error {
		if err := e.prompt(); err != nil {
			return err
		}
		for i := range n {
			if err := e.tokens(i + 1); err != nil {
				return err
			}
			time.Sleep(time.Second)
		}
		return e.finish("length")
	}
}

func TestLease_TravelsWithTheCallAndIsRenewed(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a := w.agents["a"]
		a.generate = paced(30)
		time.Sleep(10300 * time.Millisecond)
		resp := w.post("/v1/chat/completions", chat(true, ""))
		wait := w.reading(resp)
		time.Sleep(5500 * time.Millisecond)
		var agents []fleet.Status
		w.get("/v1/agents", &agents)
		if l := agents[0].Leases; len(l) != 1 || l[0].Session != resp.Header.Get("X-Segue-Session") || l[0].Epoch != 1 || l[0].Phase != "decode" ||
			l[0].Prefilled != 3 || l[0].LeftMillis < 4000 || l[0].LeftMillis > 6500 {
			t.Errorf("leases of a: %+v", l)
		}
		if n := w.counter("segue_router_leases"); n != 1 {
			t.Errorf("%v leases", n)
		}
		if tr := wait(); !tr.done {
			t.Fatalf("%s", tr.raw)
		}
		l := a.calls().generates[0].GetLease()
		if len(l.GetGrantor()) != 16 || l.GetTtlMs() != 6000 || l.GetMarginMs() != 500 || string(l.GetBootId()) != string(a.describe.GetBootId()) {
			t.Errorf("lease %v", l)
		}
		if l.GetNumber() < 10 || l.GetNumber() > 12 { // one question a second, and one when the connection came
			t.Errorf("after ten seconds the call quotes question %d", l.GetNumber())
		}
		grants := 0
		for i, r := range a.renewed() {
			if string(r.request.GetGrantor()) != string(l.GetGrantor()) {
				t.Fatalf("grantor %x, want %x", r.request.GetGrantor(), l.GetGrantor())
			}
			if i > 0 && r.request.GetNumber() != uint64(i) {
				t.Errorf("renewal %d answers question %d", i+1, r.request.GetNumber())
			}
			for _, g := range r.request.GetGrants() {
				grants++
				if hex.EncodeToString(g.GetSession()) != resp.Header.Get("X-Segue-Session") || g.GetEpoch() != 1 || g.GetTtlMs() != 6000 || g.GetMarginMs() != 500 {
					t.Errorf("grant %v", g)
				}
			}
		}
		if grants < 28 || grants > 31 {
			t.Errorf("%d grants in 30 seconds", grants)
		}
		w.settle()
		before := len(a.renewed())
		time.Sleep(10 * time.Second)
		for _, r := range a.renewed()[before:] {
			if len(r.request.GetGrants()) != 0 {
				t.Errorf("granted after the end: %v", r.request)
			}
		}
		if n := w.counter("segue_router_leases"); n != 0 {
			t.Errorf("%v leases after the end", n)
		}
		if w.counter("segue_router_lease_renewals_total", "ok") == 0 || w.counter("segue_router_lease_renewals_total", "failed") != 0 {
			t.Error("renewals are not counted")
		}
	})
}

// A run that this router has fenced, or never knew, is named and not renewed.
func TestLease_UnknownRunIsEnded(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		unknown := &seguev1.RunStatus{Session: []byte("sixteen bytes id"), Epoch: 7, Phase: "decode"}
		a := w.agents["a"]
		a.mu.Lock()
		a.running = append(a.running, unknown)
		a.mu.Unlock()
		before := len(a.renewed())
		time.Sleep(2500 * time.Millisecond)
		ended := 0
		for _, r := range a.renewed()[before:] {
			ended += len(r.request.GetEnded())
			if len(r.request.GetGrants()) != 0 || len(r.request.GetEnded()) > 0 && (string(r.request.GetEnded()[0].GetSession()) != string(unknown.GetSession()) || r.request.GetEnded()[0].GetEpoch() != 7) {
				t.Errorf("renewal %v", r.request)
			}
		}
		if ended == 0 {
			t.Error("the unknown run was never ended")
		}
	})
}

// Losing nothing but the renewals ends no stream by the router's doing.
func TestLease_LostRenewalsEndNoStreamHere(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a := w.agents["a"]
		a.generate = paced(20)
		wait := w.reading(w.post("/v1/chat/completions", chat(true, "")))
		time.Sleep(2 * time.Second)
		a.mu.Lock()
		a.renew = func(*seguev1.RenewRequest) error { return status.Error(codes.Unavailable, "not now") }
		a.mu.Unlock()
		if tr := wait(); !tr.done || tr.text != words(0, 20) {
			t.Errorf("%s", tr.raw)
		}
		if w.counter("segue_router_lease_renewals_total", "failed") < 15 {
			t.Error("the renewals didn't fail")
		}
	})
}

// A renewal that hangs is given up in time for another one.
func TestLease_HungRenewalIsBounded(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a := w.agents["a"]
		a.generate = paced(10)
		wait := w.reading(w.post("/v1/chat/completions", chat(true, "")))
		time.Sleep(2 * time.Second)
		hung := make(chan struct{})
		a.mu.Lock()
		a.renew = func(*seguev1.RenewRequest) error { <-hung; return nil }
		a.mu.Unlock()
		before := len(a.renewed())
		time.Sleep(4500 * time.Millisecond)
		if n := len(a.renewed()) - before; n < 4 || n > 5 {
			t.Errorf("%d calls in 4.5 seconds, want one a second", n)
		}
		close(hung)
		if tr := wait(); !tr.done {
			t.Errorf("%s", tr.raw)
		}
	})
}

// When an agent says that the lease of a run is over, the holder continues.
func TestLease_EndedRunIsTakenOver(t *testing.T) {
	for _, source := range []router.Source{router.SourceFence, router.SourceWait} {
		t.Run(string(source), func(t *testing.T) {
			bubble(t, "a b", func(c *router.Config, _ map[string]*agent) { c.UncertainSource = source }, func(t *testing.T, w *world) {
				a, b := w.agents["a"], w.agents["b"]
				a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
					e.begin("b", 3)
					return refusal(seguev1.Reason_REASON_LEASE_ENDED, "the lease is over")
				}
				a.cancel = func(*seguev1.CancelRequest) error { time.Sleep(time.Second); return nil }
				b.takeover = continues(3)
				start := time.Now()
				resp := w.post("/v1/chat/completions", chat(true, ""))
				tr := w.stream(resp)
				info := w.session(resp)
				if tr.text != words(0, total) || !tr.done || info.Attempts[0].Cause != "lease_ended" {
					t.Errorf("%s\n%+v", tr.raw, info.Attempts)
				}
				// Nobody waits for an end that the agent itself has told.
				if took := time.Since(start); took > 100*time.Millisecond {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

// A call that came too late for its lease ran nothing: it is made again, and spends no attempt.
func TestLease_LateCallIsMadeAgain(t *testing.T) {
	bubble(t, "a b", func(c *router.Config, _ map[string]*agent) { c.MaxAttempts = 1 }, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = func(*seguev1.GenerateRequest, *events) error {
			return refusal(seguev1.Reason_REASON_LEASE_ENDED, "the call comes too late")
		}
		if tr := w.stream(w.post("/v1/chat/completions", chat(true, ""))); !tr.done || tr.text != words(0, 5) {
			t.Errorf("%s", tr.raw)
		}
		if n := len(b.calls().generates); n != 1 {
			t.Errorf("b was asked %d times", n)
		}
		// The same of a takeover: what the holder holds is untouched, and it is asked again.
		a.generate = a.dies("b", 3)
		late := 0
		b.generate = func(*seguev1.GenerateRequest, *events) error {
			return refusal(seguev1.Reason_REASON_NO_CAPACITY, "full")
		}
		b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
			if late++; late < 3 {
				return refusal(seguev1.Reason_REASON_LEASE_ENDED, "the call comes too late")
			}
			return e.resume(r, 3, total)
		}
		if tr := w.stream(w.post("/v1/chat/completions", chat(true, ""))); !tr.done || tr.text != words(0, total) || late != 3 {
			t.Errorf("after %d calls: %s", late, tr.raw)
		}
	})
}

// Before the first question was answered a call can't quote one.
func TestLease_WithoutAQuestion(t *testing.T) {
	bubble(t, "a b", func(_ *router.Config, agents map[string]*agent) {
		agents["a"].renew = func(*seguev1.RenewRequest) error { return status.Error(codes.Unimplemented, "an old agent") }
	}, func(t *testing.T, w *world) {
		tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
		l := w.agents["a"].calls().generates[0].GetLease()
		if !tr.done || l.GetNumber() != 0 || len(l.GetBootId()) != 0 || l.GetTtlMs() != 6000 {
			t.Errorf("lease %v: %s", l, tr.raw)
		}
	})
}

func TestConfig_ValidateLease(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*router.Config)
		want   string
	}{
		"margin":       {func(c *router.Config) { c.Lease.Margin = 0 }, "router.lease: margin is 0s"},
		"renewal":      {func(c *router.Config) { c.Lease.Renewal = 2 * time.Second }, "3 renewals and the margin (6.5s)"},
		"milliseconds": {func(c *router.Config) { c.Lease.Margin += time.Microsecond }, "whole number of milliseconds"},
		"stall":        {func(c *router.Config) { c.StallTimeout = 5500 * time.Millisecond }, "router.lease.ttl: is 6s, less the margin not above router.stall_timeout (5.5s)"},
		"source":       {func(c *router.Config) { c.UncertainSource = "guess" }, `router.uncertain_source: is "guess", want fence or wait`},
	} {
		cfg := router.DefaultConfig()
		cfg.Agents = []fleet.Member{{ID: "a", Addr: "a:1"}}
		c.change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// The status code of a failure before any content.
func TestLease_EndedBeforeContentIsRetryable(t *testing.T) {
	bubble(t, "a", nil, func(t *testing.T, w *world) {
		w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.prompt()
			return refusal(seguev1.Reason_REASON_LEASE_ENDED, "the lease is over")
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if e := w.failure(resp); resp.StatusCode != http.StatusBadGateway || e.Cause != "lease_ended" || !e.Retryable {
			t.Errorf("status %d: %+v", resp.StatusCode, e)
		}
	})
}
