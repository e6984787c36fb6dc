// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package gpu

import (
	"fmt"
	"slices"
	"time"

	"github.com/seguekv/segue/health"
)

const (
	// throttled of window samples make a device slow.
	throttled = 6
	window    = 10
	// sameIncident is how long after an XID another one of its code belongs to the same fault: one fault is reported
	// for each of a process's channels.
	sameIncident = 10 * time.Second
	// counts is how many readings of the ECC counter are kept, so that an engine's start can be told a little late.
	counts = 16
)

// device is what is held of one device.
type device struct {
	uuid  string
	marks []mark
	// changed and cleared are read and reset by the Judge.
	changed, cleared bool
	// fresh: the newest sample has it, facts: with something to judge by.
	fresh, facts bool
	// parts are the engine's parts of a divided device.
	parts []Instance
	// looked is when it was last looked at.
	looked time.Time
	// away: it was gone, lost or in want of a reset when last looked at, asked: the driver wanted a reset or a reboot.
	away, asked bool
	// reset is when it was last looked at before a reset of it; zero without one.
	reset time.Time
	// ecc are the latest readings of the counter, base is what the engine began with, tainted that it rose since.
	ecc     []count
	base    *uint64
	tainted bool
	clean   time.Time
	// Facts that hold until they are read anew.
	recovery                   Recovery
	remapPending, pagesPending bool
	up, down                   uint64 // NVLinks that were up since the last reset, and those of them that aren't
	slow                       [window]struct{ thermal, brake bool }
	samples                    int
	// again is when an XID was last seen whose repetition is fatal.
	again map[int]time.Time
	// action is when XID 154 came, until the recovery action is read.
	action time.Time
}

type count struct {
	at time.Time
	n  uint64
}

// mark is a Mark, and when it was last found.
type mark struct {
	Mark
	latest time.Time
}

// hold adds a lasting finding, or renews it.
func (d *device) hold(at time.Time, v health.Verdict, why health.Reason, detail string) {
	for i := range d.marks {
		if m := &d.marks[i]; m.Reason == why && m.Detail == detail && m.Verdict == v {
			if at.After(m.latest) {
				m.latest = at
			}
			return
		}
	}
	if len(d.marks) >= maxMarks {
		// The oldest of the mildest verdict makes room.
		i := slices.IndexFunc(d.marks, func(m mark) bool { return m.Verdict != health.Dead })
		if i < 0 && v != health.Dead {
			return
		}
		d.marks = slices.Delete(d.marks, max(i, 0), max(i, 0)+1)
	}
	d.marks = append(d.marks, mark{Mark{d.uuid, v, why, detail, at}, at})
	d.changed = true
}

// recall takes over a lasting finding of an earlier Judge, and what it implies.
func (d *device) recall(m Mark) {
	d.hold(m.At, m.Verdict, m.Reason, m.Detail)
	switch m.Reason {
	case ReasonLost, ReasonGone, ReasonResetRequired:
		d.away = true
	case ReasonRecovery:
		d.asked = true
	}
	if m.At.After(d.looked) {
		d.looked = m.At
	}
}

// release ends the lasting findings up to a time; all of them with a zero one.
func (d *device) release(until time.Time) {
	before := len(d.marks)
	d.marks = slices.DeleteFunc(d.marks, func(m mark) bool { return until.IsZero() || !m.latest.After(until) })
	if len(d.marks) < before {
		d.changed, d.cleared = true, true
	}
	// What was known of the device before is that of another life.
	d.up, d.down, d.again, d.action = 0, 0, nil, time.Time{}
	d.reset, d.away, d.asked = time.Time{}, false, false
	d.rebase(time.Time{})
}

// rebase takes the newest reading of the ECC counter not younger than a time as what the engine began with; the newest of
// all with a zero one.
func (d *device) rebase(at time.Time) {
	d.base, d.tainted = nil, false
	for _, c := range d.ecc {
		if at.IsZero() || d.base == nil || !c.at.After(at) {
			d.base, d.clean = new(c.n), c.at
		}
	}
}

// absent takes in that the machine has it no more.
func (d *device) absent(at time.Time, why health.Reason, detail string) {
	d.fresh, d.facts, d.away, d.looked = true, true, true, at
	d.hold(at, health.Dead, why, detail)
}

