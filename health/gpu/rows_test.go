// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package gpu_test

import (
	"testing"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/gpu"
)

// One test for each row of the table of what a driver's words mean.

func TestRow_LibraryAbsentIsUnknown(t *testing.T) {
	r := newRig(t, gpu.Config{Devices: []string{first}})
	got := r.j.Take(gpu.Report{At: r.now, Hello: &gpu.Hello{Protocol: gpu.Protocol, Unavailable: "built without cgo"}})
	r.expect(got, health.Unknown, gpu.ReasonUnavailable)
	if got.Unavailable != "built without cgo" || got.Detail != "built without cgo" {
		t.Errorf("got %q, %q, want the program's reason", got.Unavailable, got.Detail)
	}
	busy := health.Assessment{Verdict: health.Busy, Reasons: []health.Reason{health.ReasonProgress}}
	if joined := health.Combine(busy, got.Assessment); joined.Verdict != health.Busy || len(joined.Reasons) != 1 {
		t.Errorf("got %v %v, want the engine's own verdict", joined.Verdict, joined.Reasons)
	}
}

func TestRow_InitFailureIsDegraded(t *testing.T) {
	r := single(t)
	r.expect(r.take(gpu.Sample{InitFailed: "the driver isn't loaded"}), health.Degraded, gpu.ReasonInitFailed)
	r.expect(r.silence(), health.Unknown, gpu.ReasonUnavailable)
	r.expect(r.take(gpu.Sample{InitFailed: "the driver isn't loaded"}), health.Degraded, gpu.ReasonInitFailed)
	r.expect(r.sample(well(first)), health.Reachable, gpu.ReasonOK)
}

func TestRow_LostDeviceIsDead(t *testing.T) {
	r := single(t)
	got := r.sample(gpu.Device{UUID: first, Lost: true})
	r.expect(got, health.Dead, gpu.ReasonLost)
	if !got.Remember {
		t.Error("a lasting verdict that isn't to be remembered")
	}
	if again := r.sample(gpu.Device{UUID: first, Lost: true}); again.Remember {
		t.Error("the same verdict is to be remembered once more")
	}
}

func TestRow_ResetRequiredIsDead(t *testing.T) {
	r := single(t)
	r.expect(r.sample(gpu.Device{UUID: first, ResetRequired: true}), health.Dead, gpu.ReasonResetRequired)
}

func TestRow_DeviceGoneThatWasThereIsDead(t *testing.T) {
	r := double(t)
	r.expect(r.take(gpu.Sample{Devices: []gpu.Device{well(first)}}), health.Unknown, gpu.ReasonNoFacts) // incomplete
	r.expect(r.sample(well(first)), health.Dead, gpu.ReasonGone)
}

func TestRow_DeviceThatWasNeverThereIsUnknown(t *testing.T) {
	r := newRig(t, gpu.Config{Devices: []string{first}})
	r.expect(r.sample(well(second)), health.Unknown, gpu.ReasonUnlisted)
	r.expect(newRig(t, gpu.Config{}).sample(), health.Unknown, gpu.ReasonUnlisted)
}

func TestRow_RecoveryAction(t *testing.T) {
	for action, want := range map[gpu.Recovery]health.Verdict{
		gpu.RecoveryNone:          health.Reachable,
		gpu.RecoveryDrain:         health.Evacuate,
		gpu.RecoveryDrainAndReset: health.Evacuate,
		gpu.RecoveryIMEX:          health.Evacuate,
		gpu.RecoveryOther:         health.Evacuate,
		gpu.RecoveryReset:         health.Dead,
		gpu.RecoveryReboot:        health.Dead,
		gpu.RecoveryBusReset:      health.Dead,
		gpu.RecoverySystemReboot:  health.Dead,
	} {
		t.Run(string(action), func(t *testing.T) {
			r := single(t)
			why := gpu.ReasonRecovery
			if want == health.Reachable {
				why = gpu.ReasonOK
			}
			r.expect(r.sample(recovery(action)), want, why)
			r.expect(r.sample(recovery(gpu.RecoveryNone)), health.Reachable, gpu.ReasonOK)
		})
	}
}

