// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/internal/faultnet"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/snapshot"
)

// Moved is a planned takeover that was ordered.
type Moved struct {
	Session string
	// Asked and Answered are when, since the world's start.
	Asked, Answered time.Duration
	// Movable: the session was protected and had a holder just before.
	Movable bool
	Move    router.Move
	// Err is why there is no answer.
	Err error
}

// movesAnswered bounds the wait for an order's answer.
const movesAnswered = 30 * time.Second

// movable chooses a live session that a holder protects; nil when there is none.
func (p *player) movable(f Fault, sc scene) *router.SessionInfo {
	ok := func(s *router.SessionInfo) bool { return s != nil && s.Protected && s.Holder != "" && s.EndedAt == "" }
	if ok(sc.session) {
		return sc.session
	}
	var list []*router.SessionInfo
	for _, s := range p.w.Router.Sessions() {
		if ok(&s) {
			list = append(list, &s)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[f.Pick%len(list)]
}

// migrate orders a session to move.
func (p *player) migrate(info *router.SessionInfo) Moved {
	m := Moved{Session: info.Session, Asked: time.Since(p.w.Trace.begun)}
	now := p.w.Router.Session(info.Session)
	m.Movable = now != nil && now.Protected && now.Holder != "" && now.EndedAt == ""
	ctx, cancel := context.WithTimeout(context.Background(), movesAnswered)
	defer cancel()
	m.Move, m.Err = p.w.Router.Migrate(ctx, info.Session)
	m.Answered = time.Since(p.w.Trace.begun)
	return m
}

func (p *player) answered(s *Struck, moves ...Moved) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Moves = append(s.Moves, moves...)
}

// ordered carries out an order, and what is to happen meanwhile.
func (p *player) ordered(f Fault, sc scene, s *Struck) (hit bool, note string) {
	if f.Kind == Drain {
		return p.drain(f, sc, s)
	}
	info := p.movable(f, sc)
	if info == nil {
		return false, "no session can be moved"
	}
	from, to := p.w.Node(info.Primary), p.w.Node(info.Holder)
	if from == nil || to == nil {
		return false, "no pair"
	}
	epoch := uint64(p.w.Gates.epoch(info.Session))
	meanwhile := func(*crossing) bool { return true }
	switch f.Kind {
	case PlannedFault:
		meanwhile = func(c *crossing) bool { return p.strikeMove(f, c, from, to, s) }
	case LostPrepare:
		p.touches(s, to.ID)
		meanwhile = func(c *crossing) bool { return p.losePrepare(c, to) }
	case LostPark:
		p.touches(s, from.ID)
		meanwhile = func(c *crossing) bool { return p.losePark(c, from) }
	case RepeatPrepare:
		meanwhile = func(c *crossing) bool { return p.repeatPrepare(f, c, to, epoch) }
	case RepeatPark:
		meanwhile = func(c *crossing) bool { return p.repeatPark(f, c, from, epoch) }
	}
	c := p.cross(info, sessionLabel(info), to, f.Kind == LostPark, from)
	defer c.over.Store(true)
	if f.Kind == LostPrepare {
		p.w.Shape(to.ID, RouterHost, faultnet.Link{Cut: true})
	}
	var m Moved
	var asking sync.WaitGroup
	asking.Go(func() {
		m = p.migrate(info)
		close(c.answered)
	})
	did := meanwhile(c)
	asking.Wait()
	p.answered(s, m)
	note = fmt.Sprintf("%.8s %s %s: %s %s %v", m.Session, m.Move.From, m.Move.To, m.Move.Result, m.Move.Reason, m.Err)
	if f.Kind == Migrate {
		did = m.Err == nil && m.Move.Result == "moved"
	}
	return did, note
}

// drain takes a node out of use for a while.
func (p *player) drain(f Fault, sc scene, s *Struck) (hit bool, note string) {
	n := sc.primary
	p.touches(s, n.ID)
	asked := time.Since(p.w.Trace.begun)
	movable := map[string]bool{}
	for _, i := range p.w.Router.Sessions() {
		movable[i.Session] = i.Primary == n.ID && i.Protected && i.Holder != "" && i.EndedAt == ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), movesAnswered)
	defer cancel()
	d, err := p.w.Router.Drain(ctx, n.ID)
	if err != nil {
		return false, err.Error()
	}
	for _, m := range d.Moves {
		p.answered(s, Moved{Session: m.Session, Asked: asked, Answered: time.Since(p.w.Trace.begun), Movable: movable[m.Session], Move: m})
	}
	p.sleep(f.For)
	if err := p.w.Router.Undrain(ctx, n.ID); err == nil {
		p.mu.Lock()
		s.Undrained = true
		p.mu.Unlock()
	}
	return len(d.Moves) > 0, fmt.Sprintf("%s: %d of %d moved", n.ID, d.Moved, len(d.Moves))
}

// crossing is what can be seen of a planned takeover. Each channel is closed when its step has come.
type crossing struct {
	info                      *router.SessionInfo
	raised, resumed, replayed chan struct{}
	answered                  chan struct{}
	over                      atomic.Bool
}

