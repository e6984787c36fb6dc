// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/journal"
)

const (
	// patience is when an answer that hasn't ended counts as stuck.
	patience = 3 * time.Minute
	// rest is how long contexts and memory may take to come back: a dead router's sessions are held until the sweep.
	rest = 2 * time.Minute
	// slack is how long the effects of a fault may outlast it: probes, back-off, a stall's detection.
	slack = 4 * time.Second
)

var errStuck = errors.New("sim: the answer is stuck")

// Exchange is one answer with what is known about it.
type Exchange struct {
	Plan   SessionPlan
	Try    int
	Answer *Answer
	// Info is the router's record, nil when the router forgot it.
	Info *router.SessionInfo
	// Stuck: the answer didn't end in time.
	Stuck bool
	// Boots is the router's process life when it began and when it ended.
	Boots [2]int
	// Record is what the journal knew at last, if it was Looked for: a repeated key may stand for an earlier exchange.
	Record *journal.Request
	Looked bool
}

// Outcome is what became of a plan.
type Outcome struct {
	Plan      Plan
	Exchanges []*Exchange
	Struck    []*Struck
	// Problems are violations; none means that the run passed.
	Problems []string
	Trace    []string
	// Histories are those of the gates, by session.
	Histories map[string]History
	// Watermarks counts comparisons of watermarks.
	Watermarks int
	// Probes counts what ran without a client having asked for it.
	Probes int
	// Actions counts tools' actions that were done, Reclaimed further claims of them, Survived those of them at a later
	// process of the router.
	Actions, Reclaimed, Survived int
	// End is the virtual time at the end.
	End time.Duration
}

func (o *Outcome) problem(format string, args ...any) {
	if len(o.Problems) < 20 {
		o.Problems = append(o.Problems, fmt.Sprintf(format, args...))
	}
}

// Options change how a plan is played.
type Options struct {
	Verbose bool
	// Wrap decorates engines, to prove that the oracle sees what they do wrong.
	Wrap func(node string, e engines.Engine) engines.Engine
}

// References computes what each request of a plan yields undisturbed.
func References(p Plan) (map[uint64]*Reference, error) {
	refs := map[uint64]*Reference{}
	for _, s := range p.Sessions {
		r, err := Refer(p.Engine(), s.Request)
		if err != nil {
			return nil, err
		}
		refs[s.Request.Label] = r
	}
	return refs, nil
}

// Play carries out a plan and says what happened. It must be called in a bubble of its own; Examine judges the outcome
// outside of it.
func Play(p Plan, refs map[uint64]*Reference, opts Options) *Outcome {
	o := &Outcome{Plan: p, Histories: map[string]History{}}
	cfg := p.World(opts.Verbose)
	cfg.Wrap = opts.Wrap
	w, err := NewWorld(cfg)
	if err != nil {
		o.problem("the world doesn't start: %v", err)
	} else {
		o.play(w, refs)
	}
	if err := w.Close(); err != nil {
		o.problem("close: %v", err)
	}
	for _, id := range w.Gates.Sessions() {
		o.Histories[id] = w.Gates.History(id)
	}
	o.Trace, o.End = w.Trace.Lines(), time.Since(w.Trace.begun)
	return o
}

func (o *Outcome) play(w *World, refs map[uint64]*Reference) {
	p := o.Plan
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	faults := &player{w: w, plan: p, refs: refs, begun: time.Now(), ctx: ctx, calls: newCaller(w)}
	defer faults.calls.close()
	eyes := &watcher{w: w, refs: refs}
	watching := make(chan struct{})
	go func() { // ends with ctx
		defer close(watching)
		eyes.watch(ctx, rand.New(rand.NewPCG(p.Seed, 3)))
	}()
	faults.start()
	var clients sync.WaitGroup
	found := make([][]*Exchange, len(p.Sessions))
	for i, s := range p.Sessions {
		clients.Go(func() { found[i] = converse(w, s) })
	}
	clients.Wait()
	cancel()
	faults.group.Wait()
	<-watching
	for _, list := range found {
		o.Exchanges = append(o.Exchanges, list...)
	}
	o.Struck = faults.struck
	o.Problems, o.Watermarks = append(o.Problems, eyes.problems...), eyes.compared
	if err := w.Heal(); err != nil {
		o.problem("heal: %v", err)
		return
	}
	if err := w.Rest(rest); err != nil {
		o.problem("%v", err)
	}
	o.journals(w)
	o.last(w)
	all, busy := w.Probes()
	if o.Probes = all; busy > 0 {
		o.problem("%d of %d probes came to engines that had something to do", busy, all)
	}
}

