// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"math/rand/v2"
	"time"

	"github.com/seguekv/segue/agent"
	"github.com/seguekv/segue/internal/faultnet"
	"github.com/seguekv/segue/router"
)

// Temper is how soon the agents of a world call an engine hung.
type Temper string

// Tempers. The zero value is the product's defaults.
const (
	// Quick agents do so after 300 ms, long before the router's own stall, Late ones after it.
	Quick Temper = "quick"
	Late  Temper = "late"
	// Nervous agents are wrong: after 20 ms, which many a step takes.
	Nervous Temper = "nervous"
)

// Configure changes an agent's configuration.
func (t Temper) Configure(c *agent.Config) {
	h := &c.Health
	switch t {
	case Quick:
		h.Interval, h.Floor, h.Cold = 50*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond
	case Late:
		h.Floor, h.Cold = 3*time.Second, 3*time.Second
	case Nervous:
		h.Interval, h.Floor, h.Cold, h.Factor = 10*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond, 1
	}
}

// illnesses says how often each kind about an engine's health is drawn.
func illnesses() []Kind {
	return []Kind{
		EngineFreeze, EngineFreeze, EngineFreeze, EngineStutter, EngineStutter, DeviceEvacuate, DeviceEvacuate, DeviceDead, DeviceDead,
		DeviceTaint, DeviceTaint, DeviceTaint, DeviceDegraded, DeviceFlap, DeviceSilent, VerdictLost,
	}
}

// drawIllness draws how the agents watch their engines, and what befalls these.
func (p *Plan) drawIllness(rng *rand.Rand) {
	p.Temper = []Temper{"", "", Quick, Quick, Quick, Quick, Late, Nervous}[rng.IntN(8)]
	for i := range []int{0, 0, 0, 1, 1, 1, 2, 3}[rng.IntN(8)] {
		kinds := illnesses()
		f := Fault{Number: len(p.Faults), Kind: kinds[rng.IntN(len(kinds))], Pick: rng.IntN(1000), Amount: rng.Float64(), Role: "primary"}
		f.At = time.Duration(50_000+rng.IntN(500_000)) * time.Microsecond
		f.For = time.Duration(350+rng.IntN(1000)) * time.Millisecond
		if p.Temper == Late || rng.IntN(4) == 0 {
			f.For = time.Duration(2500+rng.IntN(2000)) * time.Millisecond
		}
		if p.Temper == Late && i == 0 {
			f.Kind, f.For = EngineFreeze, time.Duration(3500+rng.IntN(1500))*time.Millisecond
		}
		if rng.IntN(3) == 0 {
			f.On, f.Nth = []Point{PointPrompt, PointChunk, PointCaptured, PointAppend, PointResume}[rng.IntN(5)], 1+rng.IntN(20)
		}
		if rng.IntN(6) == 0 {
			f.Role = "holder"
		}
		p.Faults = append(p.Faults, f)
	}
}

const (
	// stuttering is more than a Quick agent's patience.
	stuttering = 400 * time.Millisecond
	// ackLag is how far behind a holder is kept before its primary's memory is spoilt: nothing that is captured within a
	// third of it can leave.
	ackLag = 60 * time.Millisecond
	// settling is how long an agent's verdict may take to reach the router, and to be acted on.
	settling = 700 * time.Millisecond
)

