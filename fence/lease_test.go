// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fence_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/seguekv/segue/fence"
)

// six is the default lease.
var six = fence.Lease{TTL: 6 * time.Second, Margin: 500 * time.Millisecond}

func TestLease_Validate(t *testing.T) {
	for name, c := range map[string]struct {
		lease   fence.Lease
		renewal time.Duration
		want    string
	}{
		"the default":          {six, time.Second, ""},
		"just enough renewals": {fence.Lease{TTL: 3501 * time.Millisecond, Margin: 500 * time.Millisecond}, time.Second, ""},
		"one renewal too few":  {fence.Lease{TTL: 3500 * time.Millisecond, Margin: 500 * time.Millisecond}, time.Second, "3 renewals"},
		"no margin":            {fence.Lease{TTL: 6 * time.Second}, time.Second, "margin is 0s"},
		"negative margin":      {fence.Lease{TTL: 6 * time.Second, Margin: -1}, time.Second, "margin"},
		"all margin":           {fence.Lease{TTL: time.Second, Margin: time.Second}, time.Millisecond, "nothing of the lease is usable"},
		"no renewal":           {six, 0, "renewal is 0s"},
		"too long":             {fence.Lease{TTL: time.Hour, Margin: time.Second}, time.Second, "at most 10m"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.lease.ValidateRenewal(c.renewal)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestTerm_CountsFromTheQuestion(t *testing.T) {
	var term fence.Term
	if term.Live(0) || term.Left(0) != 0 {
		t.Fatal("a term that nobody granted is live")
	}
	if !term.Grant(13*time.Second, 10*time.Second, six) {
		t.Fatal("not live after the grant")
	}
	end := 15500 * time.Millisecond // 10 s + 6 s - 500 ms
	if left := term.Left(13 * time.Second); left != end-13*time.Second {
		t.Errorf("%v left", left)
	}
	if !term.Live(end-1) || term.Live(end) {
		t.Errorf("live before the end: %v, at it: %v", term.Live(end-1), term.Live(end))
	}
}

func TestTerm_RenewalNeverShortens(t *testing.T) {
	var term fence.Term
	term.Grant(10*time.Second, 10*time.Second, six)
	term.Grant(11*time.Second, 8*time.Second, six)                                                                // an older question
	term.Grant(11*time.Second, 11*time.Second, fence.Lease{TTL: 2 * time.Second, Margin: 500 * time.Millisecond}) // a shorter lease
	if left := term.Left(11 * time.Second); left != 4500*time.Millisecond {
		t.Errorf("%v left, want 4.5s", left)
	}
}

func TestTerm_StaysOver(t *testing.T) {
	var term fence.Term
	term.Grant(0, 0, six)
	if term.Grant(6*time.Second, 6*time.Second, six) {
		t.Error("a renewal revived a term that was over")
	}
	if term.Live(6*time.Second) || term.Live(0) {
		t.Error("live again")
	}
	var late fence.Term
	if late.Grant(6*time.Second, 0, six) || late.Live(6*time.Second) {
		t.Error("a lease that was over when it came is live")
	}
}

func TestGrant_IsOverAfterTheMargin(t *testing.T) {
	var g fence.Grant
	if g.Over(time.Hour) || g.Counted() {
		t.Fatal("a grant that isn't counted is over")
	}
	g.Count(10*time.Second, six)
	end := 16500 * time.Millisecond
	if !g.Counted() || g.Over(end-1) || !g.Over(end) || g.Left(10*time.Second) != six.TTL+six.Margin || g.Left(time.Minute) != 0 {
		t.Errorf("over before the end: %v, at it: %v; left %v", g.Over(end-1), g.Over(end), g.Left(10*time.Second))
	}
	if spare := g.Spare(10 * time.Second); spare != six.Usable() {
		t.Errorf("%v to spare for a renewal", spare)
	}
	g.Count(9*time.Second, six)
	if g.Over(end - 1) {
		t.Error("a renewal for an older question shortened the grant")
	}
}

func TestAsks_RememberTheLatest(t *testing.T) {
	var a fence.Asks
	if _, ok := a.At(0); ok {
		t.Error("question 0 was asked")
	}
	const asked = 200
	for i := range asked {
		if n := a.Ask(time.Duration(i+1) * time.Second); n != uint64(i+1) {
			t.Fatalf("question %d has number %d", i+1, n)
		}
	}
	kept := 0
	for n := range uint64(asked + 10) {
		at, ok := a.At(n)
		if ok && at != time.Duration(n)*time.Second {
			t.Errorf("question %d was asked at %v", n, at)
		}
		if ok {
			kept++
		}
	}
	_, newest := a.At(asked)
	_, never := a.At(asked + 1)
	if !newest || never || kept < 16 || kept >= asked {
		t.Errorf("newest known: %v, one never asked: %v, %d kept", newest, never, kept)
	}
}

func TestClock_IsTheLargerOfTheTwo(t *testing.T) {
	mono, boot := 100*time.Second, 7*time.Hour
	c := fence.ClockOf(func() time.Duration { return mono }, func() time.Duration { return boot })
	expect := func(what string, want time.Duration) {
		t.Helper()
		if got := c.Elapsed(); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	expect("at once", 0)
	mono, boot = mono+time.Second, boot+time.Second
	expect("a second later", time.Second)
	boot += time.Hour
	expect("after an hour's sleep", time.Hour+time.Second)
	boot -= time.Minute
	expect("when boot time falls", time.Hour+time.Second)
	mono += 2 * time.Hour
	expect("when boot time lags", 2*time.Hour+time.Second)
}

// machine is a clock in the model: it drifts, its monotonic part stands still while it sleeps, and it may leap.
type machine struct {
	mono, boot time.Duration
	permille   time.Duration
	clock      *fence.Clock
}

func newMachine(permille int) *machine {
	m := &machine{permille: time.Duration(permille)}
	m.clock = fence.ClockOf(func() time.Duration { return m.mono }, func() time.Duration { return m.boot })
	return m
}

func (m *machine) pass(d time.Duration, asleep bool) {
	d = d * m.permille / 1000
	m.boot += d
	if !asleep {
		m.mono += d
	}
}

// A grantor and a holder whose clocks differ in rate by less than the margin allows, whose machines sleep, and whose
// messages are late, lost, repeated and out of order. Whenever the grantor takes the run as ended, it has ended.
func TestLease_OverMeansNotLive(t *testing.T) {
	type question struct {
		number uint64
		at     time.Duration // of its receipt, by the grantor
	}
	overs, lives := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		l := fence.Lease{TTL: time.Duration(rapid.IntRange(1000, 10000).Draw(t, "ttl")) * time.Millisecond}
		l.Margin = l.TTL / time.Duration(rapid.IntRange(3, 20).Draw(t, "margin"))
		// The largest rate at which a clock may run, the other's being 1.
		limit := int(1000*(l.TTL+l.Margin)/(l.TTL-l.Margin)) - 1
		rate := rapid.OneOf(rapid.Just(1000), rapid.Just(limit), rapid.IntRange(1000, limit))
		holder, grantor := newMachine(rate.Draw(t, "holder's rate")), newMachine(rate.Draw(t, "grantor's rate"))
		var asks fence.Asks
		var term fence.Term
		var grant fence.Grant
		var last question
		var questions, grants []uint64 // in flight, by number; grant 0 is a call that quotes nothing
		open, started := false, false
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0, 1: // time
				d := time.Duration(rapid.IntRange(0, 2000).Draw(t, "passes")) * time.Millisecond
				holder.pass(d, rapid.Bool().Draw(t, "holder sleeps"))
				grantor.pass(d, rapid.Bool().Draw(t, "grantor sleeps"))
			case 9: // time, to the moment at which the grantor takes the run as ended
				d := grant.Left(grantor.clock.Elapsed())*1000/grantor.permille + time.Microsecond
				holder.pass(d, false)
				grantor.pass(d, false)
			case 2: // the holder's clock leaps; that can only end its lease early
				holder.boot += time.Duration(rapid.IntRange(0, 3000).Draw(t, "leap")) * time.Millisecond
			case 3:
				questions = append(questions, asks.Ask(holder.clock.Elapsed()))
			case 4: // a question arrives, and may do so again
				if len(questions) > 0 {
					i := rapid.IntRange(0, len(questions)-1).Draw(t, "question")
					last = question{questions[i], grantor.clock.Elapsed()}
				}
			case 5: // a grant leaves, also several for one question
				if last.number > 0 {
					grant.Count(last.at, l)
					grants = append(grants, last.number)
				} else if !started {
					open = true
					grants = append(grants, 0)
				}
			case 6: // a grant arrives, perhaps once more
				if len(grants) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(grants)-1).Draw(t, "grant")
				now := holder.clock.Elapsed()
				asked, ok := asks.At(grants[i])
				if grants[i] == 0 {
					asked, ok = now, true
					grants = append(grants[:i], grants[i+1:]...) // a call arrives once
				}
				if ok {
					started = true
					term.Grant(now, asked, l)
				}
			case 7: // a grant is lost
				if len(grants) > 0 && grants[0] != 0 {
					grants = grants[1:]
				}
			case 8: // the first event comes back: no call without a quote is on its way any more
				if open && started && len(grants) == 0 {
					open = false
					grant.Count(grantor.clock.Elapsed(), l)
				}
			}
			live := term.Live(holder.clock.Elapsed())
			over := !open && grant.Over(grantor.clock.Elapsed())
			if over && live {
				t.Fatalf("over for the grantor and live for the holder, who has %v left", term.Left(holder.clock.Elapsed()))
			}
			if over {
				overs++
			}
			if live {
				lives++
			}
		}
	})
	// With -short there are too few histories to be sure of both.
	if !testing.Short() && (overs == 0 || lives == 0) {
		t.Errorf("the model saw %d steps with the lease over and %d with it live", overs, lives)
	}
}

// Renewals of which every third is lost keep a lease of about the least valid length alive.
func TestLease_SurvivesALostRenewal(t *testing.T) {
	l := fence.Lease{TTL: 3501 * time.Millisecond, Margin: 500 * time.Millisecond}
	const renewal = time.Second
	if err := l.ValidateRenewal(renewal); err != nil {
		t.Fatal(err)
	}
	var asks fence.Asks
	var term fence.Term
	number := asks.Ask(0)
	for i := range 100 {
		now := time.Duration(i) * renewal
		if i > 0 && !term.Live(now-1) {
			t.Fatalf("over at %v", now)
		}
		if i%3 == 2 {
			continue // lost, and its question with it
		}
		asked, _ := asks.At(number)
		term.Grant(now, asked, l)
		number = asks.Ask(now)
	}
}
