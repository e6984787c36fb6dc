// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/internal/faultnet"
	"github.com/seguekv/segue/snapshot"
)

// World is one system. It is made, used and closed inside one bubble.
type World struct {
	Net    *faultnet.Net
	Nodes  []*Node
	Router *Gateway
	Trace  *Trace
	// Gates has what happened at the router's gates.
	Gates *Gates
	// Tools is the world outside, on which clients' tool calls have their effects.
	Tools *Tools

	cfg     Config
	probes  *probes
	running sync.WaitGroup

	mu      sync.Mutex
	watches []*watch
	hosts   []string
}

// NewWorld makes a world and starts all of it. It returns when the router finds every agent ready. Close it also after an
// error.
func NewWorld(c Config) (*World, error) {
	w := &World{Net: faultnet.New(c.Seed), Trace: newTrace(c.Verbose), Gates: newGates(), Tools: newTools(), probes: newProbes(), cfg: c}
	w.Router = &Gateway{Clock: newClock(), Disk: newDisk(w.at), world: w, rand: &randomBytes{from: rand.NewPCG(c.Seed, 1)}}
	w.AddHost(RouterHost)
	for i := range c.Nodes {
		n := &Node{ID: nodeName(i), Clock: newClock(), world: w}
		n.Addr = fmt.Sprintf("10.0.0.%d:7070", i+1) // a name would be looked up outside the bubble
		n.Engine, n.Device = newEngine(n, c.Engine), newDevice(n.ID)
		w.Nodes = append(w.Nodes, n)
		w.AddHost(n.ID)
	}
	for _, n := range w.Nodes {
		if err := n.Start(); err != nil {
			return w, err
		}
	}
	if err := w.Router.Start(); err != nil {
		return w, err
	}
	return w, w.Router.awaitReady(c.Nodes, 5*time.Second)
}

// AddHost gives a host its links to all others. Clients need it.
func (w *World) AddHost(name string) {
	w.mu.Lock()
	others := append([]string{}, w.hosts...)
	w.hosts = append(w.hosts, name)
	w.mu.Unlock()
	for _, o := range others {
		w.Restore(name, o)
		w.Restore(o, name)
	}
}

// Shape changes one direction of a link.
func (w *World) Shape(from, to string, l faultnet.Link) {
	l.Latency += link(from, to).Latency
	w.Net.Shape(from, to, l)
}

// Restore undoes Shape.
func (w *World) Restore(from, to string) { w.Net.Shape(from, to, link(from, to)) }

// Node finds a node by its name; nil for an unknown one.
func (w *World) Node(id string) *Node {
	for _, n := range w.Nodes {
		if n.ID == id {
			return n
		}
	}
	return nil
}

// watch is one who sees moments until it is done.
type watch struct {
	see  func(Moment) bool
	done atomic.Bool
}

// Watch makes f see every moment until it returns true, or a little longer. f is called concurrently and must not
// block.
func (w *World) Watch(f func(Moment) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watches = append(w.watches, &watch{see: f})
}

// at is where every Moment passes.
func (w *World) at(m Moment) {
	if w.cfg.Verbose {
		w.Trace.Addf("%-7s %s %d label=%d", m.Node, m.Point, m.Index, m.Label)
	}
	w.tell(m)
	if w.cfg.Hook != nil {
		w.cfg.Hook(m)
	}
}

func (w *World) tell(m Moment) {
	w.mu.Lock()
	watches := slices.Clone(w.watches)
	w.mu.Unlock()
	done := false
	for _, x := range watches {
		if !x.done.Load() && x.see(m) {
			x.done.Store(true)
			done = true
		}
	}
	if !done {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watches = slices.DeleteFunc(w.watches, func(x *watch) bool { return x.done.Load() })
}

// gateOp takes in a call of a session's gate.
func (w *World) gateOp(id snapshot.SessionID, op fence.Op) {
	w.Gates.add(id.String(), op)
	m := Moment{Session: id, Index: op.Index, Op: op}
	switch {
	case op.Err != nil:
		return
	case op.Kind == fence.OpAppend:
		m.Point = PointAppend
	case op.Kind == fence.OpRaise:
		m.Point, m.Index = PointRaise, w.Gates.len(id.String())
	case op.Kind == fence.OpRestart:
		m.Point = PointRestart
	case op.Kind == fence.OpFinish:
		m.Point = PointFinish
	}
	if m.Point != PointAppend || w.cfg.Verbose {
		w.Trace.Addf("gate    %s %.8s epoch %d, %d tokens", op.Kind, id, op.Epoch, w.Gates.len(id.String()))
	}
	w.at(m)
}

// Heal ends everything that is wrong: links, pauses, clocks, dead engines, nodes and routers. It returns when the router
// finds every agent ready.
func (w *World) Heal() error {
	w.mu.Lock()
	hosts := append([]string{}, w.hosts...)
	w.mu.Unlock()
	for _, a := range hosts {
		for _, b := range hosts {
			if a != b {
				w.Restore(a, b)
			}
		}
	}
	w.Router.Clock.SetRate(1)
	w.Router.Disk.Fail(false, false)
	w.Router.Disk.Slow(0)
	for _, h := range hosts {
		w.Net.Thaw(h)
	}
	for _, n := range w.Nodes {
		n.Clock.SetRate(1)
		n.Resume()
		n.Engine.Stutter(0)
		n.Device.Mend()
		if !n.Up() {
			if err := n.Start(); err != nil {
				return err
			}
		}
		if n.Engine.present() == nil {
			if err := n.Engine.Start(); err != nil {
				return err
			}
		}
	}
	if w.Router.present() == nil {
		if err := w.Router.Start(); err != nil {
			return err
		}
	}
	if err := w.Router.awaitReady(len(w.Nodes), 30*time.Second); err != nil {
		return err
	}
	for _, n := range w.Nodes {
		if err := w.Router.Undrain(context.Background(), n.ID); err != nil {
			return err
		}
	}
	return nil
}

// Rest waits until no node has anything in use, for at most the limit, and says what is left.
func (w *World) Rest(limit time.Duration) error {
	pause := 250 * time.Millisecond
	for deadline := time.Now().Add(limit); ; pause = min(2*pause, 4*time.Second) {
		left := w.leftovers()
		if left == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %v of rest: %w", limit, left)
		}
		time.Sleep(pause) // virtual
	}
}

func (w *World) leftovers() error {
	var errs []error
	for _, n := range w.Nodes {
		if r := n.Engine.Running(); r != 0 {
			errs = append(errs, fmt.Errorf("node %s has %d runs", n.ID, r))
			continue
		}
		list, err := n.Sessions()
		if err != nil {
			return err
		}
		for _, s := range list {
			errs = append(errs, fmt.Errorf("node %s lists session %.8s epoch %d as %s, %s", n.ID, s.Session, s.Epoch, s.Role, s.State))
		}
		if len(list) > 0 {
			continue
		}
		if contexts, bytes, err := n.Uses(); err != nil || contexts != 0 || bytes != 0 {
			errs = append(errs, errors.Join(err, fmt.Errorf("node %s has %d contexts and %d snapshot bytes in use", n.ID, contexts, bytes)))
		}
	}
	return errors.Join(errs...)
}

// Close ends everything in good order. What is wrong keeps being wrong meanwhile, so Heal first if it matters.
func (w *World) Close() error {
	errs := []error{w.Router.Stop()}
	for _, n := range w.Nodes {
		errs = append(errs, n.Stop())
	}
	w.Net.Close()
	w.running.Wait()
	return errors.Join(errs...)
}
