// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/transfer"
)

var (
	epoch0   = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	syncRule = agent.Rules{Sync: true, Window: 8, CommitTimeout: 500 * time.Millisecond, BaseTimeout: 5 * time.Second}
)

func TestProtection_Transitions(t *testing.T) {
	async := syncRule
	async.Sync = false
	ago := func(d time.Duration) time.Time { return epoch0.Add(-d) }
	pending, protected := agent.Shield{State: "pending"}, agent.Shield{State: "protected"}
	un := func(cause, detail string) agent.Shield {
		return agent.Shield{State: "unprotected", Cause: cause, Detail: detail}
	}
	lost := un("holder_lost", "commit_timeout")
	base := func(change func(*transfer.Status)) transfer.Status {
		st := transfer.Status{Attached: true, Connected: true, Rows: 10, AckRows: 4, MovedAt: ago(time.Second)}
		change(&st)
		return st
	}
	repl := func(captured, committed int, oldest time.Duration) transfer.Status {
		st := transfer.Status{Attached: true, Connected: true, Replicating: true, Rows: 10, AckRows: 10, Captured: captured, Sent: captured, Committed: committed, MovedAt: ago(time.Hour)}
		if captured > committed {
			st.OldestUncommitted = ago(oldest)
		}
		return st
	}
	offline := func(st transfer.Status) transfer.Status { st.Connected = false; return st }
	gone := func(st transfer.Status) transfer.Status { st.DownSince = ago(time.Hour); return offline(st) }
	for name, c := range map[string]struct {
		rules    agent.Rules
		from     agent.Shield
		st       transfer.Status
		released int
		want     agent.Shield
		next     time.Duration
	}{
		"base under way":                {syncRule, pending, base(func(*transfer.Status) {}), 0, pending, 4 * time.Second},
		"base whole, nothing follows":   {syncRule, pending, base(func(s *transfer.Status) { s.AckRows = 10; s.MovedAt = ago(time.Hour) }), 0, pending, 0},
		"base whole, first boundary on": {syncRule, pending, base(func(s *transfer.Status) { s.AckRows = 10; s.Captured = 1 }), 0, pending, 4 * time.Second},
		"base stuck":                    {syncRule, pending, base(func(s *transfer.Status) { s.MovedAt = ago(5 * time.Second) }), 0, un("holder_lost", "base_timeout"), 0},
		"holder never reached":          {syncRule, pending, base(func(s *transfer.Status) { *s = transfer.Status{Attached: true, MovedAt: ago(6 * time.Second)} }), 0, un("holder_lost", "base_timeout"), 0},
		"holder not reached yet":        {syncRule, pending, base(func(s *transfer.Status) { *s = transfer.Status{Attached: true, MovedAt: ago(time.Second)} }), 0, pending, 4 * time.Second},
		"holder gone":                   {syncRule, pending, base(func(s *transfer.Status) { s.Connected = false; s.DownSince = ago(500 * time.Millisecond) }), 0, un("holder_lost", "no connection"), 0},
		"holder gone, one tick left":    {syncRule, pending, base(func(s *transfer.Status) { s.Connected = false; s.DownSince = ago(500*time.Millisecond - 1) }), 0, pending, 1},
		"holder gone, tokens flow":      {syncRule, un("holder_lost", "no connection"), base(func(s *transfer.Status) { s.Connected = false; s.DownSince = ago(time.Hour) }), 5, un("holder_lost", "no connection"), 0},
		"first boundary":                {syncRule, pending, repl(1, 1, 0), 0, protected, 0},
		"no holder":                     {syncRule, protected, transfer.Status{}, 3, un("no_holder", ""), 0},
		"rejected": {syncRule, protected, transfer.Status{Attached: true, Rejected: true, Reason: seguev1.Reason_REASON_STORE_FULL, Detail: "need 3 bytes"}, 3,
			un("store_full", "need 3 bytes"), 0},
		"commit in time":                       {syncRule, protected, repl(9, 8, 100*time.Millisecond), 8, protected, 400 * time.Millisecond},
		"commit one tick from late":            {syncRule, protected, repl(9, 8, 500*time.Millisecond-1), 8, protected, 1},
		"commit late":                          {syncRule, protected, repl(9, 8, 500*time.Millisecond), 8, lost, 0},
		"offline, nothing waits":               {syncRule, protected, offline(repl(9, 9, 0)), 9, protected, 0},
		"offline for long, nothing waits":      {syncRule, protected, gone(repl(9, 9, 0)), 9, protected, 0},
		"holder came back with less":           {syncRule, protected, repl(9, 4, 0), 8, un("holder_lost", "the holder's store is gone"), 500 * time.Millisecond},
		"holder came back with nothing":        {syncRule, protected, base(func(*transfer.Status) {}), 8, un("holder_lost", "the holder's store is gone"), 4 * time.Second},
		"still late":                           {syncRule, lost, repl(9, 4, time.Second), 9, lost, 0},
		"far behind":                           {syncRule, lost, repl(20, 12, 0), 20, lost, 500 * time.Millisecond},
		"near, newest not committed":           {syncRule, lost, repl(20, 13, 0), 20, agent.Shield{State: "pending", Cause: "holder_lost", Detail: "commit_timeout"}, 500 * time.Millisecond},
		"near, offline":                        {syncRule, lost, offline(repl(20, 13, 0)), 20, lost, 500 * time.Millisecond},
		"caught up":                            {syncRule, lost, repl(20, 20, 0), 20, protected, 0},
		"caught up, newest is still kept back": {syncRule, lost, repl(21, 20, 0), 20, protected, 500 * time.Millisecond},
		"async is protected behind the tokens": {async, lost, repl(20, 13, 0), 20, protected, 500 * time.Millisecond},
		"async far behind":                     {async, lost, repl(20, 12, 0), 20, lost, 500 * time.Millisecond},
		"async late":                           {async, protected, repl(20, 13, time.Second), 20, lost, 0},
	} {
		t.Run(name, func(t *testing.T) {
			j := agent.NewJudge(c.from)
			changed, next := j.Update(c.rules, c.st, c.released, epoch0)
			if diff := cmp.Diff(c.want, j.Now()); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
			if next != c.next {
				t.Errorf("holds for %v, want %v", next, c.next)
			}
			if wants := c.from != c.want; changed != wants {
				t.Errorf("changed = %v", changed)
			}
		})
	}
}