func TestRow_UncorrectedECCRiseIsDeadAndTaints(t *testing.T) {
	r := single(t)
	r.expect(r.sample(uncorrected(3)), health.Reachable, gpu.ReasonOK)
	clean := r.now
	got := r.sample(uncorrected(4))
	r.expect(got, health.Dead, gpu.ReasonECC)
	if len(got.Taints) != 1 || got.Taints[0].UUID != first || !got.Taints[0].Clean.Equal(clean) || !got.Taints[0].Seen.Equal(r.now) {
		t.Errorf("got taints %+v, want one from %v to %v", got.Taints, clean, r.now)
	}
	got = r.sample(uncorrected(9))
	r.expect(got, health.Dead, gpu.ReasonECC)
	if len(got.Taints) != 0 {
		t.Errorf("got taints %+v, want one per engine process", got.Taints)
	}
	r.j.Started(r.now)
	if got := r.sample(uncorrected(9)); len(got.Taints) != 0 {
		t.Errorf("got taints %+v of errors before the engine's start", got.Taints)
	}
	before := r.now
	if got := r.sample(uncorrected(10)); len(got.Taints) != 1 || !got.Taints[0].Clean.Equal(before) {
		t.Errorf("got taints %+v, want one since %v for the new process", got.Taints, before)
	}
}

// What rose before the engine started isn't its own, though the start is told a few samples late.
func TestRow_UncorrectedECCBeforeTheStartIsNoEvidence(t *testing.T) {
	r := newRig(t, gpu.Config{Devices: []string{first}})
	r.expect(r.sample(uncorrected(7)), health.Reachable, gpu.ReasonOK)
	r.expect(r.sample(uncorrected(7)), health.Reachable, gpu.ReasonOK)

	late := newRig(t, gpu.Config{Devices: []string{first}})
	late.sample(uncorrected(3))
	started := late.now.Add(time.Millisecond)
	late.sample(uncorrected(5)) // dead for the engine before
	late.j.Clear("")
	late.j.Started(started)
	got := late.sample(uncorrected(5))
	late.expect(got, health.Dead, gpu.ReasonECC)
	if len(got.Taints) != 1 || got.Taints[0].Clean.After(started) {
		t.Errorf("got taints %+v, want one since before the start", got.Taints)
	}
}

// A counter that began anew is the base of what follows, though the driver's word on the reset can't be read.
func TestRow_UncorrectedECCRisesFromWhereItBeganAnew(t *testing.T) {
	unread := func(n uint64) gpu.Device {
		return with(first, func(d *gpu.Device) { d.Uncorrected, d.Recovery = &n, nil })
	}
	r := single(t)
	r.expect(r.sample(unread(0)), health.Reachable, gpu.ReasonOK)
	r.expect(r.sample(unread(0)), health.Reachable, gpu.ReasonOK)
	r.expect(r.sample(unread(1)), health.Dead, gpu.ReasonECC)
}

func TestRow_RowRemapPendingIsEvacuate(t *testing.T) {
	r := single(t)
	pending := with(first, func(d *gpu.Device) { d.RemapPending = new(true) })
	r.expect(r.sample(pending), health.Evacuate, gpu.ReasonRemapPending)
	unread := with(first, func(d *gpu.Device) { d.RemapPending = nil })
	r.expect(r.sample(unread), health.Evacuate, gpu.ReasonRemapPending)
	r.expect(r.sample(well(first)), health.Reachable, gpu.ReasonOK)
}

func TestRow_RowRemapFailedIsDead(t *testing.T) {
	r := single(t)
	r.expect(r.sample(with(first, func(d *gpu.Device) { d.RemapFailed = new(true) })), health.Dead, gpu.ReasonRemapFailed)
	r.expect(r.sample(well(first)), health.Dead, gpu.ReasonRemapFailed)
}

func TestRow_RetiredPagesPendingIsEvacuate(t *testing.T) {
	r := single(t)
	r.expect(r.sample(with(first, func(d *gpu.Device) { d.PagesPending = new(true) })), health.Evacuate, gpu.ReasonPagesPending)
}

func TestRow_SlowdownInSixOfTenSamplesIsDegraded(t *testing.T) {
	hot := with(first, func(d *gpu.Device) { d.Thermal = new(true) })
	braked := with(first, func(d *gpu.Device) { d.PowerBrake = new(true) })
	r := single(t)
	for range 5 {
		r.expect(r.sample(hot), health.Reachable, gpu.ReasonOK)
	}
	r.expect(r.sample(hot), health.Degraded, gpu.ReasonThermal)
	for range 4 { // the well sample of the rig and these leave room for six
		r.expect(r.sample(well(first)), health.Degraded, gpu.ReasonThermal)
	}
	r.expect(r.sample(well(first)), health.Reachable, gpu.ReasonOK)

	r = single(t)
	for i := range 30 { // every second one: five of ten
		if d := [...]gpu.Device{hot, well(first)}[i%2]; true {
			r.expect(r.sample(d), health.Reachable, gpu.ReasonOK)
		}
	}
	r = single(t)
	for range 5 {
		r.expect(r.sample(braked), health.Reachable, gpu.ReasonOK)
	}
	r.expect(r.sample(braked), health.Degraded, gpu.ReasonPowerBrake)
	r = single(t)
	for range 3 {
		r.sample(hot)
	}
	for range 2 {
		r.expect(r.sample(braked), health.Reachable, gpu.ReasonOK)
	}
	r.expect(r.sample(braked), health.Degraded, gpu.ReasonThermal, gpu.ReasonPowerBrake)
	r.expect(r.silence(), health.Unknown, gpu.ReasonUnavailable)
}

