// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health

import "time"

const (
	// probeAgain is the pause after the first failed probe; it doubles with each further one, up to the idle limit.
	probeAgain = time.Second
	// mostDoublings keeps the pause from overflowing.
	mostDoublings = 16
)

type probes struct {
	outstanding bool
	// withdrawn: a failure of the outstanding one says nothing. foreign: it was sent to another process, and says nothing.
	withdrawn, foreign bool
	asked              time.Time
	failed             int       // in a row
	first              time.Time // when the first of those was asked for
	next               time.Time // not before
}

// settle takes in how the outstanding probe ended, and reports whether it passed. One during which the reader stood
// still had no fair chance.
func (d *Detector) settle(r Reading, void bool) (passed bool) {
	p := &d.probe
	if !p.outstanding {
		return false
	}
	p.withdrawn = p.withdrawn || void
	if r.Probe == ProbeNone {
		return false
	}
	was := *p
	p.outstanding, p.withdrawn, p.foreign = false, false, false
	switch {
	case was.foreign:
	case r.Probe == ProbePassed:
		p.next = time.Time{}
		return true
	case was.withdrawn:
		p.next = r.Until.Add(min(probeAgain, d.cfg.IdleLimit))
	case r.Probe == ProbeFailed:
		if p.failed == 0 {
			p.first = p.asked
		}
		p.next = r.Until.Add(min(probeAgain<<min(p.failed, mostDoublings), d.cfg.IdleLimit))
		p.failed++
	default:
		p.next = r.Until.Add(d.cfg.IdleLimit)
	}
	return false
}

// wantProbe asks for a probe of an engine that has been idle for the idle limit, is new, failed the last one, was hung or
// may have lost its device; and withdraws the outstanding one when work has come or nothing is known any more.
func (d *Detector) wantProbe(a *Assessment, r Reading) {
	p := &d.probe
	if p.outstanding {
		a.DropProbe = a.NewEngine || !d.free(r)
		p.withdrawn = p.withdrawn || a.DropProbe
		return
	}
	if !d.free(r) || r.Until.Before(p.next) {
		return
	}
	switch a.Verdict {
	case Idle, Reachable, Hung:
	default:
		return
	}
	w := &d.work
	rested := r.Until.Sub(w.token) > d.cfg.IdleLimit && r.Until.Sub(w.busy) > d.cfg.IdleLimit
	if rested || w.token.IsZero() || w.hung || p.failed > 0 || !d.demand.IsZero() {
		a.Probe, p.outstanding, p.asked = true, true, r.Until
	}
}

// free reports whether the engine is known to be awake and to have nothing to do.
func (d *Detector) free(r Reading) bool {
	switch r.Outcome {
	case Answered, Opaque:
		return d.work.inFlight == 0 && !r.Proxy && !r.Loading && !r.Sleeping
	}
	return false
}
