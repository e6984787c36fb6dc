// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
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
	mu    sync.Mutex // guards judge
	judge *gpu.Judge
	save  func(gpu.Memory)
}

// began tells the devices' judge that the engine's process has just begun.
func (d *devices) began(at time.Time) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.judge.Started(at)
}

// heedDevices takes in reports until ctx ends.
func (a *Agent) heedDevices(ctx context.Context, from Devices) error {
	return from.Run(ctx, a.deviceReport)
}

// deviceReport acts on one report. What was captured is marked first, so that the next one can say up to where it was
// sound.
func (a *Agent) deviceReport(r gpu.Report) {
	d := a.devices
	d.mu.Lock()
	result := d.judge.Take(r)
	memory := d.judge.Memory()
	d.mu.Unlock()
	for _, x := range result.XIDs {
		a.metrics.xids.WithLabelValues(string(x.Class)).Inc()
		a.log.Warn("GPU error", "xid", x.XID, "class", x.Class, "gpu", x.UUID, "excused", x.Excused)
	}
	for _, uuid := range result.Cleared {
		a.log.Info("GPU is cleared", "gpu", uuid)
	}
	if result.Remember {
		d.save(memory)
	}
	for _, t := range result.Taints {
		detail := fmt.Sprintf("memory of %s has had an uncorrectable error", t.UUID)
		for _, s := range a.all() {
			s.taint(t.Clean, detail)
		}
	}
	for _, s := range a.all() {
		s.mark(time.Now())
	}
	if !result.Demand.IsZero() {
		a.doctor.watcher.Demand(result.Demand)
	}
	state := gpuRead
	if result.Unavailable != "" {
		state = gpuUnavailable
	}
	a.doctor.deviceVerdict(a, result.Assessment, state, result.Unavailable)
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

// captured is the newest boundary. s.mu is held.
func (s *session) captured() int {
	n := len(s.tokens)
	if s.seam != nil {
		n = max(n, int(s.seam.GetBoundary()))
	}
	return n
}

// taint ends the run: nothing of it leaves any more, and only what was captured by the clean time counts.
func (s *session) taint(clean time.Time, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || s.closed {
		return
	}
	e := &TaintedError{Detail: detail}
	if s.seam != nil {
		e.Clean = int(s.seam.GetBoundary()) // came from another node
	}
	for _, m := range s.marks {
		if !m.at.After(clean) {
			e.Clean = max(e.Clean, m.boundary)
		}
	}
	s.tainted = true
	s.end(e)
}

func taintedRefusal(e *TaintedError) *seguev1.Refusal {
	r := &seguev1.Refusal{Reason: seguev1.Reason_REASON_TAINTED, Detail: e.Detail}
	if e.Clean > 0 {
		n := uint32(e.Clean)
		r.CleanBoundary = &n
	}
	return r
}
