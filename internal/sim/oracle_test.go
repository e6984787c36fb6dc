// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"context"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/internal/sim"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/journal"
)

// crashPlan is one protected session whose primary's engine crashes in the middle.
func crashPlan() sim.Plan {
	p := sim.Plan{Seed: 4711, Nodes: 3}
	r := smallRequest()
	r.MaxTokens = 40
	p.Sessions = []sim.SessionPlan{{Request: r}}
	p.Faults = []sim.Fault{{Kind: sim.EngineCrash, On: sim.PointCaptured, Nth: 15, Role: "primary", For: 100 * time.Millisecond}}
	return p
}

func mustFind(t *testing.T, o *sim.Outcome, want string) {
	t.Helper()
	for _, p := range o.Problems {
		if strings.Contains(p, want) {
			return
		}
	}
	t.Errorf("no problem names %q: %q", want, o.Problems)
}

func TestOracle_PassesACrash(t *testing.T) {
	o, dead := play(t, crashPlan(), sim.Options{})
	if len(o.Problems) > 0 || dead {
		t.Errorf("%q", o.Problems)
	}
	if got := o.Tally(); got.Takeovers != 1 || got.Hit[sim.EngineCrash] != 1 || got.Whole != 1 {
		t.Errorf("the fault didn't happen: %+v", got)
	}
}

// broken is an engine with a defect.
type broken struct {
	engines.Engine
	run func(ctx context.Context, inner engines.Engine, j engines.Job, s engines.Sink) error
}

func (b broken) Run(ctx context.Context, j engines.Job, s engines.Sink) error {
	return b.run(ctx, b.Engine, j, s)
}

func wrap(run func(context.Context, engines.Engine, engines.Job, engines.Sink) error) func(string, engines.Engine) engines.Engine {
	return func(_ string, e engines.Engine) engines.Engine { return broken{e, run} }
}

// edit changes tokens on their way.
type edit struct {
	engines.Sink
	f func(*engines.Token)
}

func (e edit) Token(t engines.Token) error {
	e.f(&t)
	return e.Sink.Token(t)
}

// wrongAfterTakeover decorates engines that continue a state with one wrong token.
func wrongAfterTakeover() func(string, engines.Engine) engines.Engine {
	return wrap(func(ctx context.Context, e engines.Engine, j engines.Job, s engines.Sink) error {
		if j.From != nil {
			n := len(j.From.Output)
			s = edit{s, func(t *engines.Token) {
				if t.Index == n {
					t.ID ^= 1
				}
			}}
		}
		return e.Run(ctx, j, s)
	})
}

func TestOracle_SeesAWrongTokenAfterATakeover(t *testing.T) {
	o, _ := play(t, crashPlan(), sim.Options{Wrap: wrongAfterTakeover()})
	mustFind(t, o, "no prefix of the reference")
}

func TestOracle_SeesAnEarlyEnd(t *testing.T) {
	o, _ := play(t, crashPlan(), sim.Options{Wrap: wrap(func(ctx context.Context, e engines.Engine, j engines.Job, s engines.Sink) error {
		return e.Run(ctx, j, edit{s, func(t *engines.Token) {
			if t.Index == 30 {
				t.Finish = engines.FinishLength
			}
		}})
	})})
	if len(o.Problems) == 0 {
		t.Error("an answer of 31 tokens instead of 40 passes")
	}
}

func TestOracle_SeesAnUnjustifiedEnd(t *testing.T) {
	// Engines that refuse every state make each takeover fail.
	o, _ := play(t, crashPlan(), sim.Options{Wrap: wrap(func(ctx context.Context, e engines.Engine, j engines.Job, s engines.Sink) error {
		if j.From != nil {
			return engines.ErrState
		}
		return e.Run(ctx, j, s)
	})})
	mustFind(t, o, "unjustified end: sync")
}

