// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health

import "fmt"

// Verdict is what is held of an engine. The zero value is Unknown.
type Verdict int

const (
	// Unknown: nothing is known. It changes nothing.
	Unknown Verdict = iota
	// Reachable: it answers, and tells nothing of its work, as a proxy does. Healthy.
	Reachable
	// Starting: it loads, within its start budget.
	Starting
	// Sleeping: it has put its weights away and wakes with the next request. It is never probed.
	Sleeping
	// Idle: nothing is in flight. Healthy.
	Idle
	// Busy: something is in flight and moves. Healthy, whatever the latency.
	Busy
	// Waiting: all in flight waits for others: a window, an acknowledgement, a client. Healthy.
	Waiting
	// Watch: a sign worth counting; nothing follows from it.
	Watch
	// Degraded: it works, worse than others: it gets less new work.
	Degraded
	// Evacuate: it works, and should be left: every session is moved as planned, no new one comes.
	Evacuate
	// CutOff: it can't be reached, and nothing proves that it is dead.
	CutOff
	// Hung: something is in flight and nothing moves.
	Hung
	// Dead: the process or its device is gone.
	Dead
)

var verdictNames = [...]string{"unknown", "reachable", "starting", "sleeping", "idle", "busy", "waiting", "watch", "degraded", "evacuate", "cut_off", "hung", "dead"}

// String is the lower-case word of logs, metrics and JSON.
func (v Verdict) String() string {
	if v >= 0 && int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return fmt.Sprintf("Verdict(%d)", int(v))
}

// Verdicts lists all of them, Unknown first.
func Verdicts() []Verdict {
	list := make([]Verdict, len(verdictNames))
	for i := range list {
		list[i] = Verdict(i)
	}
	return list
}

// MarshalText writes what String says.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (v *Verdict) UnmarshalText(text []byte) error {
	for i, name := range verdictNames {
		if string(text) == name {
			*v = Verdict(i)
			return nil
		}
	}
	return fmt.Errorf("health: no verdict is called %q", text)
}

// Lost reports whether what runs there has to be fenced and continued elsewhere at once.
func (v Verdict) Lost() bool { return v == CutOff || v == Hung || v == Dead }

// Healthy reports whether the engine was seen to be well.
func (v Verdict) Healthy() bool {
	switch v {
	case Reachable, Sleeping, Idle, Busy, Waiting, Watch:
		return true
	}
	return false
}
