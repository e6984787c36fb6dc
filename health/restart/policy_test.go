// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package restart_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/restart"
)

// short is a policy whose numbers are easy to follow: pauses after a restart are 10, 10, 16, 20, 20 … minutes.
func short() restart.Policy {
	return restart.Policy{
		Grace: 10 * time.Minute, Backoff: 4 * time.Minute, MaxBackoff: 20 * time.Minute,
		Max: 3, Window: 2 * time.Hour, Timeout: time.Minute,
	}
}

func start() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// step is a verdict at a minute, and what follows.
type step struct {
	minute  float64
	verdict health.Verdict
	action  restart.Action
	why     restart.Why
}

// play runs steps; a Run takes a minute.
func play(t *testing.T, p restart.Policy, s restart.State, steps []step) restart.State {
	t.Helper()
	for _, x := range steps {
		now := start().Add(time.Duration(x.minute * float64(time.Minute)))
		d, next := p.Decide(s, now, x.verdict)
		if d.Action != x.action || d.Why != x.why {
			t.Fatalf("minute %v, %v: got %v (%s), want %v (%s)", x.minute, x.verdict, d.Action, d.Why, x.action, x.why)
		}
		s = next
		if d.Action == restart.Run {
			s = p.Begin(s, now).End(now.Add(time.Minute))
		}
	}
	return s
}

func TestPolicy_Decide(t *testing.T) {
	const (
		none, wait, run, stop          = restart.None, restart.Wait, restart.Run, restart.Stop
		verdict, grace, backoff, hung_ = restart.WhyVerdict, restart.WhyGrace, restart.WhyBackoff, restart.WhyHung
		dead, hung, idle, busy         = health.Dead, health.Hung, health.Idle, health.Busy
	)
	withDead := short()
	withDead.Dead = true
	for _, c := range []struct {
		name   string
		policy restart.Policy
		steps  []step
	}{
		{"a hung server is restarted at once", short(), []step{{0, hung, run, hung_}}},
		{"nothing is judged in the grace time", short(), []step{
			{0, hung, run, hung_}, {1.1, hung, wait, grace}, {2, dead, none, grace}, {5, idle, none, grace}, {10.9, hung, wait, grace}, {11, hung, run, hung_},
		}},
		{"a third restart waits for its back-off", func() restart.Policy { p := short(); p.Grace = time.Minute; return p }(), []step{
			{0, hung, run, hung_}, {3, hung, wait, backoff}, {5, hung, run, hung_}, {13.9, hung, wait, backoff}, {14, hung, run, hung_},
		}},
		{"after the maximum it stops", short(), []step{
			{0, hung, run, hung_}, {11, hung, run, hung_}, {30, hung, run, hung_}, {70, hung, stop, restart.WhyMaximum}, {119, hung, stop, restart.WhyMaximum},
			{600, hung, stop, restart.WhyMaximum},
		}},
		{"a stop is over when the server was well for the window", short(), []step{
			{0, hung, run, hung_}, {11, hung, run, hung_}, {30, hung, run, hung_}, {70, hung, stop, restart.WhyMaximum},
			{80, busy, none, verdict}, {189, idle, none, verdict}, {189.5, hung, stop, restart.WhyMaximum},
			{200, idle, none, verdict}, {309, idle, none, verdict}, {309.6, idle, none, verdict}, {310, hung, run, hung_},
		}},
		{"unknown doesn't end a stop", short(), []step{
			{0, hung, run, hung_}, {11, hung, run, hung_}, {30, hung, run, hung_}, {70, hung, stop, restart.WhyMaximum},
			{300, health.Unknown, none, verdict}, {301, hung, stop, restart.WhyMaximum},
		}},
		{"restarts older than the window are forgotten", short(), []step{
			{0, hung, run, hung_}, {11, hung, run, hung_}, {119, hung, run, hung_}, {131, hung, run, hung_},
		}},
		{"a dead one isn't restarted by default", short(), []step{{0, idle, none, verdict}, {1, dead, none, verdict}, {900, dead, none, verdict}}},
		{"a dead one that was seen well", withDead, []step{{0, idle, none, verdict}, {1, dead, run, restart.WhyDead}, {3, dead, wait, grace}, {12, dead, run, restart.WhyDead}}},
		{"a dead one that may still be loading", withDead, []step{{0, dead, wait, grace}, {9.9, dead, wait, grace}, {10, dead, run, restart.WhyDead}}},
	} {
		t.Run(c.name, func(t *testing.T) { play(t, c.policy, restart.State{Since: start()}, c.steps) })
	}
}

// Whatever isn't Hung, nor Dead if asked, never restarts anything, however long it lasts.
func TestPolicy_OtherVerdictsAreNoReason(t *testing.T) {
	for _, asked := range []bool{false, true} {
		p := short()
		p.Dead = asked
		for _, v := range health.Verdicts() {
			d, _ := p.Decide(restart.State{Since: start()}, start().Add(24*time.Hour), v)
			want := v == health.Hung || v == health.Dead && asked
			if got := d.Action == restart.Run; got != want {
				t.Errorf("%v, dead asked for: %v: run is %v", v, asked, got)
			}
		}
	}
}

