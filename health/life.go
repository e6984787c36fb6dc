// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health

import (
	"math"
	"time"
)

// life is what is known of the engine process that runs now.
type life struct {
	// incarnation is its name, or that of the one before it while its own isn't known.
	incarnation string
	// base is the latest Reading with counters of its own.
	base *Reading
	// heard: it has answered; up: it has answered that it has loaded.
	heard, up bool
	// lost: one that had answered was refused or gone since. What answers then is another process, unless the
	// incarnation says otherwise.
	lost bool
	// began is when it was first seen, or began to load.
	began time.Time
}

// identify notices another process, and forgets what it knew of the old one.
func (d *Detector) identify(r Reading) (other bool) {
	l := &d.life
	known := l.incarnation != "" && r.Incarnation != ""
	other = known && l.incarnation != r.Incarnation
	if r.Outcome == Answered || r.Outcome == Opaque && !r.Proxy {
		other = other || !known && l.lost
	}
	if r.Outcome == Answered && l.base != nil {
		other = other || fell(l.base.Counters, r.Counters)
	}
	if !d.seen {
		l.began, d.work.token, d.work.busy = r.Until, r.Until, r.Until
	}
	if other {
		*l = life{incarnation: l.incarnation, began: r.Until}
		d.work = work{busy: d.work.busy}
		d.probe = probes{outstanding: d.probe.outstanding, foreign: d.probe.outstanding}
		d.mute, d.demand = mute{}, time.Time{}
	}
	if r.Incarnation != "" {
		l.incarnation = r.Incarnation
	}
	switch r.Outcome {
	case Answered:
		if r.Loading && l.up {
			l.began = r.Until
		}
		l.heard, l.up, l.lost = true, !r.Loading, false
	case Opaque:
		l.heard, l.up, l.lost = true, true, false
	case Refused, Gone:
		l.lost, l.base = l.lost || l.heard, nil
		if !r.Alive {
			l.heard, l.up = false, false
		}
	}
	return other
}

// fell reports whether a counter is lower than before, which only another process explains.
func fell(before, now []Counter) bool {
	for i, c := range now {
		if b, ok := find(before, i, c.Name); ok && number(c.Value) && !c.Gauge && c.Value < b.Value {
			return true
		}
	}
	return false
}

// compare looks whether the engine moved since the base, and whether it put out tokens.
func (d *Detector) compare(r Reading, s *signs) {
	if r.Outcome != Answered {
		return
	}
	if base := d.life.base; base != nil {
		for i, c := range r.Counters {
			b, ok := find(base.Counters, i, c.Name)
			if !ok || !number(c.Value) {
				continue
			}
			s.compared = true
			if c.Value != b.Value {
				s.moved = true
				s.tokens = s.tokens || c.Tokens
			}
		}
	}
	d.life.base = &r
}

// find returns the counter of that name whose value is a number. It looks at the place i first: a counter that comes or
// goes shifts the others.
func find(in []Counter, i int, name string) (Counter, bool) {
	if i < len(in) && in[i].Name == name {
		return in[i], number(in[i].Value)
	}
	for _, c := range in {
		if c.Name == name {
			return c, number(c.Value)
		}
	}
	return Counter{}, false
}

func number(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