func TestRow_NVLinkDown(t *testing.T) {
	down := func(uuid string) gpu.Device {
		return with(uuid, func(d *gpu.Device) { d.Links = new(uint64(0xfe)) })
	}
	one := single(t)
	one.expect(one.sample(down(first)), health.Watch, gpu.ReasonNVLink)
	one.expect(one.sample(well(first)), health.Reachable, gpu.ReasonOK)
	two := double(t)
	two.expect(two.sample(down(first), well(second)), health.Dead, gpu.ReasonNVLink)
	two.expect(two.sample(well(first), well(second)), health.Dead, gpu.ReasonNVLink)
	// A link that never was up isn't down.
	never := newRig(t, gpu.Config{Devices: []string{first}, MultiGPU: true})
	never.expect(never.sample(down(first)), health.Reachable, gpu.ReasonOK)
	never.expect(never.sample(well(first)), health.Reachable, gpu.ReasonOK)
	never.expect(never.sample(down(first)), health.Dead, gpu.ReasonNVLink)
}

func TestRow_NothingSupportedIsUnknown(t *testing.T) {
	r := newRig(t, gpu.Config{Devices: []string{first}})
	r.expect(r.sample(bare(first)), health.Unknown, gpu.ReasonNoFacts)
	r = double(t)
	r.expect(r.sample(well(first), bare(second)), health.Unknown, gpu.ReasonNoFacts)
}

func TestRow_StalledReadingIsUnknown(t *testing.T) {
	r := single(t)
	got := r.take(gpu.Sample{StalledMS: 3000})
	r.expect(got, health.Unknown, gpu.ReasonUnavailable)
	if got.Unavailable == "" {
		t.Error("no flag")
	}
	// The reading that was under way ends, and began before that was said.
	s := gpu.Sample{At: r.now.Add(-500 * time.Millisecond), MonotonicNS: 1, Complete: true, Devices: []gpu.Device{well(first)}}
	r.expect(r.raw(s), health.Reachable, gpu.ReasonOK)
}

func TestRow_MIGPartIsJudgedByItsDevice(t *testing.T) {
	divided := func(parts ...gpu.Instance) gpu.Device {
		return gpu.Device{UUID: first, MIG: parts, RemapFailed: new(false), Unsupported: []string{"ecc: not supported"}}
	}
	mine, foreign := gpu.Instance{UUID: part, GPU: 1}, gpu.Instance{UUID: other, GPU: 2}
	r := newRig(t, gpu.Config{Devices: []string{part}})
	r.expect(r.sample(divided(foreign)), health.Unknown, gpu.ReasonUnlisted)
	r.expect(r.sample(divided(mine, foreign), well(second)), health.Reachable, gpu.ReasonOK)
	failed := divided(mine, foreign)
	failed.RemapFailed = new(true)
	broken := newRig(t, gpu.Config{Devices: []string{part}})
	broken.expect(broken.sample(failed), health.Dead, gpu.ReasonRemapFailed)
	r.expect(r.sample(divided(foreign), well(second)), health.Dead, gpu.ReasonGone)
}

func TestJudge_ForeignDeviceSaysNothing(t *testing.T) {
	r := single(t)
	r.expect(r.sample(well(first), gpu.Device{UUID: second, Lost: true}), health.Reachable, gpu.ReasonOK)
	s := gpu.Sample{Events: []gpu.Event{{At: r.now, MonotonicNS: 1, UUID: second, XID: 79}}}
	got := r.take(s)
	r.expect(got, health.Reachable, gpu.ReasonOK)
	if len(got.XIDs) != 0 {
		t.Errorf("got %v of another engine's device", got.XIDs)
	}
	// An event without a device is the engine's only if it has the machine for itself.
	nameless := gpu.Sample{Events: []gpu.Event{{At: r.now, MonotonicNS: 1, XID: 79}}}
	r.expect(r.take(nameless), health.Reachable, gpu.ReasonOK)
	r.sample(well(first))
	r.expect(r.take(nameless), health.Dead, gpu.ReasonXIDDead)
	all := newRig(t, gpu.Config{})
	all.expect(all.sample(well(first), gpu.Device{UUID: second, Lost: true}), health.Dead, gpu.ReasonLost)
}