// ill makes an engine or its device ill, and well again.
func (p *player) ill(f Fault, sc scene, s *Struck) (hit bool, note string) {
	n := sc.node(f.Role)
	p.touches(s, n.ID)
	switch f.Kind {
	case EngineFreeze:
		hit = n.Engine.Running() > 0 && n.Engine.Freeze()
		hit = p.hears(n, f.For, "hung") && hit
		n.Engine.Resume()
	case EngineStutter:
		hit = n.Engine.Running() > 0 && n.Engine.Stutter(stuttering)
		hit = p.hears(n, f.For, "hung") && hit
		n.Engine.Stutter(0)
	case DeviceEvacuate:
		n.Device.Pend(true)
		hit = p.left(n, f.For, s)
		n.Device.Pend(false)
	case DeviceFlap:
		for end := time.Now().Add(f.For); time.Now().Before(end) && p.ctx.Err() == nil; {
			hit = n.Device.Pend(true) && p.sleep(time.Duration(10+f.Amount*100)*time.Millisecond) || hit
			n.Device.Pend(false)
			p.sleep(time.Duration(10+f.Amount*50) * time.Millisecond)
		}
	case DeviceDegraded:
		for range 6 {
			n.Device.Heat(true)
		}
		hit = p.hears(n, f.For, "degraded")
		n.Device.Heat(false)
	case DeviceDead:
		n.Device.Condemn()
		hit = p.hears(n, f.For, "dead")
		n.Device.Mend()
	case DeviceSilent:
		n.Device.Silence(true)
		hit = p.sleep(f.For)
		n.Device.Silence(false)
	case VerdictLost:
		hit = p.loseVerdict(f, n)
	case DeviceTaint:
		return p.taint(f, n, sc, s)
	}
	return hit, ""
}

// hears waits for that long and reports whether the router ever held a verdict on the node meanwhile.
func (p *player) hears(n *Node, d time.Duration, want string) (heard bool) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		v, _ := p.w.Router.Verdict(n.ID)
		heard = heard || v == want
		if !p.sleep(min(20*time.Millisecond, time.Until(end))) {
			break
		}
	}
	return heard
}

// left is hears for a node that should be left. What could be moved at its beginning and runs there at its end stays for no
// reason, unless something else happens.
func (p *player) left(n *Node, d time.Duration, s *Struck) bool {
	movable := func() map[string]bool {
		out := map[string]bool{}
		for _, i := range p.w.Router.Sessions() {
			out[i.Session] = i.Primary == n.ID && i.Protected && i.Holder != "" && i.EndedAt == "" && i.Phase == "decode"
		}
		return out
	}
	before := movable()
	heard := p.hears(n, d, "evacuate")
	if !heard || d < settling || p.ctx.Err() != nil {
		return heard
	}
	for id, there := range movable() {
		if there && before[id] {
			p.answered(s, Moved{Session: id, Movable: true, Answered: time.Since(p.w.Trace.begun), Asked: s.From, Move: router.Move{Result: "left behind", From: n.ID}})
		}
	}
	return true
}

// loseVerdict breaks the connection just when the node should be left. The verdict has to come another time.
func (p *player) loseVerdict(f Fault, n *Node) bool {
	p.w.Shape(n.ID, RouterHost, faultnet.Link{Cut: true})
	pending := n.Device.Pend(true)
	p.w.Net.Reset(n.ID, RouterHost)
	p.sleep(f.For / 2)
	p.w.Restore(n.ID, RouterHost)
	heard := p.hears(n, f.For, "evacuate")
	n.Device.Pend(false)
	return pending && heard
}

// taint has the device's memory lose data. What the engine computes for the session from then on is wrong. If nothing else
// happens in the plan, and a holder protects the session, that begins a little before the driver tells of it: all of it is
// captured and nothing has left.
func (p *player) taint(f Fault, n *Node, sc scene, s *Struck) (bool, string) {
	label, early := sessionLabel(sc.session), false
	h := sc.holder
	if i := sc.session; i != nil && len(p.plan.Faults) == 1 && i.Primary == n.ID && i.Holder == h.ID && i.Protected && i.Protection == router.ProtectionSync {
		p.w.Shape(h.ID, n.ID, faultnet.Link{Latency: ackLag})
		defer p.w.Restore(h.ID, n.ID)
		p.sleep(2 * ackLag)
		now := p.w.Router.Session(i.Session)
		if early = n.Device.Look() && now != nil && now.Protected && now.Primary == n.ID && p.ctx.Err() == nil; early {
			n.Engine.Spoil(label)
			p.sleep(ackLag / 3)
		}
	}
	running := n.Engine.Running() > 0
	told := n.Device.Lose()
	if told {
		n.Engine.Spoil(label)
	}
	hit := told && running
	p.sleep(f.For)
	if n.Engine.Crash() && n.Up() {
		p.check(n.Engine.Start())
	}
	n.Device.Mend()
	if early {
		return hit, "wrong from before it was seen"
	}
	return hit, ""
}