// INVARIANT: under sync, protected implies committed >= released. A state lasts as long as update says, and
// with nothing new the announced state changes at most once.
func TestProtection_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := agent.Rules{
			Sync: rapid.Bool().Draw(t, "sync"), Window: rapid.IntRange(1, 40).Draw(t, "window"),
			CommitTimeout: time.Duration(rapid.IntRange(1, 900).Draw(t, "commit_timeout")) * time.Millisecond,
			BaseTimeout:   time.Duration(rapid.IntRange(1, 9000).Draw(t, "base_timeout")) * time.Millisecond,
		}
		j, now := agent.NewJudge(agent.Shield{State: "pending"}), epoch0
		released := 0
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 700).Draw(t, "ms")) * time.Millisecond)
			st := drawStatus(t, now)
			before := j.Now()
			changed, next := j.Update(r, st, released, now)
			got := j.Now()
			if changed != (before.State != got.State || (got.State == "unprotected" && before.Cause != got.Cause)) {
				t.Fatalf("changed = %v from %v to %v", changed, before, got)
			}
			checkState(t, r, st, released, got)
			checkDeadline(t, r, st, released, now, got, next)
			checkSettles(t, r, st, released, now, got)
			// Tokens leave as the release rule says.
			switch {
			case !r.Sync || got.State == "unprotected":
				released = max(released, st.Captured)
			default:
				released = max(released, min(st.Captured, st.Committed))
			}
			if r.Sync && got.State == "protected" && st.Committed < released {
				t.Fatalf("released %d of %d committed", released, st.Committed)
			}
		}
	})
}