// read takes in what was read. It returns a taint if one is new.
func (d *device) read(at time.Time, r Device, wanted []string, multi bool) *Taint {
	switch {
	case r.Lost:
		d.absent(at, ReasonLost, "the driver lost it")
		return nil
	case r.ResetRequired:
		d.absent(at, ReasonResetRequired, "it requires a reset")
		return nil
	}
	if !d.divide(at, r, wanted) {
		return nil
	}
	d.notice(r)
	if !d.reset.IsZero() && r.Recovery != nil && *r.Recovery == RecoveryNone {
		d.release(d.reset)
	}
	d.away, d.fresh, d.looked = false, true, at
	d.facts = r.Uncorrected != nil || r.RemapPending != nil || r.RemapFailed != nil || r.PagesPending != nil ||
		r.Recovery != nil || r.Thermal != nil || r.PowerBrake != nil || r.Links != nil
	d.ask(at, r)
	d.memory(at, r)
	d.links(at, r, multi)
	if r.Thermal != nil || r.PowerBrake != nil {
		s := &d.slow[d.samples%window]
		s.thermal, s.brake = r.Thermal != nil && *r.Thermal, r.PowerBrake != nil && *r.PowerBrake
		d.samples++
	}
	return d.errors(at, r)
}

// divide finds the engine's parts of a divided device, and reports false if one is gone.
func (d *device) divide(at time.Time, r Device, wanted []string) bool {
	if len(r.MIG) == 0 {
		return true
	}
	var parts []Instance
	for _, i := range r.MIG {
		if slices.Contains(wanted, i.UUID) {
			parts = append(parts, i)
		}
	}
	for _, old := range d.parts {
		if !slices.ContainsFunc(parts, func(i Instance) bool { return i.UUID == old.UUID }) {
			d.absent(at, ReasonGone, old.UUID+" is gone")
			return false
		}
	}
	d.parts = parts
	return true
}

// notice looks for a reset of the device since it was last looked at: it is back, the driver wants nothing more of it,
// or its ECC counter began anew.
func (d *device) notice(r Device) {
	back := d.away && !d.looked.IsZero()
	done := d.asked && r.Recovery != nil && *r.Recovery == RecoveryNone
	anew := len(d.ecc) > 0 && r.Uncorrected != nil && *r.Uncorrected < d.ecc[len(d.ecc)-1].n
	if anew {
		d.ecc, d.base = nil, nil
	}
	if back || done || anew {
		d.reset = d.looked
	}
}

// ask takes in what the driver asks for.
func (d *device) ask(at time.Time, r Device) {
	if r.Recovery != nil {
		d.recovery = *r.Recovery
		d.action = time.Time{}
	}
	if !d.action.IsZero() {
		d.hold(d.action, health.Evacuate, ReasonXIDEvacuate, "XID 154, and the recovery action can't be read")
		d.action = time.Time{}
	}
	if r.Recovery == nil {
		return
	}
	switch *r.Recovery {
	case RecoveryReset, RecoveryReboot, RecoveryBusReset, RecoverySystemReboot:
		d.asked = true
		d.hold(at, health.Dead, ReasonRecovery, string(*r.Recovery))
	}
}

// memory takes in the state of rows and pages.
func (d *device) memory(at time.Time, r Device) {
	if r.RemapPending != nil {
		d.remapPending = *r.RemapPending
	}
	if r.PagesPending != nil {
		d.pagesPending = *r.PagesPending
	}
	if r.RemapFailed != nil && *r.RemapFailed {
		d.hold(at, health.Dead, ReasonRemapFailed, "a row couldn't be remapped")
	}
}

// links notices an NVLink that was up and isn't.
func (d *device) links(at time.Time, r Device, multi bool) {
	if r.Links == nil {
		return
	}
	d.up |= *r.Links
	d.down = d.up &^ *r.Links
	if d.down != 0 && multi {
		d.hold(at, health.Dead, ReasonNVLink, fmt.Sprintf("links %#x are down", d.down))
	}
}

// errors takes in the ECC counter, and returns a taint if it rose for the first time since the engine started.
func (d *device) errors(at time.Time, r Device) *Taint {
	if r.Uncorrected == nil {
		return nil
	}
	n := *r.Uncorrected
	d.ecc = append(d.ecc, count{at, n})
	if len(d.ecc) > counts {
		d.ecc = slices.Delete(d.ecc, 0, 1)
	}
	switch {
	case d.base == nil:
		d.base = new(n)
	case n > *d.base:
		d.hold(at, health.Dead, ReasonECC, "uncorrectable memory errors since the engine started")
		return d.taint(at)
	}
	if !d.tainted {
		d.clean = at
	}
	return nil
}

// taint returns one if there was none since the engine started.
func (d *device) taint(seen time.Time) *Taint {
	if d.tainted {
		return nil
	}
	d.tainted = true
	return &Taint{UUID: d.uuid, Clean: d.clean, Seen: seen}
}
