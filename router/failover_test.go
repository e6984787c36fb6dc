// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"testing"

	"github.com/seguekv/segue/router"
)

func TestDecide(t *testing.T) {
	type f = router.Facts
	base := f{Cause: router.CauseReset, Holders: 1, Elsewhere: 1, Starts: 1, MaxAttempts: 2, MaxTakeovers: 8}
	with := func(change func(*f)) f { x := base; change(&x); return x }
	tests := []struct {
		name  string
		facts f
		want  string
	}{
		{"holder, nothing written", base, "takeover"},
		{"holder, content written", with(func(f *f) { f.Content = true }), "takeover"},
		{"no holder, nothing written", with(func(f *f) { f.Holders = 0 }), "retry"},
		{"no holder, content written", with(func(f *f) { f.Holders, f.Content = 0, true }), "fail"},
		{"takeovers used up, nothing written", with(func(f *f) { f.Takeovers = 8 }), "retry"},
		{"takeovers used up, content written", with(func(f *f) { f.Takeovers, f.Content = 8, true }), "fail"},
		{"attempts used up, holder", with(func(f *f) { f.Starts = 2 }), "takeover"},
		{"attempts used up, no holder", with(func(f *f) { f.Starts, f.Holders = 2, 0 }), "fail"},
		{"no other replica", with(func(f *f) { f.Elsewhere, f.Holders = 0, 0 }), "fail"},
		{"no other replica, holder", with(func(f *f) { f.Elsewhere = 0 }), "takeover"},
		{"one attempt allowed", with(func(f *f) { f.MaxAttempts, f.Holders = 1, 0 }), "fail"},
		{"a holder may come back", with(func(f *f) { f.Holders, f.Waiting, f.Content, f.Accepted = 0, 1, true, 3 }), "wait"},
		{"a holder may come back, held tokens would be lost", with(func(f *f) { f.Holders, f.Waiting, f.Accepted = 0, 1, 3 }), "wait"},
		{"a holder may come back, nothing to lose", with(func(f *f) { f.Holders, f.Waiting = 0, 1 }), "retry"},
		{"a holder may come back, no other way", with(func(f *f) { f.Holders, f.Waiting, f.Elsewhere = 0, 1, 0 }), "wait"},
		{"another holder comes first", with(func(f *f) { f.Waiting, f.Accepted = 1, 3 }), "takeover"},
		{"takeovers used up, a holder may come back", with(func(f *f) { f.Holders, f.Waiting, f.Content, f.Takeovers = 0, 1, true, 8 }), "fail"},
		{"nothing ran, a holder may come back", with(func(f *f) { f.Cause, f.Refused, f.Holders, f.Waiting = router.CauseConnect, true, 0, 1 }), "retry"},
		{"client gone", with(func(f *f) { f.Cause = router.CauseClientGone }), "fail"},
		{"router stops", with(func(f *f) { f.Cause = router.CauseRouterShutdown }), "fail"},
		{"protection required", with(func(f *f) { f.Cause = router.CauseUnprotected }), "fail"},
		{"request refused", with(func(f *f) { f.Cause = router.CauseInvalidRequest }), "fail"},
		{"stall", with(func(f *f) { f.Cause = router.CauseStall }), "takeover"},
		{"engine lost", with(func(f *f) { f.Cause = router.CauseEngineAbort }), "takeover"},
		{"never ran: no capacity", with(func(f *f) { f.Cause, f.Refused = router.CauseNoCapacity, true }), "retry"},
		{"never ran: attempts don't count", with(func(f *f) { f.Cause, f.Refused, f.Starts = router.CauseConnect, true, 2 }), "retry"},
		{"never ran: a holder has nothing", with(func(f *f) { f.Cause, f.Refused, f.Elsewhere = router.CauseConnect, true, 0 }), "fail"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := router.Decide(tt.facts); got != tt.want {
				t.Errorf("decide = %s, want %s", got, tt.want)
			}
		})
	}
}