func TestOracle_KnowsWhichEndsAreJustified(t *testing.T) {
	n := func(i int) *int { return &i }
	interrupted := func(d int) *sim.Answer {
		a := &sim.Answer{Session: "s", Status: 200, Begun: time.Second, Ended: 2 * time.Second, Err: &sim.AnswerError{Code: "upstream_decode_interrupted", Partial: d > 0, Delivered: n(d)}}
		if d == 0 {
			a.Status, a.Err.Code = 502, "upstream_unavailable"
		}
		for i := range d {
			a.IDs, a.Text = append(a.IDs, int32(i)), a.Text+"x"
		}
		return a
	}
	ref := &sim.Reference{IDs: []int32{0, 1, 2}, Text: "xxx", Whole: []int{1, 2, 3}}
	struck := func(k sim.Kind, from, to time.Duration, hosts ...string) *sim.Struck {
		return &sim.Struck{Fault: sim.Fault{Kind: k}, From: from, To: to, Hosts: hosts}
	}
	crash := struck(sim.EngineCrash, 1500*time.Millisecond, 1600*time.Millisecond, "a")
	other := struck(sim.Cut, 1500*time.Millisecond, 1600*time.Millisecond, "b")
	for name, c := range map[string]struct {
		protection string
		a          *sim.Answer
		faults     []*sim.Struck
		change     func(*sim.Exchange, *sim.Plan)
		flagged    bool
	}{
		"sync, no fault":            {"sync", interrupted(2), nil, nil, true},
		"off, no fault":             {"off", interrupted(2), nil, nil, true},
		"fault long before":         {"off", interrupted(2), []*sim.Struck{struck(sim.NodeCrash, 1, -4*time.Second+1, "a")}, nil, true},
		"fault afterwards":          {"off", interrupted(2), []*sim.Struck{struck(sim.NodeCrash, 3*time.Second, 4*time.Second, "a")}, nil, true},
		"sync, one crash":           {"sync", interrupted(2), []*sim.Struck{crash}, nil, true},
		"sync, fault lasts":         {"sync", interrupted(2), []*sim.Struck{struck(sim.Pause, 1, 0, "a")}, nil, true},
		"async, one crash":          {"async", interrupted(2), []*sim.Struck{crash}, nil, false},
		"off, nothing written":      {"off", interrupted(0), []*sim.Struck{crash}, nil, true},
		"sync, router crash":        {"sync", interrupted(2), []*sim.Struck{struck(sim.RouterCrash, 1, 0, sim.RouterHost)}, nil, false},
		"sync, cut between a pair":  {"sync", interrupted(2), []*sim.Struck{struck(sim.Cut, 1, 0, "a", "b")}, nil, false},
		"sync, two faults":          {"sync", interrupted(2), []*sim.Struck{crash, other}, nil, false},
		"tight world":               {"sync", interrupted(2), []*sim.Struck{crash}, func(_ *sim.Exchange, p *sim.Plan) { p.Tight = true }, false},
		"client left":               {"sync", interrupted(2), []*sim.Struck{crash}, func(x *sim.Exchange, _ *sim.Plan) { x.Answer.Left = true }, false},
		"client that may leave":     {"sync", interrupted(2), []*sim.Struck{crash}, func(x *sim.Exchange, _ *sim.Plan) { x.Plan.LeaveOnRaise = true }, false},
		"two faults, holder safe":   {"sync", interrupted(2), []*sim.Struck{crash, other}, protectedBy("c"), true},
		"two faults, holder struck": {"sync", interrupted(2), []*sim.Struck{crash, other}, protectedBy("b"), false},
		"holder counted as lost": {"sync", interrupted(2), []*sim.Struck{crash, other}, func(x *sim.Exchange, p *sim.Plan) {
			protectedBy("c")(x, p)
			x.Info.ProtectionLog = append(x.Info.ProtectionLog, router.ProtectionInfo{Holder: "c", Cause: "holder_lost"})
		}, false},
	} {
		x := &sim.Exchange{Plan: sim.SessionPlan{Request: sim.Request{Label: 1, Stream: true, Protection: c.protection}}, Answer: c.a}
		p := sim.Plan{Nodes: 3}
		if c.change != nil {
			c.change(x, &p)
		}
		o := &sim.Outcome{Plan: p, Exchanges: []*sim.Exchange{x}, Struck: c.faults}
		o.Examine(map[uint64]*sim.Reference{1: ref})
		if (len(o.Problems) > 0) != c.flagged {
			t.Errorf("%s: %q", name, o.Problems)
		}
	}
}

func protectedBy(holder string) func(*sim.Exchange, *sim.Plan) {
	return func(x *sim.Exchange, _ *sim.Plan) {
		x.Info = &router.SessionInfo{ProtectionLog: []router.ProtectionInfo{{Protected: true, Holder: holder}}}
	}
}

