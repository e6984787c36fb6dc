// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package gpu

import (
	"fmt"
	"slices"
	"time"

	"github.com/seguekv/segue/health"
)

// event takes in one XID, for each device of the engine's that it is about.
func (j *Judge) event(out *Result, e Event) {
	if e.UUID != "" {
		known := slices.ContainsFunc(j.devices, func(d *device) bool { return d.uuid == e.UUID })
		if known || len(j.wanted) == 0 || slices.Contains(j.wanted, e.UUID) {
			if d := j.device(e.UUID); d != nil {
				j.xid(out, d, e)
			}
		}
		return
	}
	if j.whole {
		for _, d := range j.devices {
			j.xid(out, d, e)
		}
	}
}

// xid takes in one for one device.
func (j *Judge) xid(out *Result, d *device, e Event) {
	rule := j.table.Rule(e.XID)
	class := rule.Class
	if !j.multi && rule.Single != "" {
		class = rule.Single
	}
	soft := class == App || class == Watched
	if soft && d.foreign(e) {
		return
	}
	x := XID{Event: e, Class: class, Excused: class == App && j.excused(e.At)}
	x.UUID = d.uuid
	if len(out.XIDs) < MaxEvents {
		out.XIDs = append(out.XIDs, x)
	}
	if x.Excused {
		return
	}
	name := fmt.Sprintf("XID %d", e.XID)
	if rule.Again > 0 && d.repeats(e, rule.Again) {
		d.hold(e.At, health.Dead, ReasonXIDAgain, name+" again within "+rule.Again.String())
	}
	switch class {
	case App:
		if e.At.After(out.Demand) {
			out.Demand = e.At
		}
	case Watched:
	case ReadAction:
		d.action = e.At
	case Fatal:
		d.hold(e.At, health.Dead, ReasonXIDDead, name)
		if rule.Taints {
			if t := d.taint(e.At); t != nil {
				out.Taints = append(out.Taints, *t)
			}
		}
	default:
		d.hold(e.At, health.Evacuate, ReasonXIDEvacuate, name)
	}
}

// foreign reports whether an event is that of a part which isn't the engine's.
func (d *device) foreign(e Event) bool {
	if e.GPU == nil || len(d.parts) == 0 {
		return false
	}
	return !slices.ContainsFunc(d.parts, func(i Instance) bool {
		return i.GPU == *e.GPU && (e.Compute == nil || i.Compute == *e.Compute)
	})
}

// repeats reports whether another one of the code came before, in time and not of the same incident.
func (d *device) repeats(e Event, within time.Duration) bool {
	last, ok := d.again[e.XID]
	apart := e.At.Sub(last).Abs()
	if ok && apart < sameIncident {
		return false
	}
	if d.again == nil {
		d.again = make(map[int]time.Time)
	}
	if !ok || e.At.After(last) {
		d.again[e.XID] = e.At
	}
	return ok && apart <= within
}

// excused reports whether the caller itself was at work on the engine.
func (j *Judge) excused(at time.Time) bool {
	return slices.ContainsFunc(j.excuses, func(s span) bool { return !at.Before(s.from) && !at.After(s.until) })
}

// conclude finds the worst of all that is held, with the reasons of that rank.
func (j *Judge) conclude(out *Result) {
	find := func(v health.Verdict, why health.Reason, detail string) {
		switch {
		case v > out.Verdict:
			out.Verdict, out.Reasons, out.Detail = v, []health.Reason{why}, detail
		case v == out.Verdict && !slices.Contains(out.Reasons, why):
			out.Reasons = append(out.Reasons, why)
		}
	}
	for _, d := range j.devices {
		if out.Unavailable != "" || j.initFailed != "" {
			d.fresh = false
		}
		d.judge(find)
		out.Remember = out.Remember || d.changed
		d.changed = false
	}
	for _, x := range out.XIDs {
		switch {
		case x.Excused:
		case x.Class == App:
			find(health.Watch, ReasonXIDApp, fmt.Sprintf("%s: XID %d", x.UUID, x.XID))
		case x.Class == Watched:
			find(health.Watch, ReasonXIDWatch, fmt.Sprintf("%s: XID %d", x.UUID, x.XID))
		}
	}
	if j.initFailed != "" {
		find(health.Degraded, ReasonInitFailed, j.initFailed)
	}
	switch {
	case out.Verdict > health.Unknown:
		if out.Unavailable != "" {
			out.Reasons = append(out.Reasons, ReasonUnavailable)
		}
	case out.Unavailable != "":
		out.Reasons, out.Detail = []health.Reason{ReasonUnavailable}, out.Unavailable
	default:
		j.well(out)
	}
}

// judge says what is held of one device.
func (d *device) judge(find func(health.Verdict, health.Reason, string)) {
	for _, m := range d.marks {
		find(m.Verdict, m.Reason, d.uuid+": "+m.Detail)
	}
	switch d.recovery {
	case RecoveryDrain, RecoveryDrainAndReset, RecoveryIMEX, RecoveryOther:
		find(health.Evacuate, ReasonRecovery, d.uuid+": "+string(d.recovery))
	}
	if d.remapPending {
		find(health.Evacuate, ReasonRemapPending, d.uuid+": a row waits for being remapped")
	}
	if d.pagesPending {
		find(health.Evacuate, ReasonPagesPending, d.uuid+": a page waits for being retired")
	}
	if !d.fresh {
		return
	}
	if d.down != 0 {
		find(health.Watch, ReasonNVLink, fmt.Sprintf("%s: links %#x are down", d.uuid, d.down))
	}
	slow, thermal, brake := 0, false, false
	for _, s := range d.slow {
		if s.thermal || s.brake {
			slow++
		}
		thermal, brake = thermal || s.thermal, brake || s.brake
	}
	if slow >= throttled && thermal {
		find(health.Degraded, ReasonThermal, d.uuid+": slowed down for heat")
	}
	if slow >= throttled && brake {
		find(health.Degraded, ReasonPowerBrake, d.uuid+": slowed down for power")
	}
}

// well says that the devices are, if all of them were seen to be.
func (j *Judge) well(out *Result) {
	for _, id := range j.wanted {
		seen := slices.ContainsFunc(j.devices, func(d *device) bool {
			return d.uuid == id || slices.ContainsFunc(d.parts, func(i Instance) bool { return i.UUID == id })
		})
		if !seen {
			out.Reasons, out.Detail = []health.Reason{ReasonUnlisted}, id+" is not among the machine's devices"
			return
		}
	}
	for _, d := range j.devices {
		if !d.fresh || !d.facts {
			out.Reasons, out.Detail = []health.Reason{ReasonNoFacts}, d.uuid+": nothing can be read"
			return
		}
	}
	if len(j.devices) == 0 {
		out.Reasons, out.Detail = []health.Reason{ReasonUnlisted}, "the machine has no device"
		return
	}
	out.Verdict, out.Reasons = health.Reachable, []health.Reason{ReasonOK}
}