// cross watches the steps of a planned takeover that is about to be ordered. With silence the source's words don't reach
// the router from the fence on.
func (p *player) cross(info *router.SessionInfo, label uint64, to *Node, silence bool, from *Node) *crossing {
	c := &crossing{info: info, raised: make(chan struct{}), resumed: make(chan struct{}), replayed: make(chan struct{}), answered: make(chan struct{})}
	first := func(ch chan struct{}, is func(Moment) bool) {
		var once sync.Once
		p.w.Watch(func(m Moment) bool {
			if c.over.Load() || p.ctx.Err() != nil {
				return true
			}
			if !is(m) {
				return false
			}
			once.Do(func() {
				if silence && ch == c.raised {
					p.w.Shape(from.ID, RouterHost, faultnet.Link{Cut: true})
				}
				close(ch)
			})
			return true
		})
	}
	first(c.raised, func(m Moment) bool { return m.Point == PointRaise && m.Session.String() == info.Session })
	first(c.resumed, func(m Moment) bool { return m.Point == PointResume && m.Label == label && m.Node == to.ID })
	first(c.replayed, func(m Moment) bool { return m.Point == PointReplayed && m.Label == label && m.Node == to.ID })
	return c
}

// reached waits for a step; false: the order was answered without it.
func (p *player) reached(c *crossing, step <-chan struct{}) bool {
	select {
	case <-step:
		return true
	case <-c.answered:
		return false
	}
}

// prepared waits until the node keeps a context for the session.
func (p *player) prepared(c *crossing, n *Node) bool {
	for range 400 {
		list, err := n.Sessions()
		if err != nil {
			return false
		}
		for _, v := range list {
			if v.Session == c.info.Session && v.Prepared > 0 {
				return true
			}
		}
		select {
		case <-c.answered:
			return false
		default:
		}
		time.Sleep(250 * time.Microsecond) // virtual
	}
	return false
}

// strikeMove brings a fault on one of those who take part, or on the next holder, at one of the steps.
func (p *player) strikeMove(f Fault, c *crossing, from, to *Node, s *Struck) bool {
	there := true
	switch f.Pick % 5 {
	case 0: // before the target was asked
	case 1:
		there = p.prepared(c, to)
	case 2:
		there = p.reached(c, c.raised)
	case 3:
		there = p.reached(c, c.resumed)
	case 4:
		there = p.reached(c, c.replayed)
	}
	if !there {
		return false
	}
	n := to
	switch f.Pick / 5 % 4 {
	case 0:
		n = from
	case 1:
		for _, o := range p.w.Nodes {
			if o != from && o != to {
				n = o
			}
		}
	}
	switch f.Pick / 20 % 5 {
	case 0:
		return p.crash(n, f.For, s, (*Node).Crash)
	case 1:
		return p.crash(n, f.For, s, (*Node).PowerOff)
	case 2:
		p.crashEngine(f, n, s)
		return true
	case 3:
		p.touches(s, n.ID)
		return p.paused(n.ID, f.For, n.Pause, n.Resume)
	}
	p.touches(s, n.ID)
	p.w.Shape(n.ID, RouterHost, faultnet.Link{Cut: true})
	p.w.Shape(RouterHost, n.ID, faultnet.Link{Cut: true})
	p.sleep(f.For)
	p.w.Restore(n.ID, RouterHost)
	p.w.Restore(RouterHost, n.ID)
	return true
}

// losePrepare breaks the target's connection after it has prepared and before it can say so.
func (p *player) losePrepare(c *crossing, to *Node) bool {
	did := p.prepared(c, to)
	time.Sleep(5 * time.Millisecond) // virtual: the answer is on its way, and held
	p.w.Net.Reset(to.ID, RouterHost)
	p.w.Restore(to.ID, RouterHost)
	return did
}

// losePark does the same for the source that parks.
func (p *player) losePark(c *crossing, from *Node) bool {
	if !p.reached(c, c.raised) {
		return false
	}
	before := p.w.Net.Stats(from.ID, RouterHost)
	time.Sleep(20 * time.Millisecond) // virtual
	did := p.w.Net.Stats(from.ID, RouterHost).Held > before.Held
	p.w.Net.Reset(from.ID, RouterHost)
	p.w.Restore(from.ID, RouterHost)
	return did
}

// repeatPrepare makes the call that the router makes once more, at once or late.
func (p *player) repeatPrepare(f Fault, c *crossing, to *Node, epoch uint64) bool {
	return p.again(f, c, to, func(ctx context.Context, client seguev1.NodeServiceClient, id []byte) error {
		_, err := client.Prepare(ctx, &seguev1.PrepareRequest{Session: id, Epoch: epoch, HoldMs: 500})
		return err
	})
}

// repeatPark does so with the order to park, which the router has given after its fence.
func (p *player) repeatPark(f Fault, c *crossing, from *Node, epoch uint64) bool {
	if !p.reached(c, c.raised) {
		return false
	}
	return p.again(f, c, from, func(ctx context.Context, client seguev1.NodeServiceClient, id []byte) error {
		_, err := client.Park(ctx, &seguev1.ParkRequest{Session: id, Epoch: epoch})
		return err
	})
}

// again makes a call; it reports whether the agent has had it.
func (p *player) again(f Fault, c *crossing, n *Node, call func(context.Context, seguev1.NodeServiceClient, []byte) error) bool {
	client, err := p.calls.to(n)
	if err != nil {
		return false
	}
	id, err := snapshot.ParseSessionID(c.info.Session)
	if err != nil {
		return false
	}
	if f.Pick%3 > 0 {
		time.Sleep(time.Duration(f.Amount * float64(200*time.Millisecond))) // virtual
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err = call(ctx, client, id[:])
	p.w.Trace.Addf("fault   %d repeated call to %s: %v", f.Number, n.ID, err)
	return ctx.Err() == nil
}
