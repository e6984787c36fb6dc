// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/restart"
)

// healthCode is a verdict's exit code.
func healthCode(v health.Verdict) int {
	switch {
	case v.Lost():
		return exitUnreachable
	case v.Healthy():
		return exitOK
	}
	return exitUndecided
}

// healthLine is what is printed of an assessment.
type healthLine struct {
	Time     time.Time       `json:"time"`
	Target   string          `json:"target"`
	Kind     string          `json:"kind"`
	Verdict  health.Verdict  `json:"verdict"`
	Reasons  []health.Reason `json:"reasons"`
	Detail   string          `json:"detail,omitempty"`
	InFlight int             `json:"in_flight"`
	// Silence is how long nothing has moved while something was in flight, Limit how long it may; seconds.
	Silence   float64 `json:"silence_seconds"`
	Limit     float64 `json:"silence_limit_seconds"`
	NewEngine bool    `json:"new_engine,omitempty"`
	Stuck     bool    `json:"counters_stuck,omitempty"`
	ExitCode  int     `json:"exit_code"`
	Next      string  `json:"next"`
}

func newHealthLine(t healthTarget, a health.Assessment) healthLine {
	l := healthLine{
		Time: a.At, Target: t.url, Kind: t.kind(), Verdict: a.Verdict, Reasons: a.Reasons, Detail: printable(a.Detail),
		InFlight: a.InFlight, Silence: a.Silence.Seconds(), Limit: a.Limit.Seconds(), NewEngine: a.NewEngine, Stuck: a.CountersStuck,
		ExitCode: healthCode(a.Verdict), Next: healthAdvice(a.Verdict, a.Reasons),
	}
	if l.Reasons == nil {
		l.Reasons = []health.Reason{}
	}
	return l
}

// text is the line for people.
func (l healthLine) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s", l.Target, l.Verdict)
	for i, r := range l.Reasons {
		b.WriteString([]string{" (", ", "}[min(i, 1)] + string(r))
	}
	if len(l.Reasons) > 0 {
		b.WriteString(")")
	}
	fmt.Fprintf(&b, "  kind=%s in_flight=%d", l.Kind, l.InFlight)
	if l.Silence > 0 {
		fmt.Fprintf(&b, " silence=%.1fs limit=%.1fs", l.Silence, l.Limit)
	}
	if l.NewEngine {
		b.WriteString(" new_engine")
	}
	if l.Stuck {
		b.WriteString(" counters_stuck")
	}
	if l.Detail != "" {
		fmt.Fprintf(&b, "  %s", l.Detail)
	}
	return b.String() + "  next: " + l.Next
}

// healthAdvice says what to do.
func healthAdvice(v health.Verdict, why []health.Reason) string {
	has := func(r health.Reason) bool { return slices.Contains(why, r) }
	switch v {
	case health.Unknown:
		if has(health.ReasonNoMetrics) {
			return "nothing follows from this: without metrics a probe may have waited behind the work of others"
		}
		return "nothing follows from this: look again, or longer (--timeout)"
	case health.Reachable:
		if has(health.ReasonProxy) {
			return "nothing; to know more, name the servers behind the proxy"
		}
		return "nothing; to know more, have the server publish its metrics"
	case health.Starting:
		return "wait until it has loaded"
	case health.Sleeping:
		return "nothing; the next request wakes it"
	case health.Idle, health.Busy, health.Waiting:
		return "nothing"
	case health.Watch:
		return "nothing now; look whether it happens again"
	case health.Degraded:
		return "give it less new work, and look for the cause"
	case health.Evacuate:
		return "move its work elsewhere while it still runs, then look at the machine"
	case health.CutOff:
		return "look at address, network and TLS; nothing proves that the server is dead"
	case health.Hung:
		if has(health.ReasonStartBudget) {
			return "look at its log: it loads for longer than --start-budget"
		}
		return "give it no new work, keep its log and stacks, then restart it"
	case health.Dead:
		if has(health.ReasonOnlyErrors) {
			return "look at its log, then restart it"
		}
		return "start it, or look whether it listens on another port"
	}
	return "nothing"
}

// healthOutput prints lines, one at a time.
type healthOutput struct {
	mu     sync.Mutex
	w      io.Writer
	asJSON bool
}

func (o *healthOutput) write(v any, text string) error {
	b := []byte(text)
	if o.asJSON {
		var err error
		if b, err = json.Marshal(v); err != nil {
			return err
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_, err := o.w.Write(append(b, '\n'))
	return err
}

// verdict prints an assessment, for a single look without the time.
func (o *healthOutput) verdict(l healthLine, withTime bool) error {
	text := l.text()
	if withTime {
		text = l.Time.Format(time.RFC3339) + "  " + text
	}
	return o.write(l, text)
}

// restart prints what became of a restart.
func (o *healthOutput) restart(target string, e restart.Event) error {
	line := struct {
		Time   time.Time `json:"time"`
		Target string    `json:"target"`
		Event  string    `json:"restart"`
		Text   string    `json:"text"`
	}{e.At, target, e.Kind, e.Text}
	return o.write(line, fmt.Sprintf("%s  %s  restart %s: %s", e.At.Format(time.RFC3339), target, e.Kind, e.Text))
}
