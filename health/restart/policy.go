// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package restart

import (
	"fmt"
	"time"

	"github.com/seguekv/segue/health"
)

// mostRestarts bounds Policy.Max, and with it the state.
const mostRestarts = 100

// Policy is how often a server may be restarted.
type Policy struct {
	// Grace is how long after a restart nothing is judged: the time that the server needs to load.
	Grace time.Duration
	// Backoff is the least time between the end of a restart and the next one. It doubles with each restart within
	// Window, up to MaxBackoff.
	Backoff, MaxBackoff time.Duration
	// Max is how many restarts there may be within Window, 1 to 100. When one more is due, there are none any more.
	Max    int
	Window time.Duration
	// Timeout is how long the command may take.
	Timeout time.Duration
	// Dead: restart a dead server too. By default only a hung one is, as a service manager restarts what has ended.
	Dead bool
}

// Defaults suit a server that takes minutes to load.
func Defaults() Policy {
	return Policy{
		Grace: 15 * time.Minute, Backoff: 5 * time.Minute, MaxBackoff: time.Hour,
		Max: 3, Window: 6 * time.Hour, Timeout: 2 * time.Minute,
	}
}

// Validate names the first setting that can't work.
func (p Policy) Validate() error {
	const longest = 30 * 24 * time.Hour
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"grace", p.Grace}, {"back-off", p.Backoff}, {"longest back-off", p.MaxBackoff}, {"window", p.Window}, {"command timeout", p.Timeout},
	} {
		if d.value < time.Millisecond || d.value > longest {
			return fmt.Errorf("restart: the %s is %v, not between 1ms and %v", d.name, d.value, longest)
		}
	}
	switch {
	case p.Max < 1 || p.Max > mostRestarts:
		return fmt.Errorf("restart: the maximum is %d, not between 1 and %d", p.Max, mostRestarts)
	case p.Backoff > p.MaxBackoff:
		return fmt.Errorf("restart: the back-off (%v) is above the longest one (%v)", p.Backoff, p.MaxBackoff)
	}
	needed := time.Duration(0)
	for n := 1; n <= p.Max; n++ {
		needed += p.pause(n)
	}
	if needed >= p.Window {
		return fmt.Errorf("restart: %d restarts with their pauses take at least %v, so that the maximum is never reached within %v: make the window longer, or the maximum smaller", p.Max, needed, p.Window)
	}
	return nil
}

// pause is the least time from the end of the nth restart within the window to the next.
func (p Policy) pause(n int) time.Duration { return max(p.Grace, p.backoff(n)) }

// backoff is the pause after the nth restart within the window.
func (p Policy) backoff(n int) time.Duration {
	d := p.Backoff
	for i := 1; i < n && d < p.MaxBackoff; i++ {
		d *= 2
	}
	return min(d, p.MaxBackoff)
}

// Action is what is to be done.
type Action int

const (
	// None: there is no reason to restart.
	None Action = iota
	// Wait: there is a reason, and it is too early.
	Wait
	// Run the command now.
	Run
	// Stop: there is a reason, and there were too many restarts.
	Stop
)

var actionNames = [...]string{"none", "wait", "run", "stop"}

// String is the lower-case word of logs and JSON.
func (a Action) String() string {
	if a >= 0 && int(a) < len(actionNames) {
		return actionNames[a]
	}
	return fmt.Sprintf("Action(%d)", int(a))
}

// MarshalText writes what String says.
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (a *Action) UnmarshalText(text []byte) error {
	for i, name := range actionNames {
		if string(text) == name {
			*a = Action(i)
			return nil
		}
	}
	return fmt.Errorf("restart: no action is called %q", text)
}

// Why is the reason of a Decision: a fixed word.
type Why string

// The reasons.
const (
	WhyVerdict Why = "verdict"  // the verdict asks for nothing
	WhyGrace   Why = "grace"    // it may still be loading
	WhyBackoff Why = "back_off" // the last restart was too short ago
	WhyHung    Why = "hung"     // it is hung
	WhyDead    Why = "dead"     // it is dead, and the policy says that this counts
	WhyMaximum Why = "maximum"  // there were as many as there may be
	WhyOther   Why = "other"    // another process owns the target
)

// Decision is what follows from a verdict.
type Decision struct {
	At     time.Time
	Action Action
	Why    Why
	// Until is when a Wait is over.
	Until time.Time
	// Recent counts the restarts within the window.
	Recent int
	// Save: the State is to be written to disk before anything else.
	Save bool
	// Lifted: the server was well for so long that a Stop is over.
	Lifted bool
}

// Decide says what follows from verdict v at that time, and what to remember. It doesn't count a restart: that is
// Begin's.
func (p Policy) Decide(s State, now time.Time, v health.Verdict) (Decision, State) {
	d := Decision{At: now}
	s, d.Save = s.until(now)
	d.Recent = s.recent(now, p.Window)
	if last, ok := s.last(); ok && now.Before(last.over(p).Add(p.Grace)) {
		d.Action, d.Why, d.Until = None, WhyGrace, last.over(p).Add(p.Grace)
		if p.asks(v) {
			d.Action = Wait
		}
		return d, s
	}
	switch {
	case v.Healthy():
		s.Seen = true
		if !s.Stopped.IsZero() && now.Sub(s.Bad) >= p.Window {
			s.Stopped, d.Save, d.Lifted = time.Time{}, true, true
		}
	case v != health.Unknown:
		s.Bad = now
	}
	last, restarted := s.last()
	switch {
	case !p.asks(v):
		d.Why = WhyVerdict
	case v == health.Dead && !s.Seen && now.Before(s.Since.Add(p.Grace)):
		d.Action, d.Why, d.Until = Wait, WhyGrace, s.Since.Add(p.Grace)
	case !s.Stopped.IsZero():
		d.Action, d.Why = Stop, WhyMaximum
	case d.Recent >= p.Max:
		s.Stopped, d.Save = now, true
		d.Action, d.Why = Stop, WhyMaximum
	case restarted && d.Recent > 0 && now.Before(last.over(p).Add(p.backoff(d.Recent))):
		d.Action, d.Why, d.Until = Wait, WhyBackoff, last.over(p).Add(p.backoff(d.Recent))
	case v == health.Dead:
		d.Action, d.Why = Run, WhyDead
	default:
		d.Action, d.Why = Run, WhyHung
	}
	return d, s
}

// asks reports whether the verdict is one to restart for.
func (p Policy) asks(v health.Verdict) bool {
	return v == health.Hung || v == health.Dead && p.Dead
}
