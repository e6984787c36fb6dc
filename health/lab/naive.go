// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lab

import "time"

// Naive is a check that sends a chat request now and then and holds the engine for hung when several in a row weren't answered
// in time.
type Naive struct {
	// Every, Deadline and Fails are 5 minutes, 45 seconds and 5 if 0.
	Every, Deadline time.Duration
	Fails           int
	// Tokens is how many it asks for, 8 if 0.
	Tokens int
}

// NaiveResult is what it came to.
type NaiveResult struct {
	Probes, ProbesWhileBusy int
	// Unanswered counts checks without an answer in time from an engine that works, FalseAlarms how often that
	// made it be held for hung.
	Unanswered, FalseAlarms int
	// Found counts engines held for hung that were.
	Found int
}

// Run plays the check against the engine. Its requests aren't added to the load and not counted in the engine's Stats.
func (n Naive) Run(e *Engine, from, to time.Time) NaiveResult {
	every, deadline, fails, tokens := n.Every, n.Deadline, n.Fails, n.Tokens
	if every <= 0 {
		every = 5 * time.Minute
	}
	if deadline <= 0 {
		deadline = 45 * time.Second
	}
	if fails <= 0 {
		fails = 5
	}
	if tokens <= 0 {
		tokens = 8
	}
	var out NaiveResult
	row := 0
	for t := from.Add(every); t.Before(to); t = t.Add(every) {
		p, _ := e.Phase(t)
		out.Probes++
		if p.Busy() {
			out.ProbesWhileBusy++
		}
		a := e.Complete(t, tokens)
		if !a.Never && !a.Refused && !a.Reset && a.Status == 200 && a.After <= deadline {
			row = 0
			continue
		}
		row++
		waited := deadline
		if !a.Never {
			waited = min(a.After, deadline)
		}
		end, _ := e.Phase(t.Add(waited))
		sick := p.Sick() || end.Sick()
		if !sick {
			out.Unanswered++
		}
		if row < fails {
			continue
		}
		row = 0
		if sick {
			out.Found++
		} else {
			out.FalseAlarms++
		}
	}
	return out
}
