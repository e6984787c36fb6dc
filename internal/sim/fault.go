// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Kind is a kind of fault.
type Kind string

// Kinds. Those with a role strike the node that has it for some session at that moment.
const (
	EngineCrash Kind = "engine-crash"
	AgentCrash  Kind = "agent-crash"
	NodeCrash   Kind = "node-crash"
	RouterCrash Kind = "router-crash"
	Pause       Kind = "pause"
	EnginePause Kind = "engine-pause"
	RouterPause Kind = "router-pause"
	Cut         Kind = "cut"
	OneWayCut   Kind = "one-way-cut"
	Delay       Kind = "delay"
	Reorder     Kind = "reorder"
	SlowLink    Kind = "slow-link"
	Truncate    Kind = "truncate"
	Reset       Kind = "reset"
	ClientCut   Kind = "client-cut"
	// StandbyLost takes a holder away for good, StoreRestart empties its store at once.
	StandbyLost  Kind = "standby-lost"
	StoreRestart Kind = "store-restart"
	// StoreFull is a property of the world: hit when a session loses its protection by it.
	StoreFull Kind = "store-full"
	LeaseSkew Kind = "lease-skew"
	LeaseJump Kind = "lease-jump"
	// A lost reply: the call has had its effect, the answer doesn't come and the connection breaks.
	LostTakeover Kind = "lost-takeover-reply"
	LostCancel   Kind = "lost-cancel-reply"
	// A repeated call comes a second time, and perhaps late.
	RepeatGenerate Kind = "repeat-generate"
	RepeatTakeover Kind = "repeat-takeover"
	RepeatCancel   Kind = "repeat-cancel"
	// StaleTakeover repeats a takeover under an epoch that was raised since.
	StaleTakeover Kind = "stale-takeover"
	// SecondFault strikes the node that takes over, or the next holder, during a takeover.
	SecondFault Kind = "second-fault"
	// HolderRestart restarts the holder under the same address between the fence and the takeover.
	HolderRestart Kind = "holder-restart"
	// FinishFence takes the primary away when its last token is computed or accepted.
	FinishFence Kind = "finish-fence"
	// ClientLeave and ClientRetry are hit by clients that leave during a takeover and that repeat a failed request.
	ClientLeave Kind = "client-leaves-in-takeover"
	ClientRetry Kind = "client-retry"
	// JournalFails and JournalSlow are the router's disk.
	JournalFails Kind = "journal-fails"
	JournalSlow  Kind = "journal-slow"
	// Migrate and Drain are operators' orders; Undrain is hit at the end of a Drain.
	Migrate Kind = "migrate"
	Drain   Kind = "drain"
	Undrain Kind = "undrain"
	// PlannedFault strikes somebody in the middle of a planned takeover.
	PlannedFault Kind = "fault-in-planned-takeover"
	// A lost reply, and repeated calls, of a planned takeover.
	LostPrepare   Kind = "lost-prepare-reply"
	LostPark      Kind = "lost-park-reply"
	RepeatPrepare Kind = "repeat-prepare"
	RepeatPark    Kind = "repeat-park"
	// EngineFreeze stops an engine's step loop, while its heartbeat goes on; hit when it is called hung. EngineStutter makes
	// it slow; hit when it is called hung though it works.
	EngineFreeze  Kind = "engine-freeze"
	EngineStutter Kind = "engine-stutter"
	// What a driver says of a device: it should be left, that now and then, it is slow, it wants a reset and still works,
	// it has lost data, nothing can be read.
	DeviceEvacuate Kind = "device-evacuate"
	DeviceFlap     Kind = "device-flaps"
	DeviceDegraded Kind = "device-degraded"
	DeviceDead     Kind = "device-dead"
	DeviceTaint    Kind = "device-taint"
	DeviceSilent   Kind = "device-silent"
	// VerdictLost breaks the connection just when a verdict is due.
	VerdictLost Kind = "verdict-lost"
	// LateVerdict is hit by engines that are called hung after the router has given up on them by itself.
	LateVerdict Kind = "verdict-late"
	// KeyRepeat, KeyReplay, ToolAction, ToolRepeat and ToolSurvives are hit by clients: a key that is used again, an
	// answer that was kept for it, an action that is done, one that is claimed again, and that after a router's crash.
	KeyRepeat    Kind = "key-repeated"
	KeyReplay    Kind = "key-replayed"
	ToolAction   Kind = "tool-action"
	ToolRepeat   Kind = "tool-claimed-again"
	ToolSurvives Kind = "tool-claimed-after-crash"
)

// Fault is one entry of a schedule.
type Fault struct {
	Number int
	Kind   Kind
	// At is when it strikes, since the first client's start. With On, it strikes at the Nth such moment after At.
	At  time.Duration
	On  Point
	Nth int
	// Role is "primary", "holder" or "other", of the session that Pick chooses among the live ones, or of the moment's.
	Role string
	Pick int
	// Peer is the other end of a link: "router", or "holder" for the link between a pair.
	Peer string
	// For is how long it lasts.
	For time.Duration
	// Amount is the kind's own: a rate, bytes, milliseconds.
	Amount float64
}

