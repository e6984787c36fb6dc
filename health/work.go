// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health

import (
	"math"
	"time"
)

// work is what the engine has to do, and when something last came of it.
type work struct {
	// inFlight counts requests, ours and others', without our probe. Reads that tell nothing leave it as it is.
	inFlight int
	// moved is when progress was last seen, or when silence began to count: work came, or the reader saw nothing before.
	// pauses counts the reads without progress since.
	moved  time.Time
	pauses int
	// prefilling are gaps while prompts of ours are computed, gaps all others.
	prefilling, gaps gaps
	// progressed: it moved since work came to it.
	progressed bool
	// hung: it was found hung, and showed no life since.
	hung bool
	// stopped: it was found hung and its process gave no answer.
	stopped bool
	// unmoved counts reads with tokens of ours and without a move of the counters, in a row, the latest of which came
	// unmovedFor after counted, when they moved last.
	unmoved    int
	unmovedFor time.Duration
	counted    time.Time
	// answered is when tokens of ours last arrived, or were first due.
	answered time.Time
	// busy is when something was last known to be in flight, token when a token was last put out: zero of a process that
	// has replaced another.
	busy, token time.Time
}

// account keeps time: of progress, of tokens, of what is in flight.
func (d *Detector) account(r Reading, s signs) {
	w := &d.work
	was := w.inFlight
	w.inFlight = d.inFlight(r)
	if s.tokens || s.delivered || s.passed {
		w.token = r.Until
		d.probe.failed = 0
	}
	if s.moved || w.inFlight > 0 {
		w.busy = r.Until
	}
	if s.delivered || r.Ours.decoding() <= 0 || d.last.Ours.decoding() <= 0 {
		w.answered = r.Until
	}
	switch {
	case s.moved || w.counted.IsZero():
		w.unmoved, w.unmovedFor, w.counted = 0, 0, r.Until
	case s.delivered && s.compared:
		w.unmoved, w.unmovedFor = w.unmoved+1, r.Until.Sub(w.counted)
	}
	switch {
	case s.moved || s.delivered:
		if was > 0 && !s.void && !w.stopped {
			d.learn(r)
		}
		w.moved, w.pauses, w.progressed = r.Until, 0, true
	case was == 0 || w.inFlight == 0:
		w.progressed = false
		d.restart(r.Until)
	case s.void || r.Ours.allWait() || r.Outcome == Cut || r.Outcome == Answered && (r.Loading || r.Sleeping):
		d.restart(r.Until)
	default:
		w.pauses++
	}
	lapsed := w.inFlight == 0 && d.probe.failed == 0 && r.Until.Sub(w.busy) > d.cfg.IdleLimit
	// A process that had fallen silent speaks again, and has nothing to do. What it didn't do meanwhile isn't its step loop's.
	woke := w.stopped && w.inFlight == 0 && r.Outcome == Answered && r.Steps
	if s.moved || s.delivered || s.passed || lapsed || woke {
		w.hung, w.stopped = false, false
	}
	d.heed(r, s)
	switch {
	case s.void, s.delivered, r.Outcome != TimedOut && r.Outcome != Failed:
		d.mute = mute{}
	default:
		if d.mute.reads == 0 {
			d.mute.since = r.At
		}
		d.mute.reads++
	}
}

// learn takes in the gap that ends with r. A silence that was called a hang may have been a false alarm: it counts as long
// as it takes to double the limit. That of a process that was stopped isn't the engine's.
func (d *Detector) learn(r Reading) {
	gap := r.Until.Sub(d.work.moved)
	if d.work.hung {
		gap = min(gap, time.Duration(2/d.cfg.Factor*float64(d.limit(r))))
	}
	d.history(r).add(gap)
}

// history is what is known of gaps in the present phase. What was asked for before counts: a first token ends a prefill.
func (d *Detector) history(r Reading) *gaps {
	if r.Ours.Prefilling > 0 || d.last.Ours.Prefilling > 0 {
		return &d.work.prefilling
	}
	return &d.work.gaps
}

// inFlight counts what the engine has to do. One request on it may be the outstanding probe.
func (d *Detector) inFlight(r Reading) int {
	n := d.work.inFlight
	switch r.Outcome {
	case Answered:
		n = r.InFlight
		if d.probe.outstanding {
			n--
		}
	case Opaque, Refused, Gone:
		n = 0
	}
	return max(n, r.Ours.InFlight, 0)
}

// heed lets the silence begin with the demand, and ends the demand when the engine has moved after it: what moved since
// a read from before may have moved before.
func (d *Detector) heed(r Reading, s signs) {
	if d.demand.IsZero() {
		return
	}
	if (s.moved || s.delivered) && !d.last.At.Before(d.demand) || s.passed && !d.probe.asked.Before(d.demand) {
		d.demand = time.Time{}
		return
	}
	if d.demand.After(d.work.moved) && !d.demand.After(r.Until) {
		d.work.moved, d.work.pauses = d.demand, 0
	}
}

// stuck reports whether the counters stand still while tokens arrive, and not only because a page is older than a read.
func (d *Detector) stuck() bool {
	return d.work.unmoved >= d.cfg.Pauses && d.work.unmovedFor > d.cfg.Floor
}

// blind reports whether a long prefill would look like silence.
func (d *Detector) blind(r Reading) bool {
	switch {
	case d.stuck() || r.Outcome == Opaque:
		return true
	case r.Outcome == Answered:
		return !r.Steps
	}
	return d.life.base == nil || !d.life.base.Steps
}

// limit is how long nothing may move.
func (d *Detector) limit(r Reading) time.Duration {
	floor, ceiling := d.cfg.Floor, d.cfg.Ceiling
	blind := d.blind(r)
	if blind {
		floor = max(floor, d.cfg.BlindFloor)
	}
	switch prefill := blind && r.Ours.Prefilling > 0; {
	case !d.demand.IsZero() && !prefill:
		return d.cfg.Demand
	case d.demand.IsZero() && prefill:
		floor = max(floor, d.cfg.BlindPrefill)
	}
	seen := d.history(r)
	if seen.cold() && d.work.inFlight > 0 && r.Outcome != Failed {
		floor = max(floor, d.cfg.Cold)
	}
	ceiling = max(ceiling, floor)
	adaptive := math.Min(d.cfg.Factor*float64(seen.p99()), float64(ceiling))
	return max(time.Duration(adaptive), floor)
}
