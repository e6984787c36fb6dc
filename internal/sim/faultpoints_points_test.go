// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"time"

	"github.com/seguekv/segue/internal/faultnet"
	"github.com/seguekv/segue/internal/sim"
)

// slow is how long a message takes over a link that is slowed down to stop the world between its two ends.
const slow = 30 * time.Millisecond

// at is where the world passes its moments. Some points need more than the moment: the network is shaped a little earlier,
// so that a message is on its way at the point.
func (s *scene) at(m sim.Moment) {
	s.meet(m)
	if m.Point == sim.PointRaise {
		s.fenced()
	}
	p := s.parts.Load()
	if p == nil || s.struck.Load() || m.Node != "" && m.Node != p.primary.ID && s.delivered.Load() == 0 {
		return
	}
	switch s.point {
	case "before-prefill":
		s.when(m.Point == sim.PointPrompt, p.primary)
	case "between-chunks": // the first is captured, the second isn't
		s.when(m.Point == sim.PointChunk && m.Index > 0, p.primary)
	case "after-compute":
		s.when(m.Point == sim.PointComputed && m.Index == struckToken, p.primary)
	case "after-capture":
		s.whenSent(p, m.Point == sim.PointCaptured && m.Index == struckToken)
	case "mid-base":
		s.midBase(p, m)
	case "mid-chunk":
		s.midChunk(p, m)
	case "before-ack":
		s.beforeAck(p, m)
	case "after-ack":
		s.afterAck(p, m)
	case "before-append":
		s.beforeAppend(p, m)
	case "after-append":
		s.whenHeld(p, m.Point == sim.PointAppend && m.Index == struckToken)
	case "after-write":
		s.whenHeld(p, m.Point == sim.PointRead && m.Index == struckToken)
	case "after-last-token":
		s.whenSent(p, m.Point == sim.PointCaptured && m.Index == tokens-1)
	case "before-terminator":
		s.when(m.Point == sim.PointFinish, p.primary)
	case "planned-asked", "planned-prepared", "planned-fenced", "planned-parked", "planned-resumed":
		s.planned(p, m)
	default:
		s.takeover(p, m)
	}
}

func (s *scene) when(now bool, n *sim.Node) {
	if now {
		s.strike(n)
	}
}

// whenSent strikes the primary once everyone in its process has done what the moment is a cause for: what may leave is
// on its way.
func (s *scene) whenSent(p *parts, now bool) {
	if now {
		time.Sleep(time.Microsecond) // virtual: when nobody can do anything else
		s.strike(p.primary)
	}
}

// whenHeld strikes the primary once the holder has the struck token too, which async doesn't wait for.
func (s *scene) whenHeld(p *parts, now bool) {
	if now {
		s.awaitHeld(p)
		s.strike(p.primary)
	}
}

func (s *scene) awaitHeld(p *parts) {
	if p.holder != nil {
		s.await("the holder commits", func() bool { return s.lists(p.holder, "holder").Committed > struckToken })
	}
}

// meet learns who plays which part.
func (s *scene) meet(m sim.Moment) {
	if m.Point != sim.PointPrompt || s.parts.Load() != nil {
		return
	}
	list := s.w.Router.Sessions()
	if len(list) != 1 || list[0].Primary != m.Node {
		s.fail("the session isn't alone: %+v", list)
		return
	}
	p := parts{session: list[0].Session, primary: s.w.Node(m.Node), holder: s.w.Node(list[0].Holder)}
	if (p.holder == nil) != (s.protection == "off") {
		s.fail("holder %q under protection %s", list[0].Holder, s.protection)
	}
	for _, n := range s.w.Nodes {
		if n != p.primary && n != p.holder {
			p.third = n
		}
	}
	s.parts.Store(&p)
}

// midBase is midChunk for rows of the prompt.
func (s *scene) midBase(p *parts, m sim.Moment) {
	switch {
	case m.Point == sim.PointChunk && m.Index == 0:
		s.w.Shape(p.primary.ID, p.holder.ID, faultnet.Link{BytesPerSecond: 100_000}) // 4 KiB of rows, 1,000 bytes every 10 ms
	case m.Point == sim.PointChunk:
		s.inTheMiddle(p, 0, 25*time.Millisecond)
	}
}

// midChunk strikes while the first part of a boundary's frame has reached the holder and the rest hasn't.
func (s *scene) midChunk(p *parts, m sim.Moment) {
	if m.Index != struckToken {
		return
	}
	switch m.Point {
	case sim.PointComputed:
		s.w.Shape(p.primary.ID, p.holder.ID, faultnet.Link{BytesPerSecond: 20_000}) // 256 bytes every 13 ms
	case sim.PointCaptured:
		s.inTheMiddle(p, struckToken, 18*time.Millisecond)
	}
}

