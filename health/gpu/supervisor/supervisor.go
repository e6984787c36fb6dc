// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/seguekv/segue/health/gpu"
)

// Defaults of Config.
const (
	defaultStartTimeout = time.Minute
	defaultDeadline     = 10 * time.Second
	defaultBackoffMin   = time.Second
	defaultBackoffMax   = time.Minute
)

const (
	// endGrace is how long a killed process may take to be gone.
	endGrace = time.Second
	// drainGrace is how long after the end of a process its last lines are waited for.
	drainGrace = 200 * time.Millisecond
	// mostLines of one second: more is a flood.
	mostLines = 100
	// intervals is how many of the program's own intervals it may be silent, if that is longer than the deadline.
	intervals = 3
)

// Config says what to run. Command and Report are required.
type Config struct {
	// Command is the program and its arguments, Env is added to the environment.
	Command []string
	Env     []string
	// Report gets what is known, from Run's goroutine: it must not block for long.
	Report func(gpu.Report)
	// StartTimeout bounds the time to the first reading, default 1 min; Deadline that from one to the next, default 10 s.
	StartTimeout, Deadline time.Duration
	// BackoffMin is the pause before the first restart, default 1 s. It doubles up to BackoffMax, default 1 min, and
	// falls back once a process has lived for BackoffMax.
	BackoffMin, BackoffMax time.Duration
	// Log receives what changes, once; nil drops it.
	Log *slog.Logger
}

// Supervisor keeps the program running. Its methods may be called concurrently.
type Supervisor struct {
	cfg Config
	// Run's goroutine only.
	said   kind
	told   map[string]string // by device, what of it can't be read
	behind *process          // one that couldn't be killed

	mu     sync.Mutex
	status Status
}

// Status is what the program does now.
type Status struct {
	// PID is 0 while no process runs.
	PID int
	// Starts counts processes that were started.
	Starts int
	// Unavailable says why nothing is known of the devices; empty when something is.
	Unavailable string
	// Hello is the program's latest word on itself; nil without one.
	Hello *gpu.Hello
}

// kind is why nothing is known, without what varies: a change of it is worth a line of the log.
type kind string

const (
	kindStarting    kind = "starting"
	kindKnown       kind = "known"
	kindMissing     kind = "missing"
	kindExited      kind = "exited"
	kindSilent      kind = "silent"
	kindRubbish     kind = "rubbish"
	kindFlood       kind = "flood"
	kindUnavailable kind = "unavailable"
	kindLeftBehind  kind = "left_behind"
)

// loss is why a life of the program ended.
type loss struct {
	kind kind
	text string
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Supervisor, error) {
	switch {
	case len(cfg.Command) == 0 || cfg.Command[0] == "":
		return nil, errors.New("gpu supervisor: the command is empty, name the program that reads the driver (segue-nvml)")
	case cfg.Report == nil:
		return nil, errors.New("gpu supervisor: nobody takes the reports")
	}
	for _, d := range []struct {
		value   *time.Duration
		initial time.Duration
	}{
		{&cfg.StartTimeout, defaultStartTimeout}, {&cfg.Deadline, defaultDeadline},
		{&cfg.BackoffMin, defaultBackoffMin}, {&cfg.BackoffMax, defaultBackoffMax},
	} {
		if *d.value <= 0 {
			*d.value = d.initial
		}
	}
	cfg.BackoffMax = max(cfg.BackoffMax, cfg.BackoffMin)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Supervisor{cfg: cfg, told: make(map[string]string), status: Status{Unavailable: "not started"}}, nil
}

// Status is the newest one.
func (s *Supervisor) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *Supervisor) update(f func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.status)
}

// Run keeps the program running until ctx ends, then kills it and returns nil within two seconds. It may be called
// once.
func (s *Supervisor) Run(ctx context.Context) error {
	pause := s.cfg.BackoffMin
	s.unavailable(loss{kindStarting, "the program that reads the driver is starting"})
	for ctx.Err() == nil {
		began := time.Now()
		why := s.live(ctx)
		s.update(func(st *Status) { st.PID = 0 })
		if ctx.Err() != nil {
			break
		}
		s.unavailable(why)
		if time.Since(began) >= s.cfg.BackoffMax {
			pause = s.cfg.BackoffMin
		}
		s.rest(ctx, pause)
		pause = min(2*pause, s.cfg.BackoffMax)
	}
	s.update(func(st *Status) { st.Unavailable = "ended" })
	return nil
}

