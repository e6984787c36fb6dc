// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health

import "time"

// Reason is why a verdict was given: a fixed word for logs, metrics and tests.
type Reason string

// The detector's reasons. Those of a GPU are in package gpu.
const (
	ReasonProgress      Reason = "progress"        // a counter moved
	ReasonOurTokens     Reason = "our_tokens"      // tokens of ours arrived
	ReasonQuiet         Reason = "quiet"           // nothing moved, not for long enough to say more
	ReasonAllWait       Reason = "all_wait"        // all of ours waits for others
	ReasonNothingRuns   Reason = "nothing_runs"    // nothing is in flight
	ReasonProbePassed   Reason = "probe_passed"    // the last word on an idle engine
	ReasonProbeFailed   Reason = "probe_failed"    // so many probes got nothing
	ReasonProxy         Reason = "proxy"           // a proxy answers
	ReasonNoMetrics     Reason = "no_metrics"      // it tells nothing of its work
	ReasonLoading       Reason = "loading"         // it loads, or its port isn't open yet
	ReasonStartBudget   Reason = "start_budget"    // it loads for too long
	ReasonSleeping      Reason = "sleeping"        // it sleeps
	ReasonNoProgress    Reason = "no_progress"     // in flight, and nothing moved
	ReasonNoAnswer      Reason = "no_answer"       // reads time out
	ReasonRefused       Reason = "refused"         // connection refused
	ReasonProcessGone   Reason = "process_gone"    // the process ended
	ReasonCut           Reason = "connection_lost" // the transport is gone
	ReasonOnlyErrors    Reason = "only_errors"     // every answer is an error
	ReasonCountersStuck Reason = "counters_stuck"  // tokens arrive, the counters stand still
	ReasonZombie        Reason = "zombie_work"     // counters move, ours get nothing
	ReasonFirstRead     Reason = "first_read"      // nothing to compare with yet
	ReasonOwnPause      Reason = "own_pause"       // the reader itself had stopped
)

// Assessment is what a Reading led to.
type Assessment struct {
	At      time.Time
	Verdict Verdict
	Reasons []Reason
	// Detail is the Reading's, for people.
	Detail string
	// NewEngine: this is another process than before. What ran on the old one is lost.
	NewEngine bool
	// CountersStuck: tokens of ours arrive while no counter moves. Tokens are trusted.
	CountersStuck bool
	// InFlight counts requests on the engine, ours and others'.
	InFlight int
	// Silence is how long nothing has moved while something was in flight, Limit how long it may.
	Silence, Limit time.Duration
	// Working: the verdict is that on a device, and the engine on it still moves. It stays in service until its sessions
	// are elsewhere.
	Working bool
	// Probe asks for one probe; DropProbe withdraws the one that is outstanding.
	Probe, DropProbe bool
}

// Combine joins the verdict on an engine with that on its devices: the worse one, with the reasons of both if they
// are of one rank. Unknown devices, or healthy ones, change nothing. An Unknown engine on a device that is dead,
// to be left or degraded is what the device is.
func Combine(engine, device Assessment) Assessment {
	if device.Verdict < Watch || device.Verdict == Watch && !engine.Verdict.Healthy() {
		return engine
	}
	out := engine
	out.Working = engine.Verdict == Busy
	switch {
	case device.Verdict > engine.Verdict:
		out.Verdict, out.Reasons, out.Detail = device.Verdict, device.Reasons, device.Detail
	case device.Verdict == engine.Verdict:
		out.Reasons = append(engine.Reasons[:len(engine.Reasons):len(engine.Reasons)], device.Reasons...)
	}
	return out
}
