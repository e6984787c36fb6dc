// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/gpu"
)

// What an agent says about its knowledge of devices.
const (
	gpuOff         = "off"
	gpuUnavailable = "unavailable"
	gpuRead        = "read"
)

// marksKept is how many readings of the devices a run remembers its boundary of.
const marksKept = 16

// Devices reports what is known of the machine's GPUs.
type Devices interface {
	// Run calls report, from one goroutine at a time, until ctx ends.
	Run(ctx context.Context, report func(gpu.Report)) error
}

// TaintedError ends a run whose engine computes on a device that has lost data.
type TaintedError struct {
	// Clean is the newest boundary that was surely captured before that; 0 for none.
	Clean  int
	Detail string
}

func (e *TaintedError) Error() string {
	return fmt.Sprintf("agent: what the run computed may be spoilt: %s; boundary %d is the last that is surely sound", e.Detail, e.Clean)
}

// devices is what the agent holds of its engine's devices.
type devices struct {
	save func(gpu.Memory)

	mu    sync.Mutex // guards the rest
	judge *gpu.Judge
	// engine is when the engine's process was first seen.
	engine time.Time
}

// began tells the devices' judge that the engine's process has just begun.
func (d *devices) began(at time.Time) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.judge.Started(at)
	d.engine = at
}

// heedDevices takes in reports until ctx ends. A reader that fails leaves the agent without knowledge of its devices, and
// nothing else.
func (a *Agent) heedDevices(ctx context.Context, from Devices) error {
	err := from.Run(ctx, a.deviceReport)
	if ctx.Err() == nil {
		a.log.Error("GPU reader ended", "err", err)
		a.deviceReport(gpu.Report{At: time.Now(), Unavailable: "the reader of the devices has ended"})
	}
	return nil
}

// deviceReport acts on one report. Runs that may be spoilt end before anything else is done: what leaves until then has
// been seen to be so. How far the others are is marked, so that a later report can say up to where they were sound.
func (a *Agent) deviceReport(r gpu.Report) {
	d := a.devices
	d.mu.Lock()
	result := d.judge.Take(r)
	memory, began := d.judge.Memory(), d.engine
	d.mu.Unlock()
	if len(result.Taints) > 0 {
		a.doctor.taint()
	}
	for _, t := range result.Taints {
		detail := fmt.Sprintf("memory of %s has had an uncorrectable error", t.UUID)
		for _, s := range a.all() {
			s.taint(t.Clean, detail)
		}
	}
	if r.Sample != nil && r.Sample.Reading() {
		for _, s := range a.all() {
			s.mark(time.Now())
		}
	}
	for _, x := range result.XIDs {
		a.metrics.xids.WithLabelValues(string(x.Class)).Inc()
		a.log.Warn("GPU error", "xid", x.XID, "class", x.Class, "gpu", x.UUID, "excused", x.Excused)
	}
	for _, uuid := range result.Cleared {
		a.log.Info("GPU is cleared", "gpu", uuid)
	}
	if result.Demand.After(began) { // else it was about an earlier process
		a.doctor.watcher.Demand(result.Demand)
	}
	state := gpuRead
	if result.Unavailable != "" {
		state = gpuUnavailable
	}
	a.doctor.deviceVerdict(a, result.Assessment, state, result.Unavailable)
	if result.Remember {
		d.save(memory)
	}
}

// taint notes that the engine's device has lost data: no run on this engine's process counts any more.
func (d *doctor) taint() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tainted = true
}

// isTainted reports whether it has.
func (d *doctor) isTainted() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tainted
}

// deviceVerdict joins the verdict on the devices with that on the engine.
func (d *doctor) deviceVerdict(a *Agent, v health.Assessment, state, why string) {
	d.mu.Lock()
	first := d.gpu != state
	d.device, d.gpu = v, state
	d.mu.Unlock()
	if first {
		a.log.Info("GPU facts", "gpu", state, "reason", why)
	}
	a.publish()
}

// mark is a boundary that was captured by some time.
type mark struct {
	at       time.Time
	boundary int
}

// mark remembers how far the run has come.
func (s *session) mark(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.marks) == marksKept {
		s.marks = append(s.marks[:0], s.marks[1:]...)
	}
	s.marks = append(s.marks, mark{now, s.captured()})
}

// captured is the newest boundary; 0 when none is captured. s.mu is held.
func (s *session) captured() int {
	n := 0
	if s.order.protects() {
		n = len(s.tokens)
	}
	if s.seam != nil {
		n = max(n, int(s.seam.GetBoundary()))
	}
	return n
}

// taint ends the run: nothing of it leaves any more, and only what was captured by the clean time counts. An engine that was
// lost may have been lost for that very error: then that is why the run ended, too.
func (s *session) taint(clean time.Time, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.tainted {
		return
	}
	s.tainted = true
	e := &TaintedError{Detail: detail}
	if s.seam != nil {
		e.Clean = int(s.seam.GetBoundary()) // came from another node
	}
	for _, m := range s.marks {
		if !m.at.After(clean) {
			e.Clean = max(e.Clean, m.boundary)
		}
	}
	switch {
	case s.err == nil:
		s.end(e)
	case errors.Is(s.err, engines.ErrLost): // its caller may still come back
		s.err = e
		s.broadcast()
	}
}

func taintedRefusal(e *TaintedError) *seguev1.Refusal {
	r := &seguev1.Refusal{Reason: seguev1.Reason_REASON_TAINTED, Detail: e.Detail}
	if e.Clean > 0 {
		n := uint32(e.Clean)
		r.CleanBoundary = &n
	}
	return r
}
