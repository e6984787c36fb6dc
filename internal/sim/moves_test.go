// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seguekv/segue/internal/sim"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/journal"
)

// A planned move of a protected session ends on the holder, and counts against nobody.
func TestMove_BlamesNobody(t *testing.T) {
	c := smallWorld()
	var w *sim.World
	var asked atomic.Bool
	moves := make(chan router.Move, 1)
	c.Hook = func(m sim.Moment) {
		if m.Point != sim.PointCaptured || m.Index != 7 || !asked.CompareAndSwap(false, true) {
			return
		}
		list := w.Router.Sessions()
		go func() { // ends with the router's answer, for which the test waits
			m, err := w.Router.Migrate(context.Background(), list[0].Session)
			if err != nil {
				t.Errorf("migrate: %v", err)
			}
			moves <- m
		}()
	}
	bubble(t, c, func(t *testing.T, world *sim.World) {
		w = world
		r := smallRequest()
		ref, err := sim.Refer(sim.DefaultEngine(), r)
		if err != nil {
			t.Fatal(err)
		}
		client := w.NewClient("client")
		defer client.Close()
		a := client.Ask(t.Context(), r, sim.Manner{})
		if why := sim.Judge(a, ref, r); len(why) > 0 || !a.Whole() {
			t.Errorf("%+v: %v", a, why)
		}
		if m := <-moves; m.Result != "moved" || m.From == m.To {
			t.Errorf("%+v", m)
		}
		if n := w.Router.Count("segue_router_detection_seconds"); n != 0 {
			t.Errorf("%v failures were detected", n)
		}
		rec := w.Router.Record(a.Session)
		if rec == nil || rec.Phase != journal.PhaseDone || rec.Delivered != 20 || len(rec.Attempts) != 2 || rec.Attempts[1].Epoch != 2 || rec.Attempts[0].Cause != string(router.CauseMigrate) {
			t.Errorf("the journal says %+v", rec)
		}
	})
}

// What the oracle says of the journal, of keys and of moves that don't come about.
func TestOracle_JudgesOrders(t *testing.T) {
	ref := &sim.Reference{PromptIDs: []int32{1}, IDs: []int32{7}, Text: "a", Whole: []int{1}, TextEnd: []int{1}, Finish: "length"}
	whole := func(session string) *sim.Answer {
		return &sim.Answer{Session: session, Status: 200, IDs: []int32{7}, Text: "a", Finish: "length", Finishes: 1, Dones: 1, Names: []string{"x"}, Usage: &sim.AnswerUsage{Prompt: 1, Completion: 1, Total: 2}}
	}
	done := func() *journal.Request {
		return &journal.Request{Phase: journal.PhaseDone, Delivered: 1, FirstDeltaSent: true, Attempts: []journal.Attempt{{Epoch: 1}, {Epoch: 2}}}
	}
	again := func(session string, replayed bool) *sim.Exchange {
		a := whole(session)
		a.Repeat, a.Replayed = true, replayed
		return &sim.Exchange{Try: 1, Answer: a}
	}
	refused := sim.Moved{Session: "s", Movable: true, Asked: time.Second, Answered: time.Second, Move: router.Move{Result: "refused"}}
	for name, c := range map[string]struct {
		change func(*sim.Outcome, *journal.Request)
		ok     bool
	}{
		"the truth":         {func(*sim.Outcome, *journal.Request) {}, true},
		"no record":         {func(o *sim.Outcome, _ *journal.Request) { o.Exchanges[0].Record = nil }, false},
		"still running":     {func(_ *sim.Outcome, r *journal.Request) { r.Phase = journal.PhaseDecode }, false},
		"fewer delivered":   {func(_ *sim.Outcome, r *journal.Request) { r.Delivered = 0 }, false},
		"more delivered":    {func(_ *sim.Outcome, r *journal.Request) { r.Delivered = 2 }, false},
		"no delta sent":     {func(_ *sim.Outcome, r *journal.Request) { r.FirstDeltaSent = false }, false},
		"epochs fall":       {func(_ *sim.Outcome, r *journal.Request) { r.Attempts[1].Epoch = 1 }, false},
		"bound, no crash":   {func(_ *sim.Outcome, r *journal.Request) { r.UpperBound = true }, false},
		"done as failed":    {func(_ *sim.Outcome, r *journal.Request) { r.Phase = journal.PhaseFailed }, false},
		"replayed":          {func(o *sim.Outcome, _ *journal.Request) { o.Exchanges = append(o.Exchanges, again("s", true)) }, true},
		"run again":         {func(o *sim.Outcome, _ *journal.Request) { o.Exchanges = append(o.Exchanges, again("t", false)) }, false},
		"another's replay":  {func(o *sim.Outcome, _ *journal.Request) { o.Exchanges = append(o.Exchanges, again("t", true)) }, false},
		"a move is refused": {func(o *sim.Outcome, _ *journal.Request) { o.Struck[0].Moves = []sim.Moved{refused} }, false},
		"and a fault near": {func(o *sim.Outcome, _ *journal.Request) {
			o.Struck[0].Moves = []sim.Moved{refused}
			o.Struck = append(o.Struck, &sim.Struck{Fault: sim.Fault{Kind: sim.Cut}, From: time.Second, To: time.Second})
		}, true},
		"crash: a bound": {func(o *sim.Outcome, r *journal.Request) {
			o.Struck = append(o.Struck, &sim.Struck{Fault: sim.Fault{Kind: sim.RouterCrash}, From: time.Second, To: time.Second})
			r.Phase, r.UpperBound, r.Delivered = journal.PhaseFailed, true, 64
		}, true},
		"crash: too little": {func(o *sim.Outcome, r *journal.Request) {
			o.Struck = append(o.Struck, &sim.Struck{Fault: sim.Fault{Kind: sim.RouterCrash}, From: time.Second, To: time.Second})
			r.Phase, r.UpperBound, r.Delivered = journal.PhaseFailed, false, 0
		}, false},
	} {
		r := done()
		o := &sim.Outcome{Plan: sim.Plan{Nodes: 3, Replay: true}, Exchanges: []*sim.Exchange{{Answer: whole("s"), Record: r, Looked: true}},
			Struck: []*sim.Struck{{Fault: sim.Fault{Kind: sim.Migrate}, From: time.Second, To: time.Second}}}
		c.change(o, r)
		o.Examine(map[uint64]*sim.Reference{0: ref})
		if (len(o.Problems) == 0) != c.ok {
			t.Errorf("%s: %q", name, o.Problems)
		}
	}
}
