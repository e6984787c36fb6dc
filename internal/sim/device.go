// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seguekv/segue/health/gpu"
)

// deviceEvery is the pause between two readings of a device.
const deviceEvery = 250 * time.Millisecond

// Device is a node's GPU as its driver tells of it: the agent's Devices. It outlives the node's processes.
type Device struct {
	uuid string
	// looks asks for a reading out of turn, and is answered when the agent has taken it.
	looks chan chan struct{}

	mu          sync.Mutex
	memory      gpu.Memory
	boots       int
	last        time.Time
	errors      uint64
	pending     bool
	hot         bool
	action      gpu.Recovery
	unavailable bool
	resetting   bool
}

func newDevice(node string) *Device {
	return &Device{uuid: "GPU-" + node, looks: make(chan chan struct{}), action: gpu.RecoveryNone}
}

// Run implements agent.Devices.
func (d *Device) Run(ctx context.Context, report func(gpu.Report)) error {
	said := -1
	tell := func() {
		if h, boots := d.hello(); boots != said {
			said = boots
			report(h)
		}
		report(d.read())
	}
	tick := time.NewTicker(deviceEvery)
	defer tick.Stop()
	for {
		tell()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case taken := <-d.looks:
			tell()
			close(taken)
		}
	}
}

func (d *Device) hello() (gpu.Report, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return gpu.Report{At: time.Now(), Hello: &gpu.Hello{Protocol: gpu.Protocol, Boot: fmt.Sprintf("boot-%d", d.boots), IntervalMS: deviceEvery.Milliseconds()}}, d.boots
}

func (d *Device) read() gpu.Report {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if !now.After(d.last) {
		now = d.last.Add(time.Nanosecond) // a reading that isn't newer than the last says nothing
	}
	d.last = now
	if d.unavailable {
		return gpu.Report{At: now, Unavailable: "the driver doesn't answer"}
	}
	if d.resetting {
		return gpu.Report{At: now, Sample: &gpu.Sample{At: now, Complete: true, Devices: []gpu.Device{{UUID: d.uuid, ResetRequired: true}}}}
	}
	errors, pending, hot, action := d.errors, d.pending, d.hot, d.action
	return gpu.Report{At: now, Sample: &gpu.Sample{At: now, Complete: true, Devices: []gpu.Device{{
		UUID: d.uuid, Uncorrected: &errors, RemapPending: &pending, Thermal: &hot, Recovery: &action,
	}}}}
}

// Look has the agent take a reading now, and returns when it has acted on it. It reports whether anybody did.
func (d *Device) Look() bool {
	taken := make(chan struct{})
	timer := time.NewTimer(50 * time.Millisecond)
	defer timer.Stop()
	select {
	case d.looks <- taken:
	case <-timer.C:
		return false // the agent is down
	}
	select {
	case <-taken:
		return true
	case <-timer.C:
		return false
	}
}

func (d *Device) set(change func()) bool {
	d.mu.Lock()
	change()
	d.mu.Unlock()
	return d.Look()
}

// Pend says whether a row of memory waits for being remapped: then the device should be left.
func (d *Device) Pend(it bool) bool { return d.set(func() { d.pending = it }) }

// Heat says whether the device is slowed down for heat.
func (d *Device) Heat(it bool) { d.set(func() { d.hot = it }) }

// Condemn makes the driver ask for a reset, while the device goes on working.
func (d *Device) Condemn() bool { return d.set(func() { d.action = gpu.RecoveryReset }) }

// Silence says whether nothing can be read of the device.
func (d *Device) Silence(it bool) { d.set(func() { d.unavailable = it }) }

// Lose counts an error of memory that couldn't be corrected. It reports whether the agent was told.
func (d *Device) Lose() bool {
	told := true
	return d.set(func() {
		d.errors++
		told = !d.unavailable
	}) && told
}

// Mend resets the device: the driver wants nothing more of it, and its counters begin anew. Where nobody could see the
// reset, the machine is started anew.
func (d *Device) Mend() {
	d.mu.Lock()
	ill := d.errors > 0 || d.action != gpu.RecoveryNone
	d.mu.Unlock()
	seen := !ill || d.set(func() { d.resetting, d.unavailable = true, false })
	seen = d.set(func() {
		d.errors, d.pending, d.hot, d.unavailable, d.resetting, d.action = 0, false, false, false, false, gpu.RecoveryNone
	}) && seen
	if !seen {
		d.set(func() { d.boots++ })
	}
}

func (d *Device) remember(m gpu.Memory) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.memory = m
}

func (d *Device) config() gpu.Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	return gpu.Config{Table: gpu.DefaultTable(), Memory: d.memory}
}
