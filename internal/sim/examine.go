// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"slices"
	"time"

	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/router"
)

// Examine judges an outcome by the oracle of the guarantees and adds what it finds to the problems.
func (o *Outcome) Examine(refs map[uint64]*Reference) {
	for i, x := range o.Exchanges {
		o.examine(i, refs[x.Plan.Request.Label])
	}
	o.moves()
	for id, h := range o.Histories {
		if err := CheckGate(h); err != nil {
			o.problem("session %.8s: %v", id, err)
		}
		o.epochs(id, h)
	}
}

func (o *Outcome) examine(i int, ref *Reference) {
	x := o.Exchanges[i]
	a := x.Answer
	say := func(format string, args ...any) {
		o.problem("session %d try %d (%.8s): "+format, append([]any{x.Plan.Number, x.Try, a.Session}, args...)...)
	}
	if x.Stuck {
		say("stuck after %d tokens", len(a.IDs))
		return
	}
	for _, why := range Judge(a, ref, x.Plan.Request) {
		say("%s", why)
	}
	if a.Broken != nil && !a.Left && !o.mayBreak(x) {
		say("the connection broke (%v) after %d tokens, for no reason", a.Broken, len(a.IDs))
	}
	earlier := o.earlier(i) != nil
	if x.Looked {
		o.record(x, say)
	}
	o.key(i, say)
	if a.Repeat && (earlier || a.Status == 409) {
		return // an error is the answer that was interrupted, or is still being written
	}
	if why := o.unjustified(x); why != "" {
		say("unjustified end: %s; status %d, %d of %d ids, error %+v", why, a.Status, len(a.IDs), len(ref.IDs), a.Err)
	}
}

// mayBreak reports whether the client's connection, or the router, met a fault.
func (o *Outcome) mayBreak(x *Exchange) bool {
	for _, s := range o.during(x.Answer, 0) {
		if s.Kind == RouterCrash || s.Kind == ClientCut {
			return true
		}
	}
	return x.Boots[0] != x.Boots[1]
}

// during lists the faults that lasted at some time of the answer, or ended shortly before.
func (o *Outcome) during(a *Answer, before time.Duration) []*Struck {
	var out []*Struck
	for _, s := range o.Struck {
		if s.From <= a.Ended && (s.To == 0 || s.To+before >= a.Begun) {
			out = append(out, s)
		}
	}
	return out
}

// unjustified says why an answer should have been whole, or nothing. The rules hold in worlds with room and at least
// three nodes, for clients that stay:
//
//  1. Without a fault during the answer or shortly before, it is whole.
//  2. With one, that strikes one node or its link to the router, it is whole under sync: before the first content the
//     request is retried elsewhere, after it the holder covers what was delivered, or the holder was struck and the
//     primary goes on.
//  3. With one such, in every mode: no content, no error: it is retried.
//  4. With any number, it is whole under sync if the holder that was protecting it first, and the router, met none, and
//     the primary never counted that holder as lost.
//
// Orders to move, repeats of their calls, what the disk does, and devices that are slow, silent or to be left, are no faults:
// they excuse nothing. But a session that moves is without protection for a moment, so after one a further fault excuses
// more. Where agents call engines hung for nothing, everything is excused.
func (o *Outcome) unjustified(x *Exchange) string {
	a := x.Answer
	if a.Whole() || a.Left || !o.Plan.roomy() || !x.Plan.stays() || o.Plan.Temper == Nervous {
		return ""
	}
	faults, moves, disk := o.sort(o.during(a, slack))
	if disk && x.Plan.Key && a.Status == 503 {
		return "" // a key that can't be remembered
	}
	if len(faults) == 0 {
		return "there was no fault"
	}
	if slices.ContainsFunc(faults, func(s *Struck) bool { return s.Kind == DeviceTaint }) {
		return "" // what was delivered may be above the last boundary that counts
	}
	if h := x.safeHolder(); h != "" && !touched(faults, h, RouterHost) && !x.movedOff(h) {
		return "sync, and no fault touched its holder " + h
	}
	if len(faults) > 1 || !faults[0].single() || moves || x.Plan.SDK && x.Try > 0 {
		return ""
	}
	switch {
	case x.Plan.sync():
		return "sync, and one fault: " + faults[0].Fault.String()
	case len(a.IDs) == 0 && a.Text == "" && (a.Err == nil || !a.Err.Partial):
		return "no content, and one fault: " + faults[0].Fault.String()
	}
	return ""
}

