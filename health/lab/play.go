// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lab

import (
	"context"
	"net/http"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/scrape"
)

// Play has an engine watched in virtual time, as package watch does in real time: pages are written and parsed, and the
// detector judges them. An hour takes about a second.
type Play struct {
	Engine *Engine
	Health health.Config
	// Kind is what the target is configured as; Auto has it found out.
	Kind scrape.Kind
	// ProbeTimeout is how long a probe may take.
	ProbeTimeout time.Duration
	// Ours is what the watcher has there; nil for nothing.
	Ours func(time.Time) health.Ours
	// Seen gets each assessment, with the reading that it is of.
	Seen func(health.Reading, health.Assessment)
}

// Run plays the script from one time to another.
func (p Play) Run(ctx context.Context, from, to time.Time) error {
	d, err := health.New(p.Health)
	if err != nil {
		return err
	}
	wire := NewWire(p.Engine)
	target, err := scrape.New(scrape.Config{URL: "http://lab.invalid", Kind: p.Kind, Client: &http.Client{Transport: wire}})
	if err != nil {
		return err
	}
	probe := pending{engine: p.Engine}
	defer probe.end()
	for now := from; now.Before(to); {
		if err := ctx.Err(); err != nil {
			return err
		}
		probe.finish(now)
		wire.Begin(now, p.Health.ReadTimeout)
		r := target.Read(ctx)
		r.At, r.Until = now, now.Add(wire.Took())
		if p.Ours != nil {
			r.Ours = p.Ours(r.Until)
		}
		r.Probe = probe.result(r.Until)
		a := d.Observe(r)
		if a.DropProbe {
			probe.drop()
		}
		if a.Probe {
			wire.Begin(r.Until, p.ProbeTimeout)
			probe.start(target.Probe(ctx), r.Until.Add(wire.Took()), wire.posted)
		}
		if p.Seen != nil {
			p.Seen(r, a)
		}
		now = r.Until.Add(p.Health.Interval)
	}
	return nil
}

// pending is a probe that is under way.
type pending struct {
	engine *Engine
	open   int // requests of it on the engine
	at     time.Time
	how    health.Probe
}

func (p *pending) start(how health.Probe, at time.Time, posted int) {
	p.end()
	p.how, p.at, p.open = how, at, posted
}

// finish takes its requests off the engine if it is over.
func (p *pending) finish(now time.Time) {
	if !p.at.After(now) {
		p.end()
	}
}

// result is how it ended, if it has.
func (p *pending) result(now time.Time) health.Probe {
	if p.how == health.ProbeNone || p.at.After(now) {
		return health.ProbeNone
	}
	how := p.how
	p.how = health.ProbeNone
	p.end()
	return how
}

func (p *pending) drop() {
	if p.how != health.ProbeNone {
		p.how, p.at = health.ProbeDropped, time.Time{}
	}
	p.end()
}

func (p *pending) end() {
	for ; p.open > 0; p.open-- {
		p.engine.end()
	}
}