// A key never runs again once anything was delivered, not even where the disk fails and the router crashes.
func TestOracle_SeesAKeyThatRunsAgain(t *testing.T) {
	ref := &sim.Reference{IDs: []int32{0}, Text: "x", Whole: []int{1}, TextEnd: []int{1}, Finish: "length"}
	answer := func(session string) *sim.Answer {
		return &sim.Answer{
			Session: session, Status: 200, Keyed: true, IDs: []int32{0}, Text: "x", Finish: "length", Finishes: 1, Dones: 1,
			Usage: &sim.AnswerUsage{Completion: 1, Total: 1},
		}
	}
	struck := []*sim.Struck{{Fault: sim.Fault{Kind: sim.JournalFails}, To: 1}, {Fault: sim.Fault{Kind: sim.RouterCrash}, To: 1}}
	for name, c := range map[string]struct {
		change  func(first, second *sim.Answer)
		flagged bool
	}{
		"again":                  {func(_, _ *sim.Answer) {}, true},
		"again after a part":     {func(first, _ *sim.Answer) { first.Dones, first.Finishes, first.Broken = 0, 0, io.ErrUnexpectedEOF }, true},
		"after nothing was read": {func(first, _ *sim.Answer) { *first = sim.Answer{Keyed: true, Broken: io.ErrUnexpectedEOF} }, false},
		"the same answer":        {func(_, second *sim.Answer) { second.Session, second.Replayed = "1", true }, false},
		"another session's":      {func(_, second *sim.Answer) { second.Replayed = true }, true},
		"refused: not remembered": {func(_, second *sim.Answer) {
			*second = sim.Answer{Keyed: true, Repeat: true, Status: 503, Err: &sim.AnswerError{}}
		}, false},
	} {
		first, second := answer("1"), answer("2")
		second.Repeat = true
		c.change(first, second)
		plan := sim.SessionPlan{Request: sim.Request{Label: 1}, Key: true, Retries: 1}
		o := &sim.Outcome{Plan: sim.Plan{Nodes: 3}, Struck: struck, Exchanges: []*sim.Exchange{{Plan: plan, Answer: first, Boots: [2]int{1, 2}}, {Plan: plan, Try: 1, Answer: second}}}
		if o.Examine(map[uint64]*sim.Reference{1: ref}); (len(o.Problems) > 0) != c.flagged {
			t.Errorf("%s: %q", name, o.Problems)
		}
	}
}

// What was delivered of an answer with a key is in the journal, whatever else it has lost.
func TestJudgeRecord_OfAKey(t *testing.T) {
	a := &sim.Answer{Status: 200, IDs: []int32{0}, Text: "x", Broken: io.ErrUnexpectedEOF}
	for _, keyed := range []bool{false, true} {
		for name, r := range map[string]*journal.Request{"nothing": nil, "unsent": {Phase: journal.PhaseFailed}} {
			a.Keyed = keyed
			if why := sim.JudgeRecord(a, r, true, true); (len(why) > 0) != keyed {
				t.Errorf("%s, keyed %v: %q", name, keyed, why)
			}
		}
	}
}

func TestOracle_SeesALeak(t *testing.T) {
	p := crashPlan()
	p.Sessions[0].LeaveAfter = 5
	hold := make(chan struct{})
	defer close(hold)
	o, _ := play(t, p, sim.Options{Wrap: wrap(func(ctx context.Context, e engines.Engine, j engines.Job, s engines.Sink) error {
		err := e.Run(ctx, j, s)
		if j.Request.Sampling.Seed == p.Sessions[0].Request.Label {
			time.Sleep(10 * time.Minute) // virtual: the context stays in use
		}
		return err
	})})
	mustFind(t, o, "of rest: node")
}

// A goroutine that nothing ends is found at the end of the bubble.
func TestOracle_SeesAStuckGoroutine(t *testing.T) {
	p := crashPlan()
	p.Faults = nil
	release := make(chan struct{})
	o, dead := play(t, p, sim.Options{Wrap: func(_ string, e engines.Engine) engines.Engine {
		return broken{e, func(ctx context.Context, inner engines.Engine, j engines.Job, s engines.Sink) error {
			c := make(chan struct{})
			go func() { // blocked for good, which is the defect
				<-c
				close(release)
			}()
			return inner.Run(ctx, j, s)
		}}
	}})
	if !dead {
		t.Error("the bubble ended")
	}
	mustFind(t, o, "deadlock")
}

func gateHistory(ops []fence.Op, reads ...sim.Read) sim.History {
	h := sim.History{Reads: reads}
	for i, op := range ops {
		h.Ops = append(h.Ops, sim.GateOp{Op: op, Seq: int64(10 * (i + 1))})
	}
	return h
}