// last demands that a healed world serves a protected session.
func (o *Outcome) last(w *World) {
	r := Request{Label: (o.Plan.Seed&(1<<38-1))<<8 | 0xff, Stream: true, Chat: true, PromptWords: 5, MaxTokens: 5, IgnoreEOS: true, Protection: "sync"}
	ref, err := Refer(o.Plan.Engine(), r)
	if err != nil {
		o.problem("last reference: %v", err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := w.NewClient("last")
	defer c.Close()
	a := c.Ask(ctx, r, Manner{RequestID: requestID(r.Label)})
	if why := Judge(a, ref, r); len(why) > 0 || !a.Whole() {
		o.problem("the healed world doesn't serve: %+v, error %+v: %v", a, a.Err, why)
	}
	if s := w.Router.Session(a.Session); s == nil || len(s.ProtectionLog) == 0 || !s.ProtectionLog[0].Protected {
		o.problem("the healed world doesn't protect: %+v", s)
	}
	if err := w.Rest(rest); err != nil {
		o.problem("after the last session: %v", err)
	}
}

// converse is a client's whole dealing: its request, the repeats, and the tool calls of its answers.
func converse(w *World, s SessionPlan) []*Exchange {
	time.Sleep(s.Start) // virtual
	c := w.NewClient(clientHost(s.Request.Label))
	defer c.Close()
	var runners sync.WaitGroup
	defer runners.Wait()
	var out []*Exchange
	for try := 0; ; try++ {
		x := ask(w, c, s, try, &runners)
		out = append(out, x)
		a := x.Answer
		// As client libraries do: when nothing came, or the server says so.
		again := a.Status == 0 || a.Status == 429 || a.Status >= 500
		if s.Key {
			again = again || a.Status == 409 || !a.Whole() || s.Again
		}
		if !again || a.Left || try >= s.Retries {
			return out
		}
		time.Sleep(500 * time.Millisecond << try) // virtual
	}
}

// manner is how a session's client asks for the answer of a try.
func manner(ctx context.Context, c *Client, s SessionPlan, try int, runners *sync.WaitGroup) Manner {
	m := Manner{Pace: s.Pace, LeaveAfter: s.LeaveAfter, RequestID: requestID(s.Request.Label)}
	if s.Key {
		m.Key, m.Repeat = "key-"+formatLabel(s.Request.Label), try > 0
	}
	if s.SDK {
		m.SDKRetry = try
	}
	if s.Tools > 0 {
		var once sync.Once
		m.Seen = func(ids int) {
			if ids < s.ToolAt {
				return
			}
			once.Do(func() {
				for range s.Tools {
					runners.Go(func() { c.Act(context.WithoutCancel(ctx), m.RequestID+":call-1") })
				}
			})
		}
	}
	return m
}

func ask(w *World, c *Client, s SessionPlan, try int, runners *sync.WaitGroup) *Exchange {
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errStuck)
	defer cancel()
	if s.LeaveAt > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, s.LeaveAt)
		defer stop()
	}
	if s.LeaveOnRaise {
		var leave context.CancelFunc
		ctx, leave = context.WithCancel(ctx)
		defer leave()
		w.Watch(func(m Moment) bool {
			if m.Point == PointRaise {
				leave()
			}
			return m.Point == PointRaise || ctx.Err() != nil
		})
	}
	x := &Exchange{Plan: s, Try: try, Boots: [2]int{w.Router.Boots()}}
	x.Answer = c.Ask(ctx, s.Request, manner(ctx, c, s, try, runners))
	x.Stuck = errors.Is(context.Cause(ctx), errStuck)
	x.Boots[1] = w.Router.Boots()
	if x.Answer.Session != "" {
		x.Info = w.Router.Session(x.Answer.Session)
	}
	a := x.Answer
	w.Trace.Addf("client  %d try %d: status %d, %d ids, whole %v, error %+v, broken %v, left %v", s.Number, try, a.Status, len(a.IDs), a.Whole(), a.Err, a.Broken, a.Left)
	return x
}