// sort tells faults from orders and from what the disk does. A drained node is missing: two of them count as faults.
func (o *Outcome) sort(list []*Struck) (faults []*Struck, moves, disk bool) {
	drains := 0
	for _, s := range list {
		switch s.Kind {
		case Migrate, RepeatPrepare, RepeatPark:
			moves = true
		case JournalFails, JournalSlow:
			disk = true
		case DeviceDegraded, DeviceSilent: // change nothing for what runs
		case Drain, DeviceEvacuate, DeviceFlap:
			moves = true
			drains++
		default:
			faults = append(faults, s)
		}
	}
	if drains > 1 || drains > 0 && len(faults) > 0 {
		for _, s := range list {
			if s.Kind == Drain || s.Kind == DeviceEvacuate || s.Kind == DeviceFlap {
				faults = append(faults, s)
			}
		}
	}
	return faults, moves, disk
}

// movedOff reports a planned move away from a node, after which its session was without protection for a moment.
func (x *Exchange) movedOff(node string) bool {
	return x.Info != nil && slices.ContainsFunc(x.Info.Seams, func(s router.SeamInfo) bool {
		return s.From == node && (s.Cause == router.CauseMigrate || s.Cause == router.CauseDrain || s.Cause == router.CauseEvacuate)
	})
}

// single reports a fault that leaves all but one node, and all links between the others, alone.
func (s *Struck) single() bool {
	switch s.Kind {
	case EngineCrash, AgentCrash, NodeCrash, Pause, EnginePause, StandbyLost, StoreRestart, FinishFence, EngineFreeze, EngineStutter, DeviceDead:
		return true
	case Cut, OneWayCut, Delay, Reorder, SlowLink, Truncate, Reset, LeaseSkew, LeaseJump:
		return len(s.Hosts) == 1 && s.Hosts[0] != RouterHost
	}
	return false
}

// safeHolder is the first holder of a sync session, if it was complete and never lost; empty if there is none.
func (x *Exchange) safeHolder() string {
	if !x.Plan.sync() || x.Info == nil || len(x.Info.ProtectionLog) == 0 || !x.Info.ProtectionLog[0].Protected {
		return ""
	}
	h := x.Info.ProtectionLog[0].Holder
	for _, p := range x.Info.ProtectionLog {
		if !p.Protected && p.Holder == h {
			return ""
		}
	}
	return h
}

// touched reports a fault that met one of the hosts, or that isn't about hosts.
func touched(faults []*Struck, hosts ...string) bool {
	for _, s := range faults {
		if len(s.Hosts) == 0 || s.Kind == ClientCut || s.Kind == RouterCrash || s.Kind == RouterPause {
			return true
		}
		for _, h := range hosts {
			if slices.Contains(s.Hosts, h) {
				return true
			}
		}
	}
	return false
}

// epochs checks that each index was published under one epoch and that publishing epochs never fall.
func (o *Outcome) epochs(id string, h History) {
	var by []fence.Epoch
	for _, op := range h.Ops {
		switch {
		case op.Err != nil:
		case op.Kind == fence.OpRestart:
			by = nil
		case op.Kind == fence.OpAppend && op.Index == len(by):
			by = append(by, op.Epoch)
		}
	}
	if !slices.IsSorted(by) {
		o.problem("session %.8s: publishing epochs fall: %v", id, by)
	}
}
