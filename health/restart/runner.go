// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package restart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/seguekv/segue/health"
)

// lockEvery is how often a watchdog without the lock tries to get it.
const lockEvery = time.Second

// Config is what a Runner needs.
type Config struct {
	// Target is the server's URL: Key of it names the files.
	Target string
	// Dir holds the lock and the state, and is made if need be. All watchdogs of a server have to use the same.
	Dir    string
	Policy Policy
	// Exec runs the command, and returns soon after ctx has ended.
	Exec func(ctx context.Context, call Call) Result
	// Event is called by Run's goroutine; nil for nobody.
	Event func(Event)
}

// What happened.
const (
	EventOwner   = "owner"   // this process restarts the target from now on
	EventOther   = "other"   // another one does
	EventWait    = "wait"    // a restart is due, and it is too early
	EventRun     = "run"     // the command begins
	EventEnded   = "ended"   // the command is over
	EventStopped = "stopped" // too many restarts: none any more
	EventLifted  = "lifted"  // the end of that
)

// Event is something worth a line in a log.
type Event struct {
	At   time.Time
	Kind string
	// Text says it in full.
	Text string
	// Result is that of EventEnded.
	Result Result
}

// Status is where a Runner stands.
type Status struct {
	// Owner: this process holds the lock; Other says who does if not.
	Owner bool
	Other Owner
	// Restarts counts those of this process, Stopped says that there are none any more.
	Restarts int
	Stopped  bool
	// Last is the last decision; its At is zero before the first one.
	Last Decision
}

// Runner restarts one server. Observe and Status may be called by any goroutine.
type Runner struct {
	cfg   Config
	store store
	lock  *lock
	state State
	told  bool          // that another owns it
	wake  chan struct{} // capacity 1

	mu     sync.Mutex
	latest *health.Assessment // not yet decided upon
	status Status
}

// New checks the configuration. It makes the folder, and neither locks nor starts anything.
func New(cfg Config) (*Runner, error) {
	if err := cfg.Policy.Validate(); err != nil {
		return nil, err
	}
	key, err := Key(cfg.Target)
	switch {
	case err != nil:
		return nil, err
	case cfg.Exec == nil:
		return nil, errors.New("restart: nothing to run")
	case cfg.Dir == "":
		return nil, errors.New("restart: no folder for the lock and the state")
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("restart: %w", err)
	}
	if cfg.Event == nil {
		cfg.Event = func(Event) {}
	}
	return &Runner{cfg: cfg, store: store{path: filepath.Join(cfg.Dir, key+".json"), key: key}, wake: make(chan struct{}, 1)}, nil
}

// LockPath is the file whose lock makes the owner.
func (r *Runner) LockPath() string {
	return strings.TrimSuffix(r.store.path, ".json") + ".lock"
}

// StatePath is what an operator removes to have the counting begin anew.
func (r *Runner) StatePath() string { return r.store.path }

// Observe hands the newest assessment over and returns at once. One that comes before the last was looked at takes its place.
func (r *Runner) Observe(a health.Assessment) {
	r.mu.Lock()
	r.latest = &a
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Status is a copy.
func (r *Runner) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

func (r *Runner) take() *health.Assessment {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.latest
	r.latest = nil
	return a
}

func (r *Runner) set(f func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.status)
}

func (r *Runner) event(kind string, res Result, format string, args ...any) {
	r.cfg.Event(Event{At: time.Now(), Kind: kind, Text: fmt.Sprintf(format, args...), Result: res})
}

// Run decides until ctx ends. A command that runs then is waited for, at most Policy.Timeout and some seconds: half a restart is worse
// than none. It returns an error when lock or state can't be used.
func (r *Runner) Run(ctx context.Context) error {
	defer func() {
		if r.lock != nil {
			r.lock.release()
		}
	}()
	tick := time.NewTicker(lockEvery)
	defer tick.Stop()
	if err := r.own(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if r.lock == nil {
				if err := r.own(); err != nil {
					return err
				}
			}
		case <-r.wake:
			if a := r.take(); a != nil {
				if err := r.decide(ctx, *a); err != nil {
					return err
				}
			}
		}
	}
}

