// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health

func (a *Assessment) is(v Verdict, why ...Reason) { a.Verdict, a.Reasons = v, why }

// judge goes from what is certain to what is inferred.
func (d *Detector) judge(a *Assessment, r Reading, s signs) {
	if !d.told(a, r, s) {
		d.infer(a, r, s)
	}
	if !s.void || a.Verdict == Dead || a.Verdict == Busy {
		return
	}
	a.Reasons = append(a.Reasons, ReasonOwnPause)
	if a.Verdict.Lost() {
		a.Verdict = Unknown
	}
}

// told judges what a Reading says outright, and reports whether it did.
func (d *Detector) told(a *Assessment, r Reading, s signs) bool {
	starts := r.Until.Sub(d.life.began) <= d.cfg.StartBudget
	switch r.Outcome {
	case Gone:
		a.is(Dead, ReasonProcessGone)
		return true
	case Refused:
		if r.Alive && !d.life.heard && starts {
			a.is(Starting, ReasonLoading, ReasonRefused)
		} else {
			a.is(Dead, ReasonRefused)
		}
		return true
	case Cut:
		if !s.delivered {
			a.is(CutOff, ReasonCut)
		}
		return !s.delivered
	case Answered:
		switch {
		case s.delivered:
			return false
		case r.Loading && starts:
			a.is(Starting, ReasonLoading)
		case r.Loading:
			a.is(Hung, ReasonLoading, ReasonStartBudget)
		case r.Sleeping:
			a.is(Sleeping, ReasonSleeping)
		}
		return r.Loading || r.Sleeping
	case TimedOut, Failed, Opaque:
		return false
	}
	a.is(Unknown)
	return true
}

// infer judges by what moves and what doesn't.
func (d *Detector) infer(a *Assessment, r Reading, s signs) {
	a.Limit = d.limit(r)
	if d.work.inFlight > 0 {
		a.Silence = r.Until.Sub(d.work.moved)
	}
	zombie := r.Ours.decoding() > 0 && r.Until.Sub(d.work.answered) > d.cfg.Zombie
	switch {
	case s.delivered && d.stuck():
		a.is(Busy, ReasonOurTokens, ReasonCountersStuck)
		a.CountersStuck = true
	case s.delivered:
		a.is(Busy, ReasonOurTokens)
	case s.moved && zombie:
		a.is(Degraded, ReasonZombie)
	case s.moved:
		a.is(Busy, ReasonProgress)
	case r.Outcome == Failed:
		d.silent(a, r, Dead, ReasonOnlyErrors)
	case r.Outcome == TimedOut && (d.work.inFlight == 0 || r.Ours.allWait() || r.Proxy):
		d.silent(a, r, CutOff, ReasonNoAnswer)
	case r.Proxy:
		a.is(Reachable, ReasonProxy)
	case r.Ours.allWait():
		a.is(Waiting, ReasonAllWait)
	case d.work.inFlight > 0:
		d.still(a, r, zombie)
	default:
		d.idle(a, r, s)
	}
}

// still judges an engine that has something to do, and of which nothing moved.
func (d *Detector) still(a *Assessment, r Reading, zombie bool) {
	w := &d.work
	if w.pauses >= d.cfg.Pauses && a.Silence > a.Limit {
		w.hung = true
		w.stopped = w.stopped || r.Outcome == TimedOut
	}
	switch {
	case w.hung && r.Outcome == TimedOut:
		a.is(Hung, ReasonNoProgress, ReasonNoAnswer)
	case w.hung:
		a.is(Hung, ReasonNoProgress)
	case w.progressed && zombie:
		a.is(Degraded, ReasonZombie, ReasonQuiet)
	case w.progressed:
		a.is(Busy, ReasonQuiet)
	case w.pauses == 0:
		a.is(Unknown, ReasonFirstRead)
	default:
		a.is(Unknown, ReasonQuiet)
	}
}

// idle judges an engine that answers and has nothing to do. One that was found hung stays so until it shows life:
// whoever took its work away would else bring new work at once.
func (d *Detector) idle(a *Assessment, r Reading, s signs) {
	switch {
	case d.work.hung:
		a.is(Hung, ReasonNoProgress, ReasonNothingRuns)
	case d.probe.failed >= d.cfg.Probes && r.Until.Sub(d.probe.first) > a.Limit:
		a.is(Hung, ReasonNothingRuns, ReasonProbeFailed)
	case r.Outcome == Opaque:
		a.is(Reachable, ReasonNoMetrics)
	default:
		a.is(Idle, ReasonNothingRuns)
	}
	if s.passed {
		a.Reasons = append(a.Reasons, ReasonProbePassed)
	}
}

// silent judges an engine that gives no usable answer: v if that goes on for the limit of silence, else nothing. Of one
// whose answers were never seen, a long prefill isn't the first thing to think of.
func (d *Detector) silent(a *Assessment, r Reading, v Verdict, why Reason) {
	limit := a.Limit
	if d.life.base == nil {
		limit = d.cfg.Floor
	}
	switch {
	case !d.life.up && (r.Alive || r.Outcome == Failed) && r.Until.Sub(d.life.began) <= d.cfg.StartBudget:
		a.is(Starting, ReasonLoading, why)
	case d.mute.reads > d.cfg.Pauses && r.Until.Sub(d.mute.since) > limit:
		a.is(v, why)
	default:
		a.is(Unknown, why)
	}
}
