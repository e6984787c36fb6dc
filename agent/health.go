// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/watch"
)

const (
	// reportEvery is how often a caller of WatchHealth hears of an engine that doesn't change.
	reportEvery = time.Second
	// assessedWithin is how old an assessment may be: without a newer one nobody watches the engine.
	assessedWithin = 5 * time.Second
)

// doctor watches the engine and keeps what is held of it.
type doctor struct {
	watcher *watch.Watcher
	since   time.Time

	mu sync.Mutex
	// engine and device are the verdicts on them, verdict is both joined; boot is the engine's process life.
	engine, device, verdict health.Assessment
	boot                    []byte
	gpu                     string
	// tainted: the engine's device has lost data since its process began.
	tainted bool
	// report is replaced, never changed; nil before the first assessment. changed is closed when its verdict
	// or engine changes.
	report  *seguev1.WatchHealthResponse
	changed chan struct{}
}

func newDoctor(a *Agent) (*doctor, error) {
	d := &doctor{since: time.Now(), changed: make(chan struct{}), gpu: gpuOff}
	if a.devices != nil {
		d.gpu = gpuUnavailable
	}
	source := &engineSource{host: a.host}
	var err error
	d.watcher, err = watch.New(watch.Config{
		Health: a.cfg.Health, Source: source, Ours: a.ours,
		Assessed: func(v health.Assessment) { a.assessed(v, source.last.boot) },
	})
	if err != nil {
		return nil, fmt.Errorf("agent.%w", err)
	}
	return d, nil
}

// assessed takes in what the detector says of the engine process boot. It is called by the watcher's goroutine.
func (a *Agent) assessed(v health.Assessment, boot []byte) {
	d := a.doctor
	d.mu.Lock()
	other := len(boot) > 0 && !bytes.Equal(boot, d.boot)
	d.engine, d.boot = v, boot
	d.tainted = d.tainted && !other
	d.mu.Unlock()
	if other {
		a.devices.began(v.At)
	}
	a.publish()
}

// publish joins the verdicts and tells everybody who listens of a change.
func (a *Agent) publish() {
	given := a.ours().InFlight > 0
	d := a.doctor
	d.mu.Lock()
	v := health.Combine(d.engine, d.device)
	if d.device.Verdict > health.Watch && d.engine.Verdict == health.Idle && given {
		v.Working = true // it got work since it was looked at
	}
	r := &seguev1.WatchHealthResponse{
		Verdict: seguev1.Verdict(v.Verdict), Detail: v.Detail, BootId: a.self.Boot[:], EngineBootId: d.boot, Working: v.Working,
		InFlight: uint32(v.InFlight), SilenceMs: milliseconds(v.Silence), SilenceLimitMs: milliseconds(v.Limit), Gpu: d.gpu, Tainted: d.tainted,
	}
	for _, why := range v.Reasons {
		r.Reasons = append(r.Reasons, string(why))
	}
	old, was := d.report, d.verdict.Verdict
	d.report, d.verdict = r, v
	fresh := old == nil || old.GetVerdict() != r.GetVerdict() || !bytes.Equal(old.GetEngineBootId(), r.GetEngineBootId()) || old.GetWorking() != r.GetWorking() || old.GetTainted() != r.GetTainted()
	if fresh {
		close(d.changed)
		d.changed = make(chan struct{})
	}
	d.mu.Unlock()
	if fresh {
		a.metrics.verdicts.WithLabelValues(v.Verdict.String()).Inc()
		level := slog.LevelInfo
		if was.Healthy() && v.Verdict.Healthy() {
			level = slog.LevelDebug // work comes and goes
		}
		a.log.Log(context.Background(), level, "engine health changed", "verdict", v.Verdict, "reasons", v.Reasons, "detail", v.Detail, "in_flight", v.InFlight, "silence", v.Silence)
	}
}

// view is the verdict for people.
func (d *doctor) view() (v health.Verdict, reasons []string, gpu string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return health.Verdict(d.report.GetVerdict()), d.report.GetReasons(), d.gpu
}

// unwell is why nothing new should run on the engine described by e; nil if nothing is known against it. A verdict on
// another process than e's, or on one that is gone, is about one that has ended.
func (a *Agent) unwell(e *engines.Description) error {
	a.doctor.mu.Lock()
	v, at := a.doctor.verdict, a.doctor.engine.At
	if known := a.doctor.boot != nil; !bytes.Equal(a.doctor.boot, e.Boot[:]) && (known || a.doctor.engine.Verdict == health.Dead) {
		v = a.doctor.device
	}
	a.doctor.mu.Unlock()
	if at.IsZero() {
		at = a.doctor.since
	}
	switch {
	case time.Since(at) > assessedWithin:
		return fmt.Errorf("%w: nobody has looked at the engine for %v", engines.ErrNotReady, time.Since(at).Round(time.Second))
	case v.Verdict.Lost() || v.Verdict == health.Evacuate:
		return fmt.Errorf("%w: the engine is %s: %v", engines.ErrNotReady, v.Verdict, v.Reasons)
	}
	return nil
}