// drawStatus draws what an outbox may say at now; the holder may lose everything from one to the next.
func drawStatus(t *rapid.T, now time.Time) transfer.Status {
	st := transfer.Status{
		Attached: rapid.IntRange(0, 9).Draw(t, "attached") > 0, Rejected: rapid.IntRange(0, 9).Draw(t, "rejected") == 0,
		Connected: rapid.IntRange(0, 4).Draw(t, "connected") > 0,
		Captured:  rapid.IntRange(0, 60).Draw(t, "captured"),
		MovedAt:   now.Add(-time.Duration(rapid.IntRange(0, 9000).Draw(t, "moved")) * time.Millisecond),
		Reason:    seguev1.Reason_REASON_STORE_FULL,
	}
	if st.Attached && !st.Connected {
		st.DownSince = now.Add(-time.Duration(rapid.IntRange(0, 900).Draw(t, "down")) * time.Millisecond)
	}
	st.Rows = rapid.IntRange(0, 20).Draw(t, "rows")
	st.AckRows = rapid.IntRange(0, st.Rows).Draw(t, "acked")
	if !st.Rejected {
		st.Committed = rapid.IntRange(max(0, st.Captured-20), st.Captured).Draw(t, "committed")
	}
	st.Sent, st.Replicating = st.Captured, st.Committed > 0
	if st.Captured > st.Committed {
		st.OldestUncommitted = now.Add(-time.Duration(rapid.IntRange(0, 900).Draw(t, "oldest")) * time.Millisecond)
	}
	return st
}

func checkState(t *rapid.T, r agent.Rules, st transfer.Status, released int, got agent.Shield) {
	switch got.State {
	case "protected":
		if !st.Attached || st.Rejected || !st.Replicating || (r.Sync && st.Committed < released) || got.Cause != "" {
			t.Fatalf("%+v with %+v, released %d", got, st, released)
		}
	case "unprotected":
		if got.Cause == "" {
			t.Fatalf("unprotected without a cause, with %+v", st)
		}
	case "pending":
		if !st.Attached || st.Rejected {
			t.Fatalf("pending with %+v", st)
		}
	}
}

// checkDeadline compares next with the state at the deadline and just before it.
func checkDeadline(t *rapid.T, r agent.Rules, st transfer.Status, released int, now time.Time, got agent.Shield, next time.Duration) {
	if next < 0 {
		t.Fatalf("deadline %v ago", -next)
	}
	at := func(d time.Duration) agent.Shield {
		j := agent.NewJudge(got)
		j.Update(r, st, released, now.Add(d))
		j.Update(r, st, released, now.Add(d))
		return j.Now()
	}
	settled := at(0)
	if next == 0 {
		if later := at(24 * time.Hour); later != settled {
			t.Fatalf("%+v holds for ever, but is %+v a day later, with %+v", settled, later, st)
		}
		return
	}
	if before := at(next - 1); before != settled {
		t.Fatalf("%+v holds for %v, but is %+v before, with %+v", settled, next, before, st)
	}
	if after := at(next); after.State != "unprotected" || after.Cause != "holder_lost" {
		t.Fatalf("%+v after the deadline, with %+v", after, st)
	}
}

// checkSettles repeats the same input: no second announcement, and rest after at most one silent step.
func checkSettles(t *rapid.T, r agent.Rules, st transfer.Status, released int, now time.Time, got agent.Shield) {
	j := agent.NewJudge(got)
	j.Update(r, st, released, now)
	if s := j.Now(); s != got && s.State != "pending" {
		t.Fatalf("%+v became %+v by itself, with %+v", got, s, st)
	}
	if changed, _ := j.Update(r, st, released, now); changed {
		t.Fatalf("%+v flaps to %+v, with %+v", got, j.Now(), st)
	}
}

func TestReasonName(t *testing.T) {
	for n, want := range map[int32]string{
		int32(seguev1.Reason_REASON_STORE_FULL): "store_full", int32(seguev1.Reason_REASON_FENCED): "fenced", 0: "unspecified",
		-1: "unspecified", 12345: "unspecified",
	} {
		if got := agent.ReasonName(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}