func (f Fault) String() string {
	when := f.At.String()
	if f.On != "" {
		when = fmt.Sprintf("%v or later, at moment %q number %d", f.At, f.On, f.Nth)
	}
	return fmt.Sprintf("%s at %s, role %s, pick %d, peer %q, for %v, amount %.2f", f.Kind, when, f.Role, f.Pick, f.Peer, f.For, f.Amount)
}

// weights says how often each kind is drawn.
func weights() []Kind {
	return []Kind{
		EngineCrash, EngineCrash, EngineCrash, AgentCrash, AgentCrash, AgentCrash, NodeCrash, NodeCrash, NodeCrash, RouterCrash,
		Pause, Pause, EnginePause, RouterPause, Cut, Cut, OneWayCut, OneWayCut, Delay, Reorder, SlowLink, Truncate, Truncate, Reset, ClientCut,
		StandbyLost, StandbyLost, StoreRestart, StoreRestart, LeaseSkew, LeaseJump,
		LostTakeover, LostCancel, RepeatGenerate, RepeatTakeover, RepeatCancel, StaleTakeover,
		SecondFault, SecondFault, HolderRestart, FinishFence, FinishFence,
	}
}

// orders says how often operators' orders and the disk's faults are drawn.
func orders() []Kind {
	return []Kind{
		Migrate, Migrate, Migrate, Migrate, Drain, Drain, PlannedFault, PlannedFault, PlannedFault,
		LostPrepare, LostPark, RepeatPrepare, RepeatPark, JournalFails, JournalFails, JournalSlow,
	}
}

// drawOrder draws one of them.
func drawOrder(rng *rand.Rand, number int) Fault {
	kinds := orders()
	f := Fault{Number: number, Kind: kinds[rng.IntN(len(kinds))], Pick: rng.IntN(1000), Amount: rng.Float64(), Role: "primary"}
	f.At = time.Duration(50_000+rng.IntN(650_000)) * time.Microsecond
	f.For = time.Duration(10+rng.IntN(800)) * time.Millisecond
	if rng.IntN(4) == 0 {
		f.For = time.Duration(1500+rng.IntN(3000)) * time.Millisecond
	}
	if rng.IntN(4) == 0 {
		f.On, f.Nth = []Point{PointPrompt, PointCaptured, PointAppend, PointResume}[rng.IntN(4)], 1+rng.IntN(20)
	}
	return f
}

// needsTakeover are kinds that strike during one.
func (k Kind) needsTakeover() bool {
	switch k {
	case LostTakeover, LostCancel, RepeatTakeover, RepeatCancel, StaleTakeover, SecondFault, HolderRestart:
		return true
	}
	return false
}

// drawFault draws fault number of a schedule of so many.
func drawFault(rng *rand.Rand, of, number int) Fault {
	kinds := weights()
	f := Fault{Number: number, Kind: kinds[rng.IntN(len(kinds))], At: time.Duration(rng.IntN(600_000)) * time.Microsecond, Pick: rng.IntN(1000)}
	takeover := number == 0 && (f.Kind.needsTakeover() || of > 1 && rng.IntN(2) == 0)
	if takeover {
		f.Kind = []Kind{EngineCrash, AgentCrash, NodeCrash}[rng.IntN(3)] // something must cause it
	}
	f.Role = []string{"primary", "primary", "primary", "primary", "holder", "other"}[rng.IntN(6)]
	f.Peer = []string{"router", "router", "holder"}[rng.IntN(3)]
	f.For = time.Duration(10+rng.IntN(500)) * time.Millisecond
	if rng.IntN(3) == 0 {
		f.For = time.Duration(1500+rng.IntN(3000)) * time.Millisecond
	}
	f.Amount = rng.Float64()
	switch f.Kind {
	case StandbyLost, StoreRestart, HolderRestart:
		f.Role = "holder"
	case FinishFence:
		f.On, f.Nth, f.Role = []Point{PointLast, PointFinish}[rng.IntN(2)], 1+rng.IntN(3), "primary"
	case LostTakeover, RepeatTakeover:
		f.On, f.Nth, f.At = PointResume, 1+rng.IntN(2), 0
	case LostCancel, StaleTakeover, RepeatCancel:
		f.On, f.Nth, f.At = PointRaise, 1+rng.IntN(2), 0
	case SecondFault:
		f.On, f.Nth, f.At = []Point{PointRaise, PointResume, PointReplayed}[rng.IntN(3)], 1+rng.IntN(2), 0
	default:
		if rng.IntN(3) == 0 {
			f.On = []Point{PointRun, PointPrompt, PointChunk, PointComputed, PointCaptured, PointAppend}[rng.IntN(6)]
			f.Nth = 1 + rng.IntN(20)
		}
	}
	if takeover {
		f.Role = "primary"
	}
	if f.Kind == HolderRestart {
		f.On, f.Nth, f.At = PointRaise, 1, 0
	}
	return f
}