func TestCheckGate(t *testing.T) {
	add := func(e fence.Epoch, i int, tok int32) fence.Op {
		return fence.Op{Kind: fence.OpAppend, Epoch: e, Index: i, Token: tok, TextEnd: i + 1}
	}
	stale := func(op fence.Op) fence.Op { op.Err = fence.ErrStaleEpoch; return op }
	raise := func(e fence.Epoch) fence.Op { return fence.Op{Kind: fence.OpRaise, Epoch: e} }
	restart := func(e fence.Epoch) fence.Op { return fence.Op{Kind: fence.OpRestart, Epoch: e} }
	finish := func(e fence.Epoch, n int) fence.Op { return fence.Op{Kind: fence.OpFinish, Epoch: e, Index: n} }
	read := func(since, until int64, first int, ids ...int32) sim.Read {
		return sim.Read{Since: since, Until: until, First: first, IDs: ids}
	}
	end := func(since, until int64, n int) sim.Read {
		return sim.Read{Since: since, Until: until, End: true, Total: n}
	}
	for name, c := range map[string]struct {
		h  sim.History
		ok bool
	}{
		"whole":                        {gateHistory([]fence.Op{add(1, 0, 5), add(1, 1, 6), finish(1, 2)}, read(1, 15, 0, 5), read(16, 25, 1, 6), end(26, 40, 2)), true},
		"takeover re-emits":            {gateHistory([]fence.Op{add(1, 0, 5), raise(2), stale(add(1, 1, 6)), add(2, 0, 5), add(2, 1, 6), finish(2, 2)}, read(1, 90, 0, 5, 6)), true},
		"read before the append":       {gateHistory([]fence.Op{add(1, 0, 5), add(1, 1, 6)}, read(1, 15, 0, 5, 6)), false},
		"read of another token":        {gateHistory([]fence.Op{add(1, 0, 5)}, read(1, 15, 0, 6)), false},
		"an append is missing":         {gateHistory([]fence.Op{add(1, 0, 5), add(1, 2, 7)}), false},
		"stale append accepted":        {gateHistory([]fence.Op{add(1, 0, 5), raise(2), add(1, 1, 6)}), false},
		"current append refused":       {gateHistory([]fence.Op{add(1, 0, 5), stale(add(1, 1, 6))}), false},
		"append after the finish":      {gateHistory([]fence.Op{add(1, 0, 5), finish(1, 1), add(1, 1, 6)}), false},
		"raise after the finish":       {gateHistory([]fence.Op{add(1, 0, 5), finish(1, 1), raise(2)}), false},
		"finish with too few":          {gateHistory([]fence.Op{add(1, 0, 5), finish(1, 0)}), false},
		"restart after a read":         {gateHistory([]fence.Op{add(1, 0, 5), restart(2), add(2, 0, 6)}, read(1, 15, 0, 5)), false},
		"restart, then other tokens":   {gateHistory([]fence.Op{add(1, 0, 5), restart(2), add(2, 0, 6)}, read(25, 40, 0, 6)), true},
		"read of what was discarded":   {gateHistory([]fence.Op{add(1, 0, 5), restart(2), add(2, 0, 6)}, read(25, 40, 0, 5)), false},
		"whole answer, gate not ended": {gateHistory([]fence.Op{add(1, 0, 5)}, read(1, 15, 0, 5), end(16, 40, 1)), false},
	} {
		if err := sim.CheckGate(c.h); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A call that is left out of a real history is missed.
func TestCheckGate_NoticesEachMissingCall(t *testing.T) {
	o, _ := play(t, crashPlan(), sim.Options{})
	for id, h := range o.Histories {
		if len(h.Reads) < 10 {
			continue
		}
		for i := range h.Ops {
			less := h
			less.Ops = append(append([]sim.GateOp{}, h.Ops[:i]...), h.Ops[i+1:]...)
			if sim.CheckGate(less) == nil && !repeated(h.Ops, i) {
				t.Errorf("session %.8s: nobody misses call %d, %s of %d under %d", id, i, h.Ops[i].Kind, h.Ops[i].Index, h.Ops[i].Epoch)
			}
		}
		return
	}
	t.Error("no history")
}

// repeated reports a call without effect of its own: an entry that is in already.
func repeated(ops []sim.GateOp, i int) bool {
	for j, o := range ops {
		if j != i && o.Kind == ops[i].Kind && o.Index == ops[i].Index && o.Kind == fence.OpAppend {
			return true
		}
	}
	return ops[i].Err != nil
}

func TestJudge(t *testing.T) {
	ref := &sim.Reference{PromptIDs: []int32{1}, IDs: []int32{7, 8}, Text: "ab", Whole: []int{1, 2}, TextEnd: []int{1, 2}, Finish: "length"}
	n := func(i int) *int { return &i }
	whole := func(change func(*sim.Answer)) *sim.Answer {
		a := &sim.Answer{Status: 200, IDs: []int32{7, 8}, Text: "ab", Finish: "length", Finishes: 1, Dones: 1, Roles: 1, Names: []string{"x"}, Usage: &sim.AnswerUsage{Prompt: 1, Completion: 2, Total: 3}}
		change(a)
		return a
	}
	part := func(change func(*sim.Answer)) *sim.Answer {
		a := &sim.Answer{Status: 200, IDs: []int32{7}, Text: "a", Roles: 1, Names: []string{"x"}, Err: &sim.AnswerError{Code: "upstream_decode_interrupted", Partial: true, Delivered: n(1)}}
		change(a)
		return a
	}
	for name, c := range map[string]struct {
		a  *sim.Answer
		ok bool
	}{
		"whole":              {whole(func(*sim.Answer) {}), true},
		"other token":        {whole(func(a *sim.Answer) { a.IDs = []int32{7, 9} }), false},
		"short":              {whole(func(a *sim.Answer) { a.IDs, a.Text = a.IDs[:1], "a" }), false},
		"other text":         {whole(func(a *sim.Answer) { a.Text = "ac" }), false},
		"other finish":       {whole(func(a *sim.Answer) { a.Finish = "stop" }), false},
		"two finishes":       {whole(func(a *sim.Answer) { a.Finishes = 2 }), false},
		"two DONE":           {whole(func(a *sim.Answer) { a.Dones = 2 }), false},
		"no role":            {whole(func(a *sim.Answer) { a.Roles = 0 }), false},
		"two names":          {whole(func(a *sim.Answer) { a.Names = []string{"x", "y"} }), false},
		"usage":              {whole(func(a *sim.Answer) { a.Usage.Completion = 3 }), false},
		"honest end":         {part(func(*sim.Answer) {}), true},
		"wrong count":        {part(func(a *sim.Answer) { a.Err.Delivered = n(2) }), false},
		"no count":           {part(func(a *sim.Answer) { a.Err.Delivered = nil }), false},
		"not partial":        {part(func(a *sim.Answer) { a.Err.Partial = false }), false},
		"error and DONE":     {part(func(a *sim.Answer) { a.Dones = 1 }), false},
		"token without text": {part(func(a *sim.Answer) { a.Text = "" }), false},
		"silent end":         {part(func(a *sim.Answer) { a.Err = nil }), false},
		"client left":        {part(func(a *sim.Answer) { a.Err, a.Left = nil, true }), true},
		"broken transport":   {part(func(a *sim.Answer) { a.Err, a.Broken = nil, io.ErrUnexpectedEOF }), true},
		"bad form":           {part(func(a *sim.Answer) { a.Problems = []string{"x"} }), false},
	} {
		if why := sim.Judge(c.a, ref, sim.Request{Chat: true, Stream: true}); (len(why) == 0) != c.ok {
			t.Errorf("%s: %q", name, why)
		}
	}
}

// A failure of the simulation is found in a drawn plan and shrunk to what matters.
func TestSim_ShrinksAFailure(t *testing.T) {
	p := newPool(t, 1)
	defer p.close()
	for seed := uint64(1); seed <= 60; seed++ {
		r := p.run(job{Seed: seed, Broken: true})
		if len(r.Problems) == 0 {
			continue
		}
		j, small := shrink(p, r)
		if len(j.Sessions) != 1 || len(j.Faults) > 2 || len(small.Problems) == 0 || len(small.Trace) == 0 {
			t.Errorf("seed %d shrinks to %d faults and %d sessions with problems %q", seed, len(j.Faults), len(j.Sessions), small.Problems)
		}
		if c := command(j); !strings.Contains(c, "-sessions") {
			t.Errorf("command %q", c)
		}
		return
	}
	t.Error("no seed fails with engines that are wrong after a takeover")
}

func TestDraw_FollowsFromTheSeed(t *testing.T) {
	for seed := range uint64(50) {
		a, b := sim.Draw(seed), sim.Draw(seed)
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("seed %d gives two plans:\n%v\n%v", seed, a, b)
		}
		faults, sessions := a.Numbers()
		if k := a.Keep(faults, sessions); !reflect.DeepEqual(k, a) {
			t.Errorf("seed %d: keeping all of it changes it", seed)
		}
	}
}
