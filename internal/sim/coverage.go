// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"fmt"
	"strings"

	"github.com/seguekv/segue/router"
)

// Kinds lists every kind of fault, in the order of the coverage table.
func Kinds() []Kind {
	return []Kind{
		EngineCrash, AgentCrash, NodeCrash, RouterCrash, Pause, EnginePause, RouterPause,
		Cut, OneWayCut, Delay, Reorder, SlowLink, Truncate, Reset, ClientCut,
		StandbyLost, StoreRestart, StoreFull, LeaseSkew, LeaseJump,
		LostTakeover, LostCancel, RepeatGenerate, RepeatTakeover, RepeatCancel, StaleTakeover,
		SecondFault, HolderRestart, FinishFence, ClientLeave, ClientRetry,
		JournalFails, JournalSlow, Migrate, Drain, Undrain, PlannedFault, LostPrepare, LostPark, RepeatPrepare, RepeatPark,
		EngineFreeze, EngineStutter, LateVerdict, DeviceEvacuate, DeviceFlap, DeviceDegraded, DeviceDead, DeviceTaint, DeviceSilent, VerdictLost,
		KeyRepeat, KeyReplay, ToolAction, ToolRepeat, ToolSurvives,
	}
}

// Tally counts what a campaign met.
type Tally struct {
	Seeds, Sessions, Faults, Takeovers, Refused, Errors, Whole, Left, Broken, Watermarks int
	// Hung, Evacuated and Tainted count attempts that ended for that reason, Probes what ran without a client.
	Hung, Evacuated, Tainted, Probes int
	// Drawn and Hit count faults by kind.
	Drawn, Hit map[Kind]int
	Problems   int
}

// NewTally is empty.
func NewTally() *Tally { return &Tally{Drawn: map[Kind]int{}, Hit: map[Kind]int{}} }

// Tally counts one outcome.
func (o *Outcome) Tally() *Tally {
	t := NewTally()
	t.Seeds, t.Watermarks, t.Probes = 1, o.Watermarks, o.Probes
	if len(o.Problems) > 0 {
		t.Problems = 1
	}
	for _, f := range o.Plan.Faults {
		t.Drawn[f.Kind]++
	}
	for _, s := range o.Struck {
		t.Faults++
		if s.Hit {
			t.Hit[s.Kind]++
		}
		if s.Hit && s.Kind == EngineFreeze && o.Plan.Temper == Late {
			t.Hit[LateVerdict]++
		}
		if s.Undrained {
			t.Hit[Undrain]++
		}
	}
	for _, x := range o.Exchanges {
		t.exchange(x)
	}
	for k, n := range map[Kind]int{ToolAction: o.Actions, ToolRepeat: o.Reclaimed, ToolSurvives: o.Survived} {
		t.Hit[k] += n
	}
	return t
}

func (t *Tally) exchange(x *Exchange) {
	t.Sessions++
	a := x.Answer
	switch {
	case a.Whole():
		t.Whole++
	case a.Left:
		t.Left++
	case a.Err != nil && a.Err.Code == codeInterrupted:
		t.Refused++
	case a.Err != nil:
		t.Errors++
	default:
		t.Broken++
	}
	if x.Try > 0 {
		t.Hit[ClientRetry]++
	}
	if a.Repeat && a.Status != 0 {
		t.Hit[KeyRepeat]++
	}
	if a.Replayed {
		t.Hit[KeyReplay]++
	}
	if x.Info == nil {
		return
	}
	t.Takeovers += len(x.Info.Seams)
	for _, i := range x.Info.Attempts {
		switch i.Cause {
		case router.CauseHung:
			t.Hung++
		case router.CauseEvacuate:
			t.Evacuated++
		case router.CauseTainted:
			t.Tainted++
		}
	}
	for _, p := range x.Info.ProtectionLog {
		if p.Cause == "store_full" {
			t.Hit[StoreFull]++
			break
		}
	}
	if a.Left && x.Plan.LeaveOnRaise && len(x.Info.Attempts) > 0 {
		t.Hit[ClientLeave]++
	}
}

// Add adds another tally.
func (t *Tally) Add(u *Tally) {
	t.Seeds += u.Seeds
	t.Sessions += u.Sessions
	t.Faults += u.Faults
	t.Takeovers += u.Takeovers
	t.Refused += u.Refused
	t.Errors += u.Errors
	t.Whole += u.Whole
	t.Left += u.Left
	t.Broken += u.Broken
	t.Watermarks += u.Watermarks
	t.Problems += u.Problems
	t.Hung += u.Hung
	t.Evacuated += u.Evacuated
	t.Tainted += u.Tainted
	t.Probes += u.Probes
	for k, n := range u.Drawn {
		t.Drawn[k] += n
	}
	for k, n := range u.Hit {
		t.Hit[k] += n
	}
}

// Missed lists the kinds that were never hit.
func (t *Tally) Missed() []Kind {
	var out []Kind
	for _, k := range Kinds() {
		if t.Hit[k] == 0 {
			out = append(out, k)
		}
	}
	return out
}

// Table is the coverage table.
func (t *Tally) Table() string {
	var b strings.Builder
	b.WriteString("fault kind                    drawn    hit\n")
	for _, k := range Kinds() {
		drawn := fmt.Sprint(t.Drawn[k])
		switch k {
		case StoreFull, ClientLeave, ClientRetry, Undrain, KeyRepeat, KeyReplay, ToolAction, ToolRepeat, ToolSurvives, LateVerdict:
			drawn = "-" // of worlds and clients, not of schedules
		}
		fmt.Fprintf(&b, "%-28s %6s %6d\n", k, drawn, t.Hit[k])
	}
	fmt.Fprintf(&b, "health verdicts: %d attempts ended as hung, %d were evacuated, %d were tainted; %d probes\n", t.Hung, t.Evacuated, t.Tainted, t.Probes)
	return b.String()
}
