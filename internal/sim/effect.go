// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/seguekv/segue/internal/faultnet"
)

func formatLabel(l uint64) string { return strconv.FormatUint(l, 10) }

func parseLabel(s string) uint64 {
	l, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return l
}

// effect does what the fault's kind says, waits until it is over, and reports whether it met something.
func (p *player) effect(f Fault, m *Moment, sc scene, s *Struck) (hit bool, note string) {
	node := sc.node(f.Role)
	switch f.Kind {
	case EngineCrash:
		return p.crashEngine(f, node, s), ""
	case AgentCrash, HolderRestart:
		return p.crash(node, f.For, s, (*Node).Crash), ""
	case NodeCrash:
		return p.crash(node, f.For, s, (*Node).PowerOff), ""
	case StandbyLost:
		return p.crash(node, f.For+time.Second, s, (*Node).PowerOff) && sc.session != nil, ""
	case StoreRestart:
		return p.crash(node, 0, s, (*Node).Crash) && sc.session != nil, ""
	case FinishFence:
		return p.finishFence(f, sc, s), ""
	case SecondFault:
		n := sc.primary // of engines' moments: the node that takes over
		if m.Point == PointRaise {
			n = sc.holder
		}
		end := []func(*Node) bool{(*Node).Crash, (*Node).PowerOff}[f.Pick%2]
		if f.Pick%3 == 0 {
			return p.crashEngine(f, n, s), ""
		}
		return p.crash(n, f.For, s, end), ""
	case RouterCrash:
		p.touches(s, RouterHost)
		hit := p.w.Router.Crash()
		p.sleep(f.For)
		if hit {
			err := p.w.Router.Start()
			// Whoever starts it tries again until its disk works.
			for errors.Is(err, errDisk) {
				p.sleep(50 * time.Millisecond)
				err = p.w.Router.Start()
			}
			p.check(err)
		}
		return hit, ""
	case Pause:
		p.touches(s, node.ID)
		return p.paused(node.ID, f.For, node.Pause, node.Resume), ""
	case EnginePause:
		p.touches(s, node.ID)
		hit := node.Engine.Running() > 0 && node.Engine.Pause()
		p.sleep(f.For)
		node.Engine.Resume()
		return hit, ""
	case RouterPause:
		p.touches(s, RouterHost)
		return p.paused(RouterHost, f.For, func() { p.w.Net.Freeze(RouterHost) }, func() { p.w.Net.Thaw(RouterHost) }), ""
	case LeaseSkew:
		p.touches(s, node.ID)
		rate := 0.9 + 0.2*f.Amount
		if f.Pick%2 == 0 {
			p.touches(s, RouterHost)
			p.w.Router.Clock.SetRate(rate)
		} else {
			node.Clock.SetRate(rate)
		}
		p.sleep(f.For)
		p.w.Router.Clock.SetRate(1)
		node.Clock.SetRate(1)
		return sc.session != nil, fmt.Sprintf("rate %.3f", rate)
	case LeaseJump:
		by := time.Duration(f.Amount * float64(12*time.Second))
		if f.Pick%2 == 0 {
			p.touches(s, RouterHost)
			p.w.Router.Clock.Jump(by)
		} else {
			p.touches(s, node.ID)
			node.Clock.Jump(by)
		}
		return sc.session != nil, by.String()
	case LostTakeover, LostCancel:
		return p.lostReply(f, sc, s), ""
	case RepeatGenerate, RepeatTakeover, RepeatCancel, StaleTakeover:
		return p.repeat(f, sc, s)
	case Migrate, Drain, PlannedFault, LostPrepare, LostPark, RepeatPrepare, RepeatPark:
		return p.ordered(f, sc, s)
	case JournalFails, JournalSlow:
		return p.disk(f), ""
	case EngineFreeze, EngineStutter, DeviceEvacuate, DeviceFlap, DeviceDegraded, DeviceDead, DeviceTaint, DeviceSilent, VerdictLost:
		return p.ill(f, sc, s)
	}
	return p.bend(f, sc, s), ""
}

func (p *player) check(err error) {
	if err != nil {
		p.w.Trace.Addf("fault   can't be undone: %v", err)
	}
}

// disk makes the router's disk fail, or slow.
func (p *player) disk(f Fault) bool {
	d := p.w.Router.Disk
	failed, slow := d.Met()
	if f.Kind == JournalFails {
		d.Fail(true, f.Pick%2 == 0)
		p.sleep(f.For)
		d.Fail(false, false)
	} else {
		d.Slow(time.Duration(1+f.Amount*f.Amount*3000) * time.Millisecond)
		p.sleep(f.For)
		d.Slow(0)
	}
	failed2, slow2 := d.Met()
	return failed2 > failed || slow2 > slow
}

