// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seguekv/segue/agent"
	"github.com/seguekv/segue/engines"
	enginesim "github.com/seguekv/segue/engines/sim"
)

// Engine is a node's engine process: it can crash, be restarted and be paused. It is the agent's Host.
type Engine struct {
	node  *Node
	shape enginesim.Config

	mu      sync.Mutex
	life    *life
	changed chan struct{}
	pid     int
}

// life is one process life of an engine.
type life struct {
	engines.Engine
	owner *Engine
	dead  context.Context
	kill  context.CancelCauseFunc

	mu sync.Mutex
	// resumed is closed when a paused life goes on; nil while it runs. pausedAt is zero of one whose heartbeat goes on
	// meanwhile.
	resumed  chan struct{}
	pausedAt time.Time
	// stutter is a pause before everything that is put out.
	stutter time.Duration
	// spoilt is the request whose tokens come out wrong; 0 for none.
	spoilt uint64
}

func newEngine(n *Node, shape enginesim.Config) *Engine {
	return &Engine{node: n, shape: shape, changed: make(chan struct{})}
}

// Start begins a new process life, under a new boot id.
func (e *Engine) Start() error {
	inner, err := enginesim.New(e.shape)
	if err != nil {
		return fmt.Errorf("start engine of %s: %w", e.node.ID, err)
	}
	l := &life{Engine: inner, owner: e}
	if wrap := e.node.world.cfg.Wrap; wrap != nil {
		l.Engine = wrap(e.node.ID, inner)
	}
	l.dead, l.kill = context.WithCancelCause(context.Background())
	e.set(l)
	return nil
}

// Crash ends the process life; runs end with engines.ErrLost. It reports whether there was one.
func (e *Engine) Crash() bool {
	old := e.set(nil)
	if old == nil {
		return false
	}
	old.kill(engines.ErrLost)
	return true
}

func (e *Engine) set(l *life) (old *life) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old, e.life = e.life, l
	e.pid++
	close(e.changed)
	e.changed = make(chan struct{})
	return old
}

// Pause stops the process in the middle of whatever it does until Resume. Its runs don't even notice that they are
// cancelled.
func (e *Engine) Pause() bool { return e.stop(time.Now()) }

// Freeze stops its step loop until Resume, while the process goes on speaking.
func (e *Engine) Freeze() bool { return e.stop(time.Time{}) }

func (e *Engine) stop(heard time.Time) bool {
	return e.change(func(l *life) {
		if l.resumed == nil {
			l.resumed, l.pausedAt = make(chan struct{}), heard
		}
	})
}

// Resume ends a Pause or a Freeze.
func (e *Engine) Resume() {
	e.change(func(l *life) {
		if l.resumed != nil {
			close(l.resumed)
			l.resumed = nil
		}
	})
}

// Stutter makes every step take so much longer.
func (e *Engine) Stutter(by time.Duration) bool {
	return e.change(func(l *life) { l.stutter = by })
}

// Spoil makes the tokens of a request come out wrong from now on, for this process life.
func (e *Engine) Spoil(label uint64) bool {
	return e.change(func(l *life) { l.spoilt = label })
}

// change reports whether there is a process.
func (e *Engine) change(how func(*life)) bool {
	l := e.present()
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	how(l)
	return true
}

// Running is the number of active runs of the present life.
func (e *Engine) Running() int {
	l := e.present()
	if l == nil {
		return 0
	}
	f, err := l.Engine.Observe(context.Background())
	if err != nil {
		return 0
	}
	return f.Running
}

func (e *Engine) present() *life {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.life
}

// Current implements agent.Host.
func (e *Engine) Current() (agent.LiveEngine, error) {
	if l := e.present(); l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("%w: the engine has crashed", engines.ErrNotReady)
}

// Changed implements agent.Host.
func (e *Engine) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

// PID implements agent.Host.
func (e *Engine) PID() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.life == nil {
		return 0
	}
	return e.pid
}

// LastHeard implements agent.LiveEngine.
func (l *life) LastHeard() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.resumed != nil && !l.pausedAt.IsZero() {
		return l.pausedAt
	}
	return time.Now()
}

// Observe implements engines.Engine. Who looks after an engine gives it a time to answer in, others don't.
func (l *life) Observe(ctx context.Context) (engines.Facts, error) {
	if _, watched := ctx.Deadline(); watched && l.owner.node.world.cfg.Deaf {
		<-ctx.Done()
		return engines.Facts{}, ctx.Err()
	}
	return l.Engine.Observe(ctx)
}

// breathe returns when the process isn't paused, with an error when it is dead.
func (l *life) breathe() error {
	l.mu.Lock()
	resumed, stutter := l.resumed, l.stutter
	l.mu.Unlock()
	if stutter > 0 {
		select {
		case <-time.After(stutter): // virtual
		case <-l.dead.Done():
		}
	}
	if resumed != nil {
		select {
		case <-resumed:
		case <-l.dead.Done():
		}
	}
	if l.dead.Err() != nil {
		return engines.ErrLost
	}
	return nil
}

// Run implements engines.Engine.
func (l *life) Run(ctx context.Context, j engines.Job, s engines.Sink) error {
	if err := l.breathe(); err != nil {
		return err
	}
	l.owner.node.world.probes.run(l, j.Request.Sampling.Seed)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(l.dead, cancel)
	defer stop()
	m := Moment{Point: PointRun, Node: l.owner.node.ID, Label: j.Request.Sampling.Seed}
	if j.From != nil {
		m.Point, m.Index = PointResume, len(j.From.Output)
	}
	l.at(m)
	err := l.Engine.Run(ctx, j, &tap{life: l, to: s, label: j.Request.Sampling.Seed})
	if l.dead.Err() != nil {
		return engines.ErrLost
	}
	return err
}

func (l *life) spoils(label uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spoilt == label
}

func (l *life) at(m Moment) { l.owner.node.world.at(m) }

// tap is the way of what an engine yields to the agent: it names the moments and stops when the process does.
type tap struct {
	life  *life
	to    engines.Sink
	label uint64
}

func (t *tap) pass(p Point, index int) error {
	t.life.at(Moment{Point: p, Node: t.life.owner.node.ID, Label: t.label, Index: index})
	return t.life.breathe()
}

func (t *tap) Prompt(ids []int32) error {
	if err := t.pass(PointPrompt, 0); err != nil {
		return err
	}
	return t.to.Prompt(ids)
}

func (t *tap) Prefilled(first, count int, rows []byte) error {
	if err := t.pass(PointChunk, first); err != nil {
		return err
	}
	return t.to.Prefilled(first, count, rows)
}

func (t *tap) Token(k engines.Token) error {
	p := PointComputed
	switch {
	case k.Restored:
		p = PointReplayed
	case k.Finish != engines.FinishNone:
		p = PointLast
	}
	if err := t.pass(p, k.Index); err != nil {
		return err
	}
	if t.life.spoils(t.label) && !k.Restored {
		k.ID ^= 1
	}
	if err := t.to.Token(k); err != nil || k.Restored {
		return err
	}
	return t.pass(PointCaptured, k.Index)
}
