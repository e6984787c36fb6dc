// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/router"
)

// cutBefore breaks an answer without content, after a while.
func cutBefore(wait time.Duration) func(*answer) {
	return func(a *answer) {
		a.role()
		time.Sleep(wait)
		a.played("cut")
		a.abort()
	}
}

// Each bound on retries stops one that the others allow, and the client is told which.
func TestRelay_RetryBudgets(t *testing.T) {
	long := `"user":"x","max_tokens":5`
	longPrompt := strings.Replace(chat(true, long), `"hi"`, `"`+strings.Repeat("word ", 2000)+`"`, 1)
	for _, tt := range []struct {
		name    string
		change  func(*router.Config)
		body    string
		header  []string
		wait    time.Duration
		why     string
		message string // "": the retry is made
	}{
		{"within all bounds", func(*router.Config) {}, longPrompt, nil, time.Second, "", ""},
		{"max_prefill_tokens", func(c *router.Config) { c.Retry.MaxPrefillTokens = 1000 }, longPrompt, nil, 0, "prefill_tokens", "router.retry.max_prefill_tokens (1000)"},
		{"max_prefill_tokens, short prompt", func(c *router.Config) { c.Retry.MaxPrefillTokens = 1000 }, chat(true, ""), nil, 0, "", ""},
		{"max_time", func(c *router.Config) { c.Retry.MaxTime = 2 * time.Second }, chat(true, ""), nil, 3 * time.Second, "time", "router.retry.max_time (2s)"},
		{"max_time, in time", func(c *router.Config) { c.Retry.MaxTime = 2 * time.Second }, chat(true, ""), nil, time.Second, "", ""},
		{"budget", func(c *router.Config) { c.Retry.BudgetBurst = 100 }, longPrompt, nil, 0, "fleet_budget", "router.retry.budget_share"},
		{"max_attempts", func(c *router.Config) { c.MaxAttempts = 1 }, chat(true, ""), nil, 0, "attempts", "may be repeated"},
		{"sdk_attempts", func(*router.Config) {}, chat(true, ""), []string{"X-Stainless-Retry-Count", "1"}, 0, "attempts", "may be repeated"},
		{"sdk_attempts of 2", func(c *router.Config) { c.Retry.SDKAttempts = 2 }, chat(true, ""), []string{"X-Stainless-Retry-Count", "1"}, 0, "", ""},
		{"an SDK's first try", func(*router.Config) {}, chat(true, ""), []string{"X-Stainless-Retry-Count", "0"}, 0, "", ""},
		{"not an SDK's number", func(*router.Config) {}, chat(true, ""), []string{"X-Stainless-Retry-Count", "many"}, 0, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			relay(t, "", "s1 s2", func(c *router.Config, _ *relays) { tt.change(c) }, func(t *testing.T, w *relays) {
				w.servers["s1"].play = cutBefore(tt.wait)
				resp := w.post("/v1/chat/completions", tt.body, tt.header...)
				if tt.why == "" {
					if tr := w.stream(resp); !tr.done || ran(w.session(resp)) != "s1 reset, s2" {
						t.Errorf("ran %q: %s", ran(w.session(resp)), tr.raw)
					}
				} else {
					e := w.failure(resp)
					if resp.StatusCode != 502 || !strings.Contains(e.Message, tt.message) || !e.Retryable || e.Partial || ran(w.session(resp)) != "s1 reset" {
						t.Errorf("status %d, ran %q: %+v", resp.StatusCode, ran(w.session(resp)), e)
					}
					if n := w.counter("segue_router_retries_refused_total", tt.why); n != 1 {
						t.Errorf("%v retries refused for %s", n, tt.why)
					}
					w.asked("s2", 0)
				}
				if w.asked("s1", 1)[0].state().fault != "cut" {
					t.Error("the fault was not played")
				}
			})
		})
	}
}

// The budget is the fleet's: it is used up by one session after the other, and fresh prompts fill it again.
func TestRelay_BudgetIsShared(t *testing.T) {
	relay(t, "", "s1 s2", func(c *router.Config, _ *relays) {
		c.Retry.BudgetBurst, c.Retry.BudgetShare = 25, 0.5 // a prompt has about 9 tokens
	}, func(t *testing.T, w *relays) {
		for _, o := range w.servers {
			o.play = func(a *answer) {
				if strings.HasSuffix(a.r.Header.Get("X-Request-Id"), "-1") { // every first attempt
					a.played("cut")
					a.abort()
					return
				}
				a.whole(2)
			}
		}
		var got strings.Builder
		for range 12 {
			resp := w.post("/v1/chat/completions", chat(true, ""))
			fmt.Fprintf(&got, "%d ", resp.StatusCode)
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			time.Sleep(40 * time.Second) // exclusions are over
		}
		ok, failed := strings.Count(got.String(), "200"), strings.Count(got.String(), "502")
		if !strings.HasPrefix(got.String(), "200 200 ") || failed == 0 || ok < 5 || ok+failed != 12 {
			t.Errorf("statuses %s", got.String())
		}
		if n := w.counter("segue_router_retries_refused_total", "fleet_budget"); int(n) != failed {
			t.Errorf("%v refused for the budget, %d failed", n, failed)
		}
	})
}

// uncertain_source: wait: a server that fell silent or broke off may go on, and nobody can tell; one that said that it
// ended has ended.
func TestRelay_UncertainSourceWaits(t *testing.T) {
	for _, tt := range []struct {
		name    string
		play    func(*answer)
		retried bool
	}{
		{"stall", func(a *answer) { a.role(); a.played("fault"); a.hang() }, false},
		{"reset", func(a *answer) { a.role(); a.played("fault"); a.abort() }, false},
		{"reset before the header", func(a *answer) { a.played("fault"); a.abort() }, false},
		{"clean EOF", func(a *answer) { a.role(); a.played("fault") }, true},
		{"error event", func(a *answer) { a.role(); a.played("fault"); a.event(serverError) }, true},
		{"500", func(a *answer) { a.played("fault"); a.json(500, serverError) }, true},
		{"503", func(a *answer) { a.played("fault"); a.json(503, serverError) }, true},
	} {
		for _, source := range []router.Source{router.SourceWait, router.SourceFence} {
			t.Run(fmt.Sprintf("%s, %s", tt.name, source), func(t *testing.T) {
				relay(t, "", "s1 s2", func(c *router.Config, _ *relays) { c.UncertainSource = source }, func(t *testing.T, w *relays) {
					w.servers["s1"].play = tt.play
					resp := w.post("/v1/chat/completions", chat(true, ""))
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if w.asked("s1", 1)[0].state().fault != "fault" {
						t.Fatal("the fault was not played")
					}
					retried := tt.retried || source == router.SourceFence
					refused := w.counter("segue_router_retries_refused_total", "source_not_ended")
					if again := len(w.servers["s2"].asked()); (again == 1) != retried || (refused == 1) == retried || (resp.StatusCode == 200) != retried {
						t.Errorf("status %d, %d runs on the other server, %v refused", resp.StatusCode, again, refused)
					}
				})
			})
		}
	}
}
