// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health

import "time"

// Outcome says how a read ended.
type Outcome int

const (
	// Answered: the facts of the Reading are the engine's own.
	Answered Outcome = iota
	// TimedOut: no answer in time. It counts as no progress, and proves nothing by itself.
	TimedOut
	// Refused: the host is there and nobody listens.
	Refused
	// Gone: the process is known to have ended.
	Gone
	// Cut: the transport is gone, without proof that the engine is.
	Cut
	// Failed: it answers everything with errors of its own.
	Failed
	// Opaque: it answers and tells nothing of its work.
	Opaque
)

var outcomeNames = [...]string{"answered", "timed_out", "refused", "gone", "cut", "failed", "opaque"}

// String is the lower-case word of logs and JSON.
func (o Outcome) String() string {
	if o >= 0 && int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "invalid"
}

// Reading is what one read of an engine yielded. A Detector keeps the slice of the last one.
type Reading struct {
	// At is when the read began, Until when it ended.
	At, Until time.Time
	Outcome   Outcome
	// Detail says more about an outcome, for people.
	Detail string
	// Incarnation names the process life: start time, pid, boot id. Empty when unknown.
	Incarnation string
	// Alive: the engine's process is known to run, whatever the outcome.
	Alive bool
	// Proxy: the target is a proxy, of which nothing but its being there can be known. It is never probed.
	Proxy             bool
	Loading, Sleeping bool
	// Steps: a counter moves with every step of the engine, also with one that puts nothing out. Without it a long
	// prefill looks like silence.
	Steps bool
	// InFlight counts the requests that the engine has: running and waiting. Of an Answered read only.
	InFlight int
	// Counters are what progress is read from, best in the same order in each Reading of a source. One that comes or goes
	// is no progress. Of an Answered read only.
	Counters []Counter
	// Ours is what the reader itself has there.
	Ours Ours
	// Probe is how the outstanding probe ended since the last Reading.
	Probe Probe
}

// outside is what can be known of a proxy: whether it answers. The rest belongs to one of the engines behind it, each
// time perhaps to another.
func (r Reading) outside() Reading {
	r.Incarnation, r.Counters, r.InFlight, r.Loading, r.Sleeping = "", nil, 0, false, false
	if r.Outcome == Answered {
		r.Outcome = Opaque
	}
	return r
}

// Counter is one number that moves when the engine works.
type Counter struct {
	Name string
	// Value that is infinite or not a number is ignored.
	Value float64
	// Gauge: it moves up and down. A fall of any other counter means another process.
	Gauge bool
	// Tokens: when it moves, tokens were put out.
	Tokens bool
}

// Ours is what the reader knows of its own requests on the engine.
type Ours struct {
	// InFlight counts requests that aren't over; Waiting those of them that wait for a window, an acknowledgement or a
	// client; Prefilling those without a token so far.
	InFlight, Waiting, Prefilling int
	// Delivered counts tokens received; it never falls.
	Delivered uint64
}

// allWait reports whether there are some, and the engine isn't what any of them waits for.
func (o Ours) allWait() bool { return o.InFlight > 0 && o.Waiting >= o.InFlight }

// decoding counts those that should get tokens.
func (o Ours) decoding() int { return o.InFlight - o.Waiting - o.Prefilling }

// Probe is how a probe ended.
type Probe int

const (
	// ProbeNone: none has ended.
	ProbeNone Probe = iota
	// ProbePassed: it got its token.
	ProbePassed
	// ProbeFailed: no token by its deadline, or an error of the engine's own.
	ProbeFailed
	// ProbeDropped: it was withdrawn, or refused for want of room: it says nothing.
	ProbeDropped
)
