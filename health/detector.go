// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health

import "time"

// Detector turns the readings of one engine into verdicts. It belongs to one goroutine at a time.
type Detector struct {
	cfg   Config
	last  Reading
	seen  bool
	life  life
	work  work
	mute  mute
	probe probes
	// demand is when a sign came that the process may have lost its device; zero without one.
	demand time.Time
}

// mute counts reads in a row without a usable answer, the first of which began at since.
type mute struct {
	reads int
	since time.Time
}

// signs are what one Reading shows next to those before it.
type signs struct {
	// void: the reader itself stood still. What didn't move then says nothing.
	void bool
	// compared: there were counters to compare. moved: one of them moved; tokens: tokens were put out.
	compared, moved, tokens bool
	// delivered: tokens of ours arrived.
	delivered bool
	// passed: a probe of this process got its token.
	passed bool
}

// New checks the configuration.
func New(cfg Config) (*Detector, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Detector{cfg: cfg}, nil
}

// Demand says that at that time there was a sign that the engine's process has lost its device: until it is seen to move
// after it, Config.Demand is the limit of silence.
func (d *Detector) Demand(at time.Time) { d.demand = at }

// Observe takes in the next Reading; they come in the order of time. One that doesn't is void.
func (d *Detector) Observe(r Reading) Assessment {
	if r.Proxy {
		r = r.outside()
	}
	a := Assessment{At: r.Until, Detail: r.Detail}
	s := signs{void: d.void(r)}
	a.NewEngine = d.identify(r)
	s.passed = d.settle(r, s.void)
	if s.void || !d.seen || a.NewEngine {
		d.restart(r.Until)
	}
	d.compare(r, &s)
	s.delivered = d.seen && !a.NewEngine && r.Ours.Delivered > d.last.Ours.Delivered
	d.account(r, s)
	d.judge(&a, r, s)
	if (a.Verdict == Dead || a.Verdict == CutOff) && !r.Alive && r.Outcome != Failed {
		d.life.began = r.Until
	}
	d.wantProbe(&a, r)
	a.InFlight = d.work.inFlight
	d.last, d.seen = r, true
	return a
}

// void reports whether the reader itself stood still before or in this read, or its clock went back.
func (d *Detector) void(r Reading) bool {
	if r.Until.Before(r.At) || r.Until.Sub(r.At) > d.cfg.ReadTimeout+d.cfg.Slack {
		return true
	}
	pause := r.At.Sub(d.last.Until)
	return d.seen && (pause < 0 || pause > d.cfg.Interval+d.cfg.Slack)
}

// restart begins the silence anew.
func (d *Detector) restart(now time.Time) { d.work.moved, d.work.answered, d.work.pauses = now, now, 0 }
