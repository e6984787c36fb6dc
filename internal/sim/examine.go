// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"slices"
	"time"

	"github.com/seguekv/segue/fence"
)

// Examine judges an outcome by the oracle of the guarantees and adds what it finds to the problems.
func (o *Outcome) Examine(refs map[uint64]*Reference) {
	for _, x := range o.Exchanges {
		o.examine(x, refs[x.Plan.Request.Label])
	}
	for id, h := range o.Histories {
		if err := CheckGate(h); err != nil {
			o.problem("session %.8s: %v", id, err)
		}
		o.epochs(id, h)
	}
}

func (o *Outcome) examine(x *Exchange, ref *Reference) {
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
func (o *Outcome) unjustified(x *Exchange) string {
	a := x.Answer
	if a.Whole() || a.Left || !o.Plan.roomy() || !x.Plan.stays() {
		return ""
	}
	faults := o.during(a, slack)
	if len(faults) == 0 {
		return "there was no fault"
	}
	if h := x.safeHolder(); h != "" && !touched(faults, h, RouterHost) {
		return "sync, and no fault touched its holder " + h
	}
	if len(faults) > 1 || !faults[0].single() {
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

// single reports a fault that leaves all but one node, and all links between the others, alone.
func (s *Struck) single() bool {
	switch s.Kind {
	case EngineCrash, AgentCrash, NodeCrash, Pause, EnginePause, StandbyLost, StoreRestart, FinishFence:
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
