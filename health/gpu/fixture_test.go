// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package gpu_test

import (
	"slices"
	"testing"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/gpu"
)

// The devices of most tests.
const (
	first  = "GPU-1111"
	second = "GPU-2222"
	part   = "MIG-aaaa"
	other  = "MIG-bbbb"
)

// rig feeds one Judge, a second per report.
type rig struct {
	t   *testing.T
	j   *gpu.Judge
	now time.Time
}

func newRig(t *testing.T, cfg gpu.Config) *rig {
	t.Helper()
	if len(cfg.Table.Rules()) == 0 {
		cfg.Table = gpu.DefaultTable()
	}
	j, err := gpu.NewJudge(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, j: j, now: time.Unix(1_800_000_000, 0)}
}

// single is a rig of an engine on one device that was seen to be well.
func single(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, gpu.Config{Devices: []string{first}})
	r.expect(r.sample(well(first)), health.Reachable, gpu.ReasonOK)
	return r
}

// double is a rig of an engine on two devices that were seen to be well.
func double(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, gpu.Config{Devices: []string{first, second}})
	r.expect(r.sample(well(first), well(second)), health.Reachable, gpu.ReasonOK)
	return r
}

func (r *rig) sample(devices ...gpu.Device) gpu.Result {
	r.t.Helper()
	return r.take(gpu.Sample{Complete: true, Devices: devices})
}

// take reports a sample a second after the last one. It goes through a line, so that what is judged can be said.
func (r *rig) take(s gpu.Sample) gpu.Result {
	r.t.Helper()
	r.now = r.now.Add(time.Second)
	s.At, s.MonotonicNS = r.now, r.now.UnixNano()
	return r.raw(s)
}

// raw reports a sample as it is.
func (r *rig) raw(s gpu.Sample) gpu.Result {
	r.t.Helper()
	b, err := gpu.Line{Sample: &s}.Append(nil)
	if err != nil {
		r.t.Fatal(err)
	}
	l, err := gpu.Parse(b)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.j.Take(gpu.Report{At: r.now, Sample: l.Sample})
}

func (r *rig) hello(boot string) gpu.Result {
	r.now = r.now.Add(time.Second)
	return r.j.Take(gpu.Report{At: r.now, Hello: &gpu.Hello{Protocol: gpu.Protocol, Boot: boot}})
}

func (r *rig) silence() gpu.Result {
	r.now = r.now.Add(time.Second)
	return r.j.Take(gpu.Report{At: r.now, Unavailable: "exit status 127"})
}

// xid reports events only.
func (r *rig) xid(codes ...int) gpu.Result {
	r.t.Helper()
	r.now = r.now.Add(time.Second)
	s := gpu.Sample{At: r.now, MonotonicNS: 1}
	for _, c := range codes {
		s.Events = append(s.Events, gpu.Event{At: r.now, MonotonicNS: 1, UUID: first, XID: c})
	}
	return r.raw(s)
}

func (r *rig) expect(got gpu.Result, verdict health.Verdict, reasons ...health.Reason) {
	r.t.Helper()
	if got.Verdict != verdict || !slices.Equal(got.Reasons, reasons) {
		r.t.Errorf("got %v %v (%s), want %v %v", got.Verdict, got.Reasons, got.Detail, verdict, reasons)
	}
}

// well is a device with every fact, all of them good.
func well(uuid string) gpu.Device {
	return gpu.Device{
		UUID: uuid, PCI: "00000000:01:00.0", Uncorrected: new(uint64(3)),
		RemapPending: new(false), RemapFailed: new(false), PagesPending: new(false),
		Recovery: new(gpu.RecoveryNone), Thermal: new(false), PowerBrake: new(false), Links: new(uint64(0xff)),
	}
}

// with changes a well device.
func with(uuid string, change func(*gpu.Device)) gpu.Device {
	d := well(uuid)
	change(&d)
	return d
}

// bare is a device of which nothing can be read.
func bare(uuid string) gpu.Device {
	return gpu.Device{UUID: uuid, Unsupported: []string{"ecc: not supported", "xid: no permission"}}
}

func recovery(a gpu.Recovery) gpu.Device {
	return with(first, func(d *gpu.Device) { d.Recovery = &a })
}

func uncorrected(n uint64) gpu.Device {
	return with(first, func(d *gpu.Device) { d.Uncorrected = &n })
}
