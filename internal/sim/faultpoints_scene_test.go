// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/agent"
	"github.com/seguekv/segue/internal/faultnet"
	"github.com/seguekv/segue/internal/sim"
)

// How long faults last: an engine is started again by its agent, a node by its supervisor. A pause or a cut ends when it does
// most harm: just after the router has given up on whoever is behind it, and while somebody else goes on in his place. One
// that the router doesn't notice ends by itself.
const (
	engineDown = 300 * time.Millisecond
	nodeDown   = 2 * time.Second
	outage     = 8 * time.Second
	late       = 5 * time.Millisecond
)

// scene is one cell's run: a session on three nodes, and one fault at one point. For the points of a takeover the primary
// dies first, with some committed tokens undelivered, and the fault meets the node that takes over.
type scene struct {
	row
	w *sim.World

	// restored is closed at the end of the fault, which ending brings.
	restored chan struct{}
	ending   atomic.Pointer[time.Timer]

	parts atomic.Pointer[parts] // nil until they are known
	// delivered is the gate's length when the epoch of the takeover was raised; 0 before.
	delivered atomic.Int64
	struck    atomic.Bool
	// ordered: the planned takeover is ordered. moves has its result then.
	ordered atomic.Bool
	moves   chan string

	mu       sync.Mutex
	problems []error
}

// parts are who plays which.
type parts struct {
	session string
	// holder is nil without protection.
	primary, holder, third *sim.Node
}

// request is the same in every cell: seeded sampling, three prompt chunks and more.
func (s *scene) request() sim.Request {
	return sim.Request{Label: 4711, Stream: true, Chat: true, PromptWords: 40, MaxTokens: tokens, IgnoreEOS: true, Temperature: 0.8, Protection: s.protection}
}

const (
	tokens = 20
	// struckToken is the token at which faults in mid-stream strike.
	struckToken = 7
)

func (s *scene) fail(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = append(s.problems, fmt.Errorf(format, args...))
}

// run plays the scene and returns what was observed, and what is wrong with it.
func (s *scene) run(t *testing.T) (observed string, err error) {
	synctest.Test(t, func(t *testing.T) { observed, err = s.play(t) })
	return observed, err
}

func (s *scene) play(t *testing.T) (observed string, err error) {
	r := s.request()
	ref, err := sim.Refer(sim.DefaultEngine(), r)
	if err != nil {
		return "", err
	}
	w, err := sim.NewWorld(sim.Config{Seed: 1, Nodes: 3, Engine: sim.DefaultEngine(), Hook: s.at, Verbose: testing.Verbose(), Agent: func(_ string, c *agent.Config) { s.temper().Configure(c) }})
	defer func() {
		err = errors.Join(err, w.Close())
		s.trace(t, w, observed, err)
	}()
	if err != nil {
		return "", err
	}
	s.w, s.restored, s.moves = w, make(chan struct{}), make(chan string, 1)
	c := w.NewClient("client")
	defer c.Close()
	a := c.Ask(t.Context(), r, sim.Manner{})
	observed, err = s.outcome(a, sim.Judge(a, ref, r))
	if s.ordered.Load() {
		observed += "+" + <-s.moves
	}
	observed += s.causes(a)
	if s.struck.Load() {
		<-s.restored
	} else {
		err = errors.Join(err, errors.New("the point wasn't reached"))
	}
	// Whoever woke up late has had its chance to do harm.
	err = errors.Join(err, w.Heal(), w.Rest(time.Minute), sim.CheckGate(w.Gates.History(a.Session)))
	s.mu.Lock()
	defer s.mu.Unlock()
	return observed, errors.Join(append(s.problems, err)...)
}

// trace shows how something unexpected came about.
func (s *scene) trace(t *testing.T, w *sim.World, observed string, err error) {
	if testing.Verbose() && (err != nil || !slices.Contains(s.expected, observed)) {
		for _, l := range w.Trace.Lines() {
			t.Log(l)
		}
	}
}