// A watchdog that died while its command ran leaves a restart without an end: it counts as if it had taken all its time.
func TestPolicy_UnendedRestartCounts(t *testing.T) {
	p := short()
	s := p.Begin(restart.State{}, start())
	play(t, p, s, []step{{0.01, health.Hung, restart.Wait, restart.WhyGrace}, {10.9, health.Hung, restart.Wait, restart.WhyGrace}, {11, health.Hung, restart.Run, restart.WhyHung}})
}

// A clock that was set back leads to a wait from now on, neither to a restart nor to one that never comes.
func TestPolicy_ClockSetBack(t *testing.T) {
	p := short()
	ahead := start().Add(365 * 24 * time.Hour)
	s := p.Begin(restart.State{}, ahead).End(ahead.Add(time.Minute))
	d, s := p.Decide(s, start(), health.Hung)
	if d.Action != restart.Wait || d.Why != restart.WhyGrace || !d.Save || !d.Until.Equal(start().Add(p.Grace)) {
		t.Fatalf("got %+v", d)
	}
	play(t, p, s, []step{{9.9, health.Hung, restart.Wait, restart.WhyGrace}, {10, health.Hung, restart.Run, restart.WhyHung}})
}

// However verdicts come: restarts keep their distance, and no window has more than the maximum.
func TestPolicy_LimitsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := short()
		p.Max = rapid.IntRange(1, 4).Draw(t, "max")
		p.Dead = rapid.Bool().Draw(t, "dead")
		now := start()
		s := restart.State{Since: now}
		var runs []time.Time
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 1200).Draw(t, "seconds")) * time.Second)
			v := rapid.SampledFrom([]health.Verdict{health.Hung, health.Hung, health.Dead, health.Idle, health.Unknown, health.Starting}).Draw(t, "verdict")
			d, next := p.Decide(s, now, v)
			s = next
			if d.Action != restart.Run {
				continue
			}
			if v != health.Hung && !(v == health.Dead && p.Dead) {
				t.Fatalf("ran for %v", v)
			}
			if n := len(runs); n > 0 && now.Sub(runs[n-1]) < p.Grace {
				t.Fatalf("ran %v after the last one", now.Sub(runs[n-1]))
			}
			if n := len(runs); n >= p.Max && now.Sub(runs[n-p.Max]) < p.Window {
				t.Fatalf("%d runs within %v", p.Max+1, now.Sub(runs[n-p.Max]))
			}
			runs = append(runs, now)
			s = p.Begin(s, now)
			if rapid.Bool().Draw(t, "ended") {
				s = s.End(now.Add(time.Second))
			}
		}
		if len(s.Restarts) > p.Max {
			t.Fatalf("the state has %d restarts", len(s.Restarts))
		}
	})
}

func TestPolicy_Validate(t *testing.T) {
	if err := restart.Defaults().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*restart.Policy){
		"grace":             func(p *restart.Policy) { p.Grace = 0 },
		"window":            func(p *restart.Policy) { p.Window = -1 },
		"command timeout":   func(p *restart.Policy) { p.Timeout = 0 },
		"longest back-off":  func(p *restart.Policy) { p.MaxBackoff = 31 * 24 * time.Hour },
		"above the longest": func(p *restart.Policy) { p.Backoff = p.MaxBackoff + 1 },
		"maximum is 0":      func(p *restart.Policy) { p.Max = 0 },
		"maximum is 101":    func(p *restart.Policy) { p.Max = 101 },
		"never reached":     func(p *restart.Policy) { p.Window = 40 * time.Minute },
	} {
		p := restart.Defaults()
		change(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestKey(t *testing.T) {
	for target, want := range map[string]string{
		"http://127.0.0.1:8000":              "127.0.0.1_8000",
		"http://localhost:8000/v1":           "127.0.0.1_8000",
		"HTTP://LocalHost.:8000/":            "127.0.0.1_8000",
		"http://[::1]:8000":                  "127.0.0.1_8000",
		"http://0.0.0.0:8000/metrics?x":      "127.0.0.1_8000",
		"http://user:secret@GPU1:8000":       "gpu1_8000",
		"https://gpu1.example":               "gpu1.example_443",
		"http://gpu1.example":                "gpu1.example_80",
		"http://[2001:DB8:0::5]:8000":        "2001+db8++5_8000",
		"127.0.0.1:8000":                     "",
		"http://:8000":                       "",
		"http://..:8000":                     "",
		"http://a b:8000":                    "",
		"http://ä.example:8000":              "",
		"http://a%2f..%2fb:8000":             "",
		"":                                   "",
		"http://" + strings.Repeat("a", 300): "",
	} {
		got, err := restart.Key(target)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%.60s: got %q, %v, want %q", target, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q has the secret", err)
		}
	}
}