// own tries to get the lock, and reads what was done before.
func (r *Runner) own() error {
	now := time.Now()
	l, other, err := acquire(r.LockPath(), now)
	if err != nil {
		return err
	}
	if l == nil {
		if !r.told || !other.same(r.Status().Other) {
			r.told = true
			r.set(func(s *Status) { s.Other = other })
			r.event(EventOther, Result{}, "%v restarts this server; this watchdog only watches it (lock %s)", other, r.LockPath())
		}
		return nil
	}
	state, err := r.store.load()
	if err != nil {
		l.release()
		return err
	}
	state.Since, state.Bad = now, now
	r.lock, r.state, r.told = l, state, false
	r.set(func(s *Status) { s.Owner, s.Other, s.Stopped = true, Owner{}, !state.Stopped.IsZero() })
	r.event(EventOwner, Result{}, "this watchdog restarts this server: %d restarts are on record (%s)", len(state.Restarts), r.store.path)
	return nil
}

// decide acts on one assessment.
func (r *Runner) decide(ctx context.Context, a health.Assessment) error {
	if r.lock == nil {
		r.set(func(s *Status) { s.Last = Decision{At: time.Now(), Why: WhyOther} })
		return nil
	}
	before := r.Status().Last
	d, next := r.cfg.Policy.Decide(r.state, time.Now(), a.Verdict)
	if d.Action == Stop && !r.state.Stopped.IsZero() && r.store.missing() {
		fresh := State{Since: d.At, Bad: d.At}
		r.lifted("its record was removed")
		d, next = r.cfg.Policy.Decide(fresh, d.At, a.Verdict)
	}
	r.state = next
	if d.Save {
		if err := r.store.save(next); err != nil {
			return err
		}
	}
	if d.Lifted {
		r.lifted("it was well for long enough")
	}
	r.set(func(s *Status) { s.Last, s.Stopped = d, !next.Stopped.IsZero() })
	changed := d.Action != before.Action || d.Why != before.Why
	switch {
	case d.Action == Run:
		return r.run(ctx, d, a)
	case d.Action == Wait && changed:
		r.event(EventWait, Result{}, "%v, and not restarted before %s (%s; %d restarts in the last %v)", a.Verdict, d.Until.Format(time.RFC3339), d.Why, d.Recent, r.cfg.Policy.Window)
	case d.Action == Stop && changed:
		r.event(EventStopped, Result{}, "%v, and not restarted any more: %d restarts within %v didn't help. Look at the server; then remove %s to have it restarted again",
			a.Verdict, r.cfg.Policy.Max, r.cfg.Policy.Window, r.store.path)
	}
	return nil
}

func (r *Runner) lifted(why string) {
	r.event(EventLifted, Result{}, "restarts are possible again: %s", why)
}

// run has the command run, with its beginning on record before.
func (r *Runner) run(ctx context.Context, d Decision, a health.Assessment) error {
	if !r.lock.held() {
		r.lock.release()
		r.lock = nil
		r.set(func(s *Status) { s.Owner = false })
		return r.own()
	}
	p := r.cfg.Policy
	r.state = p.Begin(r.state, time.Now())
	if err := r.store.save(r.state); err != nil {
		return err
	}
	reasons := make([]string, len(a.Reasons))
	for i, w := range a.Reasons {
		reasons[i] = string(w)
	}
	r.set(func(s *Status) { s.Restarts++ })
	r.event(EventRun, Result{}, "%v (%s): the command runs, restart %d of at most %d within %v", a.Verdict, strings.Join(reasons, ", "), d.Recent+1, p.Max, p.Window)
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.Timeout)
	defer cancel()
	res := r.cfg.Exec(call, Call{Target: r.cfg.Target, Verdict: a.Verdict.String(), Reasons: strings.Join(reasons, ",")})
	r.state = r.state.End(time.Now())
	r.take() // what was seen meanwhile is the restart's doing
	text := "the command ended with success"
	if res.Err != nil {
		text = "the command failed: " + res.Err.Error()
	}
	r.event(EventEnded, res, "%s after %v; nothing is judged for %v. It wrote: %q", text, res.Took.Round(time.Millisecond), p.Grace, res.Output)
	return r.store.save(r.state)
}
