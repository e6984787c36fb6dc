// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seguekv/segue/router"
)

// Struck is a fault that has struck.
type Struck struct {
	Fault
	// From and To are when, since the world's start. To is zero while it lasts.
	From, To time.Duration
	// Hosts are those that it touches.
	Hosts []string
	// Hit: it met something.
	Hit bool
	// Note says what it did.
	Note string
	// Moves are the planned takeovers that it ordered. Undrained: its drain has ended.
	Moves     []Moved
	Undrained bool
}

// player carries out a schedule.
type player struct {
	w     *World
	plan  Plan
	refs  map[uint64]*Reference
	begun time.Time
	ctx   context.Context
	calls *caller
	group sync.WaitGroup

	mu     sync.Mutex
	struck []*Struck
}

// start makes every fault wait for its moment.
func (p *player) start() {
	for _, f := range p.plan.Faults {
		when := make(chan Moment, 1)
		if f.On != "" {
			var nth atomic.Int64
			p.w.Watch(func(m Moment) bool {
				if p.ctx.Err() != nil {
					return true
				}
				if m.Point != f.On || time.Since(p.begun) < f.At {
					return false
				}
				if nth.Add(1) < int64(f.Nth) {
					return false
				}
				select {
				case when <- m:
				default:
				}
				return true
			})
		}
		p.group.Go(func() {
			if f.On == "" {
				if p.sleep(f.At) {
					p.strike(f, nil)
				}
				return
			}
			select {
			case m := <-when:
				p.strike(f, &m)
			case <-p.ctx.Done():
			}
		})
	}
}

// sleep reports whether the time has passed before the schedule ended.
func (p *player) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.ctx.Done():
		return false
	}
}

// strike carries out one fault and returns when it is over.
func (p *player) strike(f Fault, m *Moment) {
	s := &Struck{Fault: f, From: time.Since(p.w.Trace.begun)}
	p.mu.Lock()
	p.struck = append(p.struck, s)
	p.mu.Unlock()
	scene := p.look(f, m)
	p.w.Trace.Addf("fault   %d %s: primary %s, holder %s", f.Number, f.Kind, scene.primary.ID, scene.holder.ID)
	hit, note := p.effect(f, m, scene, s)
	p.mu.Lock()
	s.Hit, s.Note, s.To = hit, note, time.Since(p.w.Trace.begun)
	p.mu.Unlock()
	p.w.Trace.Addf("fault   %d %s is over: hit %v %s", f.Number, f.Kind, hit, note)
}

func (p *player) touches(s *Struck, hosts ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Hosts = append(s.Hosts, hosts...)
}

// scene is whom a fault can strike.
type scene struct {
	session         *router.SessionInfo // nil when none is live
	primary, holder *Node
	other           *Node // neither, or the holder
}

// node is the one in the fault's role.
func (s scene) node(role string) *Node {
	switch role {
	case "holder":
		return s.holder
	case "other":
		return s.other
	}
	return s.primary
}

// look finds the session and the nodes that a fault is about.
func (p *player) look(f Fault, m *Moment) scene {
	var live []router.SessionInfo
	for _, s := range p.w.Router.Sessions() {
		if s.EndedAt == "" {
			live = append(live, s)
		}
	}
	slices.SortFunc(live, func(a, b router.SessionInfo) int {
		return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), cmp.Compare(a.RequestID, b.RequestID))
	})
	nodes := p.w.Nodes
	s := scene{primary: nodes[f.Pick%len(nodes)], holder: nodes[(f.Pick+1)%len(nodes)]}
	for i := range live {
		if m != nil && (m.Label != 0 && live[i].RequestID == requestID(m.Label) || live[i].Session == m.Session.String()) {
			s.session = &live[i]
		}
	}
	if s.session == nil && len(live) > 0 && (m == nil || m.Node == "") {
		s.session = &live[f.Pick%len(live)]
	}
	if s.session != nil {
		if n := p.w.Node(s.session.Primary); n != nil {
			s.primary = n
		}
		if n := p.w.Node(s.session.Holder); n != nil {
			s.holder = n
		}
	}
	if m != nil && m.Node != "" {
		s.primary = p.w.Node(m.Node)
	}
	if s.holder == s.primary {
		s.holder = nodes[(slices.Index(nodes, s.primary)+1)%len(nodes)]
	}
	s.other = s.holder
	for _, n := range nodes {
		if n != s.primary && n != s.holder {
			s.other = n
		}
	}
	return s
}

// requestID is the X-Request-Id of a planned request; label is its inverse's.
func requestID(label uint64) string { return "sim-" + formatLabel(label) }

func sessionLabel(s *router.SessionInfo) uint64 {
	if s == nil {
		return 0
	}
	id, ok := strings.CutPrefix(s.RequestID, "sim-")
	if !ok {
		return 0
	}
	return parseLabel(id)
}
