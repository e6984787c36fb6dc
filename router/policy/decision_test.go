// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package policy_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/seguekv/segue/router/policy"
)

// phases of an attempt's end.
var phases = []struct {
	name  string
	apply func(*policy.Facts)
}{
	{"nothing_ran", func(f *policy.Facts) { f.Ran = false }},
	{"before_content", func(*policy.Facts) {}},
	{"tokens_held", func(f *policy.Facts) { f.Accepted = 3 }},
	{"after_content", func(f *policy.Facts) { f.Content, f.Accepted = true, 3 }},
}

// budgets and what else a retry or a continuation needs.
var budgets = []struct {
	name  string
	apply func(*policy.Facts)
}{
	{"enough", func(*policy.Facts) {}},
	{"source_not_ended", func(f *policy.Facts) { f.Unconfirmed = true }},
	{"attempts_used_up", func(f *policy.Facts) { f.Starts = f.MaxAttempts }},
	{"no_replica_left", func(f *policy.Facts) { f.Elsewhere = 0 }},
	{"same_failure_twice", func(f *policy.Facts) { f.Repeated = true }},
	{"prompt_too_long", func(f *policy.Facts) { f.PrefillTokens = f.MaxPrefillTokens + 1 }},
	{"too_late", func(f *policy.Facts) { f.Elapsed = f.MaxTime }},
	{"fleet_budget_empty", func(f *policy.Facts) { f.Affordable = false }},
	{"holder", func(f *policy.Facts) { f.Holders = 1 }},
	{"holder_comes_back", func(f *policy.Facts) { f.Waiting = 1 }},
	{"takeovers_used_up", func(f *policy.Facts) { f.Holders, f.Waiting, f.Takeovers = 1, 1, f.MaxTakeovers }},
	{"holder_attempts_used_up", func(f *policy.Facts) { f.Holders, f.Starts = 1, f.MaxAttempts }},
	{"comes_back_attempts_used_up", func(f *policy.Facts) { f.Waiting, f.Starts = 1, f.MaxAttempts }},
}

func enough(c policy.Class) policy.Facts {
	return policy.Facts{
		Class: c, Ran: true, MaxTakeovers: 8, Elsewhere: 1, Starts: 1, MaxAttempts: 2,
		PrefillTokens: 1000, MaxPrefillTokens: 32768, Elapsed: time.Second, PrefillTime: time.Second, MaxTime: time.Minute, Affordable: true,
	}
}

// table has one line for every cell of class, phase and budget.
func table() string {
	var b strings.Builder
	for c := policy.Dead; c <= policy.Stopping; c++ {
		for _, p := range phases {
			for _, e := range budgets {
				f := enough(c)
				p.apply(&f)
				e.apply(&f)
				action, why := policy.Decide(f)
				line := fmt.Sprintf("%-11s %-14s %-27s %-8s %s", c, p.name, e.name, action, why)
				b.WriteString(strings.TrimRight(line, " ") + "\n")
			}
		}
	}
	return b.String()
}

// testdata/decisions.txt is the policy, cell by cell.
func TestDecide_EveryCell(t *testing.T) {
	want, err := os.ReadFile("testdata/decisions.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(table(), "\n")); diff != "" {
		t.Errorf("decisions differ from testdata/decisions.txt (-want +got):\n%s", diff)
	}
}

func TestDecide_Rules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := policy.Facts{
			Class: policy.Class(rapid.IntRange(0, int(policy.Stopping)).Draw(t, "class")), Ran: rapid.Bool().Draw(t, "ran"), Content: rapid.Bool().Draw(t, "content"),
			Accepted: rapid.IntRange(0, 2).Draw(t, "accepted"), Holders: rapid.IntRange(0, 2).Draw(t, "holders"), Waiting: rapid.IntRange(0, 2).Draw(t, "waiting"),
			Takeovers: rapid.IntRange(0, 2).Draw(t, "takeovers"), MaxTakeovers: rapid.IntRange(0, 2).Draw(t, "max takeovers"),
			Unconfirmed: rapid.Bool().Draw(t, "unconfirmed"), Elsewhere: rapid.IntRange(0, 2).Draw(t, "elsewhere"), Starts: rapid.IntRange(0, 3).Draw(t, "starts"), MaxAttempts: rapid.IntRange(1, 3).Draw(t, "max attempts"),
			Repeated: rapid.Bool().Draw(t, "repeated"), PrefillTokens: rapid.IntRange(0, 4).Draw(t, "prefill"), MaxPrefillTokens: rapid.IntRange(0, 4).Draw(t, "max prefill"),
			Elapsed: time.Duration(rapid.IntRange(0, 4).Draw(t, "elapsed")), PrefillTime: time.Duration(rapid.IntRange(0, 4).Draw(t, "prefill time")),
			MaxTime: time.Duration(rapid.IntRange(0, 4).Draw(t, "max time")), Affordable: rapid.Bool().Draw(t, "affordable"),
		}
		action, why := policy.Decide(f)
		if (action == policy.Fail) != (why != "") {
			t.Fatalf("%v with reason %q", action, why)
		}
		switch action {
		case policy.Retry:
			if f.Content || f.Elsewhere == 0 || f.Unconfirmed || (f.Ran && (f.Starts >= f.MaxAttempts || !f.Affordable || f.Repeated)) {
				t.Fatal("a retry that is forbidden")
			}
		case policy.Takeover:
			if f.Holders == 0 || !f.Ran || f.Takeovers >= f.MaxTakeovers {
				t.Fatal("a takeover that nobody can do")
			}
		case policy.Wait:
			if f.Waiting == 0 || f.Holders > 0 {
				t.Fatal("a wait for nobody")
			}
		}
		if f.Class >= policy.Refused && action != policy.Fail {
			t.Fatalf("%v leads to %v", f.Class, action)
		}
	})
}

func TestBudget_BoundsRetriedPrefill(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const burst = 1000
		share := rapid.Float64Range(0, 0.5).Draw(t, "share")
		b := policy.NewBudget(share, burst)
		fresh, retried := 0, 0
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			n := rapid.IntRange(0, 400).Draw(t, "tokens")
			if rapid.Bool().Draw(t, "fresh") {
				b.Fresh(n)
				fresh += n
			} else if could := b.Affords(n); b.Take(n) {
				retried += n
				if !could {
					t.Fatal("took what it didn't afford")
				}
			}
			if limit := burst + share*float64(fresh) + 1e-6; float64(retried) > limit {
				t.Fatalf("retried %d of %d fresh tokens, more than %v", retried, fresh, limit)
			}
			if b.Left() < 0 || b.Left() > burst {
				t.Fatalf("credit %d", b.Left())
			}
		}
	})
}