// outcome names what the client saw and how it came about.
func (s *scene) outcome(a *sim.Answer, why []string) (string, error) {
	if len(why) > 0 || a.Broken != nil {
		return "WRONG", fmt.Errorf("wrong answer: %v, broken: %v", why, a.Broken)
	}
	info := s.w.Router.Session(a.Session)
	if info == nil {
		return "WRONG", fmt.Errorf("the router doesn't know session %q", a.Session)
	}
	retried := false
	for _, x := range info.Attempts {
		retried = retried || x.Kind == "retry"
	}
	switch {
	case a.Whole() && retried:
		return "identical-retried", nil
	case a.Whole() && len(info.Seams) > 1:
		return "identical-continued-twice", nil
	case a.Whole() && len(info.Seams) == 1:
		return "identical-continued", nil
	case a.Whole():
		return "identical-undisturbed", nil
	case a.Err != nil && a.Err.Partial:
		return "refused", nil
	}
	return "failed", nil // before any content
}

// strike brings the fault on a node, once, and sees to its end.
func (s *scene) strike(n *sim.Node) {
	if s.struck.Swap(true) {
		return
	}
	s.w.Trace.Addf("strike  %s of %s on %s", s.fault, s.target, n.ID)
	before, heard := s.w.Net.Stats(n.ID, ""), s.w.Net.Stats("", n.ID)
	var begin func() bool
	end, after := func() error { return nil }, outage
	switch s.fault + " " + s.target {
	case "crash engine":
		begin, end, after = n.Engine.Crash, n.Engine.Start, engineDown
	case "crash node":
		begin, end, after = n.Crash, n.Start, nodeDown
	case "pause engine":
		begin = n.Engine.Pause
		end = func() error { n.Engine.Resume(); return nil }
	case "pause node":
		begin = func() bool { n.Pause(); return true }
		end = func() error {
			s.happened(s.w.Net.Stats(n.ID, "").Frozen > before.Frozen)
			n.Resume()
			return nil
		}
	case "cut node":
		begin = func() bool {
			s.links(n, func(from, to string) { s.w.Shape(from, to, faultnet.Link{Cut: true}) })
			return true
		}
		end = func() error {
			out, in := s.w.Net.Stats(n.ID, ""), s.w.Net.Stats("", n.ID)
			s.happened(out.Held > before.Held || out.Hung > before.Hung || in.Held > heard.Held || in.Hung > heard.Hung)
			s.links(n, s.w.Restore)
			return nil
		}
	}
	if s.ofVerdict() {
		begin, end = s.sicken(n)
		if after = sickFor; s.fault == "hang" {
			after = outage
		}
	}
	// Before the fault: the client may see its consequences at once.
	s.ending.Store(time.AfterFunc(after, func() {
		defer close(s.restored)
		s.w.Trace.Addf("strike  ends")
		if err := end(); err != nil {
			s.fail("end of the fault: %v", err)
		}
	}))
	s.happened(begin())
}

// fenced ends a pause or a cut soon: the router has raised the epoch.
func (s *scene) fenced() {
	if t := s.ending.Load(); (!s.ofVerdict() && s.fault != "crash" || s.fault == "hang") && t != nil && t.Stop() {
		t.Reset(late)
	}
}

func (s *scene) happened(it bool) {
	if !it {
		s.fail("the %s of the %s met nothing", s.fault, s.target)
	}
}

// links calls f for each direction between a node and everyone it speaks to.
func (s *scene) links(n *sim.Node, f func(from, to string)) {
	others := []string{sim.RouterHost}
	for _, o := range s.w.Nodes {
		if o != n {
			others = append(others, o.ID)
		}
	}
	for _, o := range others {
		f(n.ID, o)
		f(o, n.ID)
	}
}

// lists finds the session in a node's listing.
func (s *scene) lists(n *sim.Node, role string) (v sim.AgentView) {
	list, err := n.Sessions()
	if err != nil {
		s.fail("list: %v", err)
	}
	for _, v := range list {
		if v.Role == role {
			return v
		}
	}
	return v
}

// await waits, at most a second, until a condition holds.
func (s *scene) await(what string, ok func() bool) {
	for range 10_000 {
		if ok() {
			return
		}
		time.Sleep(100 * time.Microsecond) // virtual
	}
	s.fail("in vain: %s", what)
}
