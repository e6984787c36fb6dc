// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"context"
	"time"

	"github.com/seguekv/segue/internal/faultnet"
	"github.com/seguekv/segue/internal/sim"
)

// planned orders a takeover while the primary is well, and strikes the target of the move, or its source where that is
// what the step is about.
func (s *scene) planned(p *parts, m sim.Moment) {
	if m.Point == sim.PointCaptured && m.Node == p.primary.ID && m.Index == struckToken && !s.ordered.Swap(true) {
		s.await("the session is protected", func() bool {
			i := s.w.Router.Session(p.session)
			return i != nil && i.Protected
		})
		s.order(p)
		return
	}
	if !s.ordered.Load() {
		return
	}
	if m.Point == sim.PointRaise && s.delivered.Load() == 0 {
		s.delivered.Store(int64(m.Index))
		switch s.point {
		case "planned-fenced": // nobody has told the source
			s.strike(p.primary)
		case "planned-parked": // the target is asked a while after the source has parked
			s.w.Shape(sim.RouterHost, p.holder.ID, faultnet.Link{Latency: slow})
			go func() { // ends with its strike
				s.await("the source parks", func() bool { return s.lists(p.primary, "parked").Committed > 0 })
				s.strike(p.holder)
				s.unlessCut(sim.RouterHost, p.holder.ID)
			}()
		}
	}
	if s.point == "planned-resumed" && m.Node == p.holder.ID {
		s.when(m.Point == sim.PointResume, p.holder)
	}
}

// order orders the move. For its first steps it waits for them, in the engine of the source.
func (s *scene) order(p *parts) {
	switch s.point {
	case "planned-asked":
		s.w.Shape(sim.RouterHost, p.holder.ID, faultnet.Link{Latency: slow})
	case "planned-prepared":
		s.w.Shape(p.holder.ID, sim.RouterHost, faultnet.Link{Latency: slow})
	}
	go func() { // ends with the router's answer, for which the scene waits
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		m, err := s.w.Router.Migrate(ctx, p.session)
		if err != nil {
			s.fail("the order has no answer: %v", err)
		}
		s.w.Trace.Addf("move    %+v", m)
		s.moves <- m.Result
	}()
	switch s.point {
	case "planned-asked":
		time.Sleep(slow / 2) // virtual: the question is on its way
		if s.lists(p.holder, "holder").Prepared > 0 {
			s.fail("the target has prepared already")
		}
		s.strike(p.holder)
		s.unlessCut(sim.RouterHost, p.holder.ID)
	case "planned-prepared":
		s.await("the target prepares", func() bool { return s.lists(p.holder, "holder").Prepared > 0 })
		s.strike(p.holder)
		s.unlessCut(p.holder.ID, sim.RouterHost)
	}
}

// unlessCut restores a link that was slowed down, if the fault hasn't cut it.
func (s *scene) unlessCut(from, to string) {
	if s.fault != "cut" {
		s.w.Restore(from, to)
	}
}