// rest waits before the next start: for the pause, and until a process that was left behind is gone.
func (s *Supervisor) rest(ctx context.Context, pause time.Duration) {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
	if s.behind == nil || ctx.Err() != nil {
		return
	}
	select {
	case <-s.behind.exited:
		s.behind = nil
		return
	default:
	}
	s.unavailable(loss{kindLeftBehind, "a call into the driver can't be ended, even by killing its process"})
	select {
	case <-ctx.Done():
	case <-s.behind.exited:
		s.behind = nil
	}
}

// unavailable reports that nothing is known, and logs a new reason.
func (s *Supervisor) unavailable(why loss) {
	s.update(func(st *Status) { st.Unavailable = why.text })
	if s.said != why.kind {
		s.said = why.kind
		if why.kind != kindStarting {
			s.cfg.Log.Warn("gpu: unavailable", "reason", why.text)
		}
	}
	s.cfg.Report(gpu.Report{At: time.Now(), Unavailable: why.text})
}

// live is one life of the program. It returns why it ended.
func (s *Supervisor) live(ctx context.Context) loss {
	p, err := start(s.cfg)
	if err != nil {
		return loss{kindMissing, err.Error()}
	}
	s.update(func(st *Status) { st.PID = p.pid; st.Starts++; st.Hello = nil })
	why := s.attend(ctx, p)
	if !p.end() {
		s.behind = p
	}
	if line := p.stderr.line(); line != "" && why.kind != kindUnavailable {
		why.text += ": " + line
	}
	return why
}

// attend reports lines until there is a reason not to wait for more.
func (s *Supervisor) attend(ctx context.Context, p *process) loss {
	timer := time.NewTimer(s.cfg.StartTimeout)
	defer timer.Stop()
	silent := loss{kindSilent, "no reading within " + s.cfg.StartTimeout.String()}
	deadline := s.cfg.Deadline
	exited := p.exited
	var hello *gpu.Hello
	second, lines := time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return loss{kindExited, "ended"}
		case <-timer.C:
			return silent
		case <-exited: // lines may be left in the pipe
			exited = nil
			silent = ended(p, hello)
			timer.Reset(drainGrace)
			continue
		case l, ok := <-p.lines:
			now := time.Now()
			if now.Sub(second) >= time.Second {
				second, lines = now, 0
			}
			lines++
			switch {
			case !ok:
				p.gone()
				return ended(p, hello)
			case l.err != nil:
				return loss{kindRubbish, l.err.Error()}
			case lines > mostLines:
				return loss{kindFlood, "too many lines in a second"}
			case l.Hello != nil && hello != nil:
				return loss{kindRubbish, "a second hello"}
			case l.Hello == nil && hello == nil:
				return loss{kindRubbish, "a sample before the hello"}
			}
			if l.Hello != nil {
				hello = l.Hello
				deadline = max(deadline, intervals*time.Duration(hello.IntervalMS)*time.Millisecond)
				s.hello(now, hello)
				continue
			}
			s.sample(now, l.Sample)
			if l.Sample.Reading() && exited != nil {
				silent = loss{kindSilent, "no reading within " + deadline.String()}
				timer.Reset(deadline)
			}
		}
	}
}

// ended says how a process did.
func ended(p *process, hello *gpu.Hello) loss {
	if hello != nil && hello.Unavailable != "" {
		return loss{kindUnavailable, hello.Unavailable}
	}
	return loss{kindExited, "the program that reads the driver ended: " + p.state()}
}

func (s *Supervisor) hello(at time.Time, h *gpu.Hello) {
	s.update(func(st *Status) {
		st.Hello = h
		if h.Unavailable != "" {
			st.Unavailable = h.Unavailable
		}
	})
	s.cfg.Report(gpu.Report{At: at, Hello: h})
}

// sample reports one, and logs that something is known and what isn't.
func (s *Supervisor) sample(at time.Time, sample *gpu.Sample) {
	switch {
	case sample.Reading():
		s.update(func(st *Status) { st.Unavailable = "" })
		if s.said != kindKnown {
			s.said = kindKnown
			s.cfg.Log.Info("gpu: available", "devices", len(sample.Devices))
		}
	case sample.StalledMS > 0:
		s.update(func(st *Status) { st.Unavailable = "a reading doesn't end" })
	}
	for _, d := range sample.Devices {
		list := strings.Join(d.Unsupported, ", ")
		if list == "" || s.told[d.UUID] == list || len(s.told) >= 2*gpu.MaxDevices && s.told[d.UUID] == "" {
			continue
		}
		s.told[d.UUID] = list
		s.cfg.Log.Info("gpu: not everything can be read", "device", d.UUID, "missing", list)
	}
	s.cfg.Report(gpu.Report{At: at, Sample: sample})
}