// inTheMiddle strikes after a time in which part of a frame arrives. A node that crashes takes the rest along, also what
// its kernel would still send.
func (s *scene) inTheMiddle(p *parts, committed int, after time.Duration) {
	was := s.w.Net.Stats(p.primary.ID, p.holder.ID)
	time.Sleep(after) // virtual
	is := s.w.Net.Stats(p.primary.ID, p.holder.ID)
	if v := s.lists(p.holder, "holder"); v.Committed != committed || is.Read <= was.Read || is.Read >= is.Bytes {
		s.fail("no frame in the middle: %+v, then %+v, committed %d", was, is, v.Committed)
	}
	if s.fault == "crash" && s.target == "node" {
		s.w.Net.Reset(p.primary.ID, p.holder.ID)
	}
	s.w.Restore(p.primary.ID, p.holder.ID)
	s.strike(p.primary)
}

// beforeAck strikes while the ack of a boundary is on its way.
func (s *scene) beforeAck(p *parts, m sim.Moment) {
	if m.Index != struckToken {
		return
	}
	switch m.Point {
	case sim.PointComputed:
		s.w.Shape(p.holder.ID, p.primary.ID, faultnet.Link{Latency: slow})
	case sim.PointCaptured:
		s.awaitHeld(p)
		if n := s.lists(p.primary, "primary").Committed; n > struckToken {
			s.fail("the ack of %d has arrived already", n)
		}
		s.strike(p.primary)
		if s.fault != "cut" {
			s.w.Restore(p.holder.ID, p.primary.ID)
		}
	}
}

// afterAck strikes when the ack has arrived, and the token it releases hasn't reached the router.
func (s *scene) afterAck(p *parts, m sim.Moment) {
	if m.Index != struckToken {
		return
	}
	switch m.Point {
	case sim.PointComputed:
		s.w.Shape(p.primary.ID, sim.RouterHost, faultnet.Link{Latency: slow})
	case sim.PointCaptured:
		s.await("the ack arrives", func() bool { return s.lists(p.primary, "primary").Committed > struckToken })
		if n := s.accepted(p); n > struckToken {
			s.fail("the gate has %d tokens already", n)
		}
		s.strike(p.primary)
		if s.fault != "cut" {
			s.w.Restore(p.primary.ID, sim.RouterHost)
		}
	}
}

// beforeAppend keeps the router from the token that has reached it, and strikes.
func (s *scene) beforeAppend(p *parts, m sim.Moment) {
	if m.Point != sim.PointAppend || m.Index != struckToken-1 {
		return
	}
	was := s.w.Net.Stats(p.primary.ID, sim.RouterHost).Read
	s.await("the next token reaches the router", func() bool { return s.w.Net.Stats(p.primary.ID, sim.RouterHost).Read > was })
	s.awaitHeld(p)
	if n := s.accepted(p); n != struckToken {
		s.fail("the gate has %d tokens", n)
	}
	s.strike(p.primary)
}

// accepted is the number of tokens in the gate.
func (s *scene) accepted(p *parts) int {
	n := 0
	for _, op := range s.w.Gates.History(p.session).Ops {
		if op.Err == nil {
			n = max(n, op.Index+1)
		}
	}
	return n
}

// takeover kills the primary while tokens that the holder has are on their way to the router, and strikes the node
// that takes over.
func (s *scene) takeover(p *parts, m sim.Moment) {
	if m.Point == sim.PointComputed && m.Node == p.primary.ID {
		switch m.Index {
		case struckToken - 3:
			s.w.Shape(p.primary.ID, sim.RouterHost, faultnet.Link{Latency: slow})
		case struckToken:
			s.await("the holder commits", func() bool { return s.lists(p.holder, "holder").Committed == struckToken })
			s.w.Net.Reset(p.primary.ID, sim.RouterHost) // what is on its way is lost
			if !p.primary.Crash() {
				s.fail("the primary wasn't there")
			}
			s.w.Restore(p.primary.ID, sim.RouterHost)
			if s.point != "takeover-new" {
				s.w.Shape(p.holder.ID, p.third.ID, faultnet.Link{Latency: slow}) // the new holder's base takes its time
			}
		}
		return
	}
	if m.Point == sim.PointRaise && s.delivered.Load() == 0 {
		s.delivered.Store(int64(m.Index))
		if m.Index == 0 || m.Index >= struckToken {
			s.fail("%d tokens are delivered, want fewer than the holder has", m.Index)
		}
		s.when(s.point == "takeover-asked", p.holder)
		return
	}
	if s.delivered.Load() == 0 || m.Node != p.holder.ID {
		return
	}
	switch s.point {
	case "takeover-loaded":
		s.when(m.Point == sim.PointReplayed && m.Index == 0, p.holder)
	case "takeover-seam": // sent and received; the engine hasn't begun
		if m.Point == sim.PointResume {
			s.await("the seam arrives", func() bool {
				i := s.w.Router.Session(p.session)
				return i != nil && len(i.Seams) == 1
			})
			s.strike(p.holder)
		}
	case "takeover-reemitted":
		s.when(m.Point == sim.PointReplayed && m.Index == int(s.delivered.Load()), p.holder)
	case "takeover-new":
		if m.Point == sim.PointComputed && m.Index == struckToken {
			s.await("the new holder commits", func() bool { return s.lists(p.third, "holder").Committed >= struckToken })
			s.strike(p.holder)
		}
	}
}