// WatchHealth reports at once, with every change, and now and then; nothing while nobody looks at the engine.
func (n *node) WatchHealth(_ *seguev1.WatchHealthRequest, st grpc.ServerStreamingServer[seguev1.WatchHealthResponse]) error {
	d := n.a.doctor
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		d.mu.Lock()
		r, changed, stale := d.report, d.changed, time.Since(d.engine.At) > assessedWithin
		d.mu.Unlock()
		if r != nil && !stale {
			if err := st.Send(r); err != nil {
				return err
			}
		}
		select {
		case <-st.Context().Done():
			return context.Cause(st.Context())
		case <-n.a.stop:
			return statusError(errStopping)
		case <-changed:
		case <-tick.C:
		}
	}
}

// ours is what runs here, for the detector: what every sink has taken counts as delivered.
func (a *Agent) ours() health.Ours {
	o := health.Ours{Delivered: a.taken.Load()}
	for _, s := range a.all() {
		s.mu.Lock()
		if s.err == nil && s.finish == nil {
			o.InFlight++
			switch {
			case s.atWindow:
				o.Waiting++
			case len(s.tokens) == 0:
				o.Prefilling++
			}
		}
		s.mu.Unlock()
	}
	return o
}

// engineSource reads the engine of a node through its host's heartbeat. It belongs to the watcher's goroutine.
type engineSource struct {
	host Host
	last look
	// looking yields what the look under way finds; nil when none is.
	looking chan look
}

// look is what one look at the engine has found.
type look struct {
	reading health.Reading
	// boot is the engine's process life; nil if there was none. ran: one has run before.
	boot []byte
	ran  bool
}

// Read implements watch.Source. A look takes no time, since the heartbeat is what the host sent last. One that does is
// waited for until ctx ends, and no other begins before it is over: what hangs delays neither the next verdict nor the
// agent's end, and there is one of it.
func (s *engineSource) Read(ctx context.Context) health.Reading {
	if s.looking == nil {
		found := make(chan look, 1)
		host, last := s.host, s.last
		go func() { found <- lookAt(ctx, host, last) }()
		s.looking = found
	}
	select {
	case l := <-s.looking:
		l.ran = l.ran || s.last.ran
		s.looking, s.last = nil, l
		return l.reading
	case <-ctx.Done():
		return health.Reading{Outcome: health.TimedOut, Steps: true, Incarnation: hex.EncodeToString(s.last.boot), Detail: "a look at the engine doesn't end"}
	}
}

// lookAt looks once.
func lookAt(ctx context.Context, host Host, last look) look {
	e, err := host.Current()
	if err != nil {
		// The process that was there has ended, also if its successor loads by now.
		if last.boot != nil || last.ran && host.PID() == 0 {
			return look{reading: health.Reading{Outcome: health.Gone, Detail: err.Error()}}
		}
		return look{reading: health.Reading{Outcome: health.Refused, Alive: true, Detail: err.Error()}}
	}
	d, err := e.Describe(ctx)
	if err != nil {
		return look{reading: failed(ctx, err)}
	}
	l := look{boot: d.Boot[:], ran: true, reading: health.Reading{Alive: true, Steps: true, Incarnation: hex.EncodeToString(d.Boot[:])}}
	r := &l.reading
	f, err := e.Observe(ctx)
	if err != nil {
		l.reading = failed(ctx, err)
		l.reading.Incarnation = hex.EncodeToString(l.boot)
		return l
	}
	if age := time.Since(e.LastHeard()); age > heardFresh {
		r.Outcome, r.Detail = health.TimedOut, fmt.Sprintf("no heartbeat from the engine's process for %v", age.Round(10*time.Millisecond))
		return l
	}
	r.InFlight = int(f.Running)
	r.Counters = []health.Counter{
		{Name: "prefill_tokens", Value: float64(f.PrefillTokens)},
		{Name: "decode_steps", Value: float64(f.DecodeSteps), Tokens: true},
		{Name: "restored_rows", Value: float64(f.RestoredRows)},
		{Name: "captured_rows", Value: float64(f.CapturedRows)},
	}
	return l
}

// failed is the reading of an engine whose call ended with err. It refuses none: its process is gone, unless the call was
// given up.
func failed(ctx context.Context, err error) health.Reading {
	r := health.Reading{Outcome: health.Gone, Steps: true, Detail: err.Error()}
	if ctx.Err() != nil {
		r.Outcome = health.TimedOut
	}
	return r
}

// heed has the engine read at once when its process changes, until ctx ends.
func (a *Agent) heed(ctx context.Context) error {
	for {
		changed := a.host.Changed()
		a.doctor.watcher.Soon()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}
