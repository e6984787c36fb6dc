// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package watch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seguekv/segue/health"
)

// Source reads one engine.
type Source interface {
	// Read looks once, and returns soon after ctx ends. At, Until and Probe are filled in by the caller, Ours too if
	// it has any. Calls don't overlap.
	Read(ctx context.Context) health.Reading
}

// Prober sends one request for one token to an engine that is believed to be idle.
type Prober interface {
	// Probe returns ProbeFailed when ctx is over by its deadline, ProbeDropped when it was cancelled.
	Probe(ctx context.Context) health.Probe
}

// Config is what a Watcher needs.
type Config struct {
	Health health.Config
	Source Source
	// Prober may be nil: then no probe is ever sent, and an engine that hung and then lost its work counts as idle again
	// after the idle limit.
	Prober Prober
	// ProbeTimeout is how long a probe may take.
	ProbeTimeout time.Duration
	// Ours says what the caller itself has on the engine; nil for nothing.
	Ours func() health.Ours
	// Assessed is called by Run's goroutine after each reading; nil for nobody.
	Assessed func(health.Assessment)
}

// Watcher watches one engine. Methods may be called concurrently.
type Watcher struct {
	cfg      Config
	detector *health.Detector
	kick     chan struct{}     // capacity 1
	done     chan health.Probe // capacity 1: there is one probe at a time

	mu     sync.Mutex
	latest health.Assessment
	demand time.Time
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Watcher, error) {
	d, err := health.New(cfg.Health)
	switch {
	case err != nil:
		return nil, err
	case cfg.Source == nil:
		return nil, errors.New("watch: no source")
	case cfg.Prober != nil && cfg.ProbeTimeout <= 0:
		return nil, errors.New("watch: the probe timeout must be positive")
	}
	return &Watcher{cfg: cfg, detector: d, kick: make(chan struct{}, 1), done: make(chan health.Probe, 1)}, nil
}

// Latest is the newest assessment; its At is zero before the first one.
func (w *Watcher) Latest() health.Assessment {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.latest
}

// soonest is the part of the interval that lies between two reads at least, however often Soon is called.
const soonest = 5

// Soon has the engine read at once, or a fifth of the interval after the last read: something happened to it.
func (w *Watcher) Soon() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// Demand is health.Detector's, for any goroutine.
func (w *Watcher) Demand(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.demand = at
}

// Stale reports whether the newest assessment is older than it gets while Run runs: nobody reads any more, or a reader is
// stuck.
func (w *Watcher) Stale() bool {
	h := w.cfg.Health
	return time.Since(w.Latest().At) > h.Interval+h.ReadTimeout+2*h.Slack
}

// Run reads until ctx ends, and then returns nil as soon as Source and Prober have returned. Only one Run at a time.
func (w *Watcher) Run(ctx context.Context) error {
	var probing sync.WaitGroup
	defer probing.Wait()
	drop := context.CancelFunc(func() {})
	defer func() { drop() }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	least := w.cfg.Health.Interval / soonest
	ended := time.Now().Add(-least)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-w.kick:
			if wait := least - time.Since(ended); wait > 0 {
				timer.Reset(wait)
				continue
			}
		}
		a, ok := w.read(ctx)
		if !ok {
			return nil
		}
		ended = a.At
		if a.DropProbe {
			drop()
		}
		switch {
		case a.Probe && w.cfg.Prober == nil:
			w.done <- health.ProbeDropped
		case a.Probe:
			drop()
			pctx, cancel := context.WithTimeout(ctx, w.cfg.ProbeTimeout)
			drop = cancel
			probing.Go(func() { w.done <- w.cfg.Prober.Probe(pctx) })
		}
		if w.cfg.Assessed != nil {
			w.cfg.Assessed(a)
		}
		timer.Reset(w.cfg.Health.Interval)
	}
}

// read makes one reading and judges it. It reports false when ctx has ended: what was read then says nothing.
func (w *Watcher) read(ctx context.Context) (health.Assessment, bool) {
	call, cancel := context.WithTimeout(ctx, w.cfg.Health.ReadTimeout)
	defer cancel()
	at := time.Now()
	r := w.cfg.Source.Read(call)
	r.At, r.Until = at, time.Now()
	if ctx.Err() != nil {
		return health.Assessment{}, false
	}
	if w.cfg.Ours != nil {
		r.Ours = w.cfg.Ours()
	}
	select {
	case r.Probe = <-w.done:
	default:
		r.Probe = health.ProbeNone
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.demand.IsZero() {
		w.detector.Demand(w.demand)
		w.demand = time.Time{}
	}
	w.latest = w.detector.Observe(r)
	return w.latest, true
}