func (p *player) crashEngine(f Fault, n *Node, s *Struck) bool {
	p.touches(s, n.ID)
	busy := n.Engine.Running() > 0
	hit := n.Engine.Crash()
	p.sleep(f.For)
	if hit && n.Up() && n.Engine.present() == nil {
		p.check(n.Engine.Start())
	}
	return hit && busy
}

func (p *player) crash(n *Node, downtime time.Duration, s *Struck, end func(*Node) bool) bool {
	p.touches(s, n.ID)
	hit := end(n)
	p.sleep(downtime)
	if hit && !n.Up() {
		p.check(n.Start())
	}
	return hit
}

// paused reports whether something wanted to happen meanwhile.
func (p *player) paused(host string, d time.Duration, pause, resume func()) bool {
	before := p.w.Net.Stats(host, "").Frozen
	pause()
	p.sleep(d)
	resume()
	return p.w.Net.Stats(host, "").Frozen > before
}

func (p *player) finishFence(f Fault, sc scene, s *Struck) bool {
	switch f.Pick % 3 {
	case 0:
		return p.crash(sc.primary, f.For, s, (*Node).Crash)
	case 1:
		return p.crashEngine(f, sc.primary, s)
	}
	p.touches(s, sc.primary.ID)
	before := p.w.Net.Stats(sc.primary.ID, RouterHost)
	p.w.Shape(sc.primary.ID, RouterHost, faultnet.Link{Cut: true})
	p.sleep(f.For + 2*time.Second)
	p.w.Restore(sc.primary.ID, RouterHost)
	return p.w.Net.Stats(sc.primary.ID, RouterHost).Held > before.Held
}

// bend changes a link.
func (p *player) bend(f Fault, sc scene, s *Struck) bool {
	a, b := sc.node(f.Role).ID, RouterHost
	if f.Peer == "holder" {
		a, b = sc.primary.ID, sc.holder.ID
	}
	if f.Kind == ClientCut {
		a, b = clientHost(sessionLabel(sc.session)), RouterHost
	}
	p.touches(s, a)
	if b != RouterHost {
		p.touches(s, b)
	}
	before, back := p.w.Net.Stats(a, b), p.w.Net.Stats(b, a)
	l := faultnet.Link{}
	both := true
	switch f.Kind {
	case Cut, ClientCut:
		l.Cut = true
	case OneWayCut:
		l.Cut, both = true, false
		if f.Pick%2 == 0 {
			a, b = b, a
			before, back = back, before
		}
	case Delay:
		l.Latency = time.Duration(f.Amount * float64(300*time.Millisecond))
	case Reorder:
		l.Jitter = time.Duration(f.Amount * float64(60*time.Millisecond))
	case SlowLink:
		l.BytesPerSecond = 2_000 + int(f.Amount*60_000)
	case Truncate:
		l.TruncateAfter, both = 1+int64(f.Amount*f.Amount*6_000), false
		if f.Pick%2 == 0 {
			a, b = b, a
			before, back = back, before
		}
	case Reset:
		p.w.Net.Reset(a, b)
		return p.w.Net.Stats(a, b).Resets+p.w.Net.Stats(b, a).Resets > before.Resets+back.Resets
	}
	p.w.Shape(a, b, l)
	if both {
		p.w.Shape(b, a, l)
	}
	p.sleep(f.For)
	p.w.Restore(a, b)
	if both {
		p.w.Restore(b, a)
	}
	after, afterBack := p.w.Net.Stats(a, b), p.w.Net.Stats(b, a)
	switch f.Kind {
	case Cut, ClientCut, OneWayCut:
		return after.Held+afterBack.Held > before.Held+back.Held || after.Hung+afterBack.Hung > before.Hung+back.Hung
	case Truncate:
		return after.Resets+afterBack.Resets > before.Resets+back.Resets
	}
	return after.Bytes+afterBack.Bytes > before.Bytes+back.Bytes
}

// lostReply breaks the connection to the node that has just done something, before its answer.
func (p *player) lostReply(f Fault, sc scene, s *Struck) bool {
	n := sc.primary
	p.touches(s, n.ID)
	before := p.w.Net.Stats(n.ID, RouterHost)
	p.w.Shape(n.ID, RouterHost, faultnet.Link{Cut: true})
	p.sleep(min(f.For, 300*time.Millisecond))
	p.w.Net.Reset(n.ID, RouterHost)
	p.w.Restore(n.ID, RouterHost)
	after := p.w.Net.Stats(n.ID, RouterHost)
	return after.Held > before.Held || after.Resets > before.Resets
}

// clientHost is the machine of a request's client.
func clientHost(label uint64) string { return "client-" + formatLabel(label) }
