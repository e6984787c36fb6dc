// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package gpu_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/gpu"
)

// How a lasting verdict ends, and how it doesn't.

func TestLasting_SilenceAndGoodSamplesClearNothing(t *testing.T) {
	r := single(t)
	r.xid(79)
	for range 20 {
		r.expect(r.silence(), health.Dead, gpu.ReasonXIDDead, gpu.ReasonUnavailable)
		r.expect(r.hello(""), health.Dead, gpu.ReasonXIDDead, gpu.ReasonUnavailable)
		r.expect(r.sample(well(first)), health.Dead, gpu.ReasonXIDDead)
		r.j.Started(r.now)
	}
	r.now = r.now.Add(1000 * time.Hour)
	r.expect(r.sample(well(first)), health.Dead, gpu.ReasonXIDDead)
}

func TestLasting_NewBootClears(t *testing.T) {
	r := newRig(t, gpu.Config{Devices: []string{first}})
	if got := r.hello("boot-1"); !got.Remember {
		t.Error("the boot id isn't to be remembered")
	}
	r.sample(well(first))
	r.xid(79)
	r.expect(r.hello("boot-1"), health.Dead, gpu.ReasonXIDDead, gpu.ReasonUnavailable)
	got := r.hello("boot-2")
	r.expect(got, health.Unknown, gpu.ReasonUnavailable)
	if !slices.Equal(got.Cleared, []string{first}) || !got.Remember {
		t.Errorf("got cleared %v, remember %v", got.Cleared, got.Remember)
	}
	r.expect(r.sample(well(first)), health.Reachable, gpu.ReasonOK)
}

func TestLasting_NoneAfterResetClears(t *testing.T) {
	for name, hurt := range map[string]func(*rig) gpu.Result{
		"lost":           func(r *rig) gpu.Result { return r.sample(gpu.Device{UUID: first, Lost: true}) },
		"reset required": func(r *rig) gpu.Result { return r.sample(gpu.Device{UUID: first, ResetRequired: true}) },
		"gone":           func(r *rig) gpu.Result { return r.sample() },
		"action":         func(r *rig) gpu.Result { return r.sample(recovery(gpu.RecoveryReset)) },
		"xid and action": func(r *rig) gpu.Result { r.xid(95); return r.sample(recovery(gpu.RecoveryReset)) },
		"ecc":            func(r *rig) gpu.Result { return r.sample(uncorrected(4)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := single(t)
			if got := hurt(r); got.Verdict != health.Dead {
				t.Fatalf("got %v, the fault didn't happen", got.Verdict)
			}
			r.silence() // the program has to let go of the device for a reset
			unread := with(first, func(d *gpu.Device) { d.Recovery, d.Uncorrected = nil, new(uint64(0)) })
			if got := r.sample(unread); got.Verdict != health.Dead {
				t.Errorf("got %v without the driver's word", got.Verdict)
			}
			got := r.sample(uncorrected(0))
			r.expect(got, health.Reachable, gpu.ReasonOK)
			if !slices.Equal(got.Cleared, []string{first}) || !got.Remember {
				t.Errorf("got cleared %v, remember %v", got.Cleared, got.Remember)
			}
			// The counter of the new life is the base of what comes.
			r.expect(r.sample(uncorrected(1)), health.Dead, gpu.ReasonECC)
		})
	}
}

func TestLasting_NoneWithoutResetClearsNothing(t *testing.T) {
	r := single(t)
	r.xid(46)
	for range 5 {
		r.expect(r.sample(recovery(gpu.RecoveryNone)), health.Dead, gpu.ReasonXIDDead)
	}
	r = single(t)
	r.sample(uncorrected(4))
	for range 5 {
		r.expect(r.sample(uncorrected(4)), health.Dead, gpu.ReasonECC)
	}
}

// What came after the device was back isn't of the life before the reset.
func TestLasting_ResetClearsOnlyWhatWasBefore(t *testing.T) {
	r := single(t)
	r.sample(gpu.Device{UUID: first, Lost: true})
	r.xid(48)
	r.expect(r.sample(well(first)), health.Dead, gpu.ReasonXIDDead)
}

func TestLasting_OperatorClears(t *testing.T) {
	r := double(t)
	r.xid(79, 63)
	r.sample(well(first), gpu.Device{UUID: second, Lost: true})
	if got := r.j.Clear("GPU-none"); len(got) != 0 {
		t.Errorf("cleared %v", got)
	}
	if got := r.j.Clear(first); !slices.Equal(got, []string{first}) {
		t.Errorf("cleared %v, want %s", got, first)
	}
	r.expect(r.sample(well(first), gpu.Device{UUID: second, Lost: true}), health.Dead, gpu.ReasonLost)
	if got := r.j.Clear(""); !slices.Equal(got, []string{second}) {
		t.Errorf("cleared %v, want %s", got, second)
	}
	got := r.sample(well(first), well(second))
	r.expect(got, health.Reachable, gpu.ReasonOK)
	if !got.Remember {
		t.Error("what was cleared isn't to be remembered")
	}
	// What is still so is found again.
	r.sample(with(first, func(d *gpu.Device) { d.RemapFailed = new(true) }), well(second))
	r.j.Clear("")
	r.expect(r.sample(with(first, func(d *gpu.Device) { d.RemapFailed = new(true) }), well(second)), health.Dead, gpu.ReasonRemapFailed)
}

func TestLasting_OutlivesTheProcess(t *testing.T) {
	r := newRig(t, gpu.Config{Devices: []string{first}})
	r.hello("boot-1")
	r.sample(well(first))
	r.xid(79)
	r.sample(gpu.Device{UUID: first, Lost: true})
	text, err := json.Marshal(r.j.Memory())
	if err != nil {
		t.Fatal(err)
	}
	recall := func(boot string) *rig {
		var m gpu.Memory
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		n := newRig(t, gpu.Config{Devices: []string{first}, Memory: m})
		n.now = r.now
		n.hello(boot)
		return n
	}
	n := recall("boot-1")
	n.expect(n.silence(), health.Dead, gpu.ReasonXIDDead, gpu.ReasonLost, gpu.ReasonUnavailable)
	n.expect(n.sample(well(first)), health.Reachable, gpu.ReasonOK) // it was lost, and is back: a reset
	n = recall("boot-2")
	n.expect(n.sample(well(first)), health.Reachable, gpu.ReasonOK)

	r = single(t)
	r.xid(46)
	m := r.j.Memory()
	n = newRig(t, gpu.Config{Devices: []string{first}, Memory: m})
	n.now = r.now
	n.expect(n.sample(well(first)), health.Dead, gpu.ReasonXIDDead)
	n = newRig(t, gpu.Config{Devices: []string{second}, Memory: m})
	n.expect(n.sample(well(second)), health.Reachable, gpu.ReasonOK) // of a device that was the engine's once
}

func TestNewJudge_Refuses(t *testing.T) {
	table := gpu.DefaultTable()
	mark := func(m gpu.Mark) gpu.Config {
		return gpu.Config{Table: table, Memory: gpu.Memory{Lasting: []gpu.Mark{m}}}
	}
	many := gpu.Config{Table: table, Devices: slices.Repeat([]string{first}, 5000)}
	for want, cfg := range map[string]gpu.Config{
		"nvidia-smi -L":    {Table: table, Devices: []string{"0"}},
		"named twice":      {Table: table, Devices: []string{first, first}},
		"is no UUID":       {Table: table, Devices: []string{"GPU-1 1"}},
		"at most":          many,
		"DefaultTable":     {},
		"boot id":          {Table: table, Memory: gpu.Memory{Boot: "a b"}},
		`device ""`:        mark(gpu.Mark{Verdict: health.Dead}),
		"mark of device":   mark(gpu.Mark{UUID: first, Verdict: health.Busy}),
		`device "GPU-1111`: mark(gpu.Mark{UUID: first, Verdict: health.Dead, Detail: strings.Repeat("x", 9999)}),
	} {
		if _, err := gpu.NewJudge(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// However much is found, what is kept stays bounded, and the worst of it stays.
func TestLasting_IsBounded(t *testing.T) {
	r := single(t)
	r.xid(79)
	for code := 200; code < 600; code++ {
		r.xid(code)
	}
	if n := len(r.j.Memory().Lasting); n > 16 {
		t.Errorf("%d findings are kept", n)
	}
	r.expect(r.sample(well(first)), health.Dead, gpu.ReasonXIDDead)
	all := newRig(t, gpu.Config{})
	for i := range 100 {
		s := gpu.Sample{At: all.now, MonotonicNS: 1}
		s.Events = []gpu.Event{{At: all.now, MonotonicNS: 1, UUID: "GPU-" + strings.Repeat("x", i%90+1), XID: 79}}
		all.raw(s)
	}
	if n := len(all.j.Memory().Lasting); n > gpu.MaxDevices {
		t.Errorf("%d devices are kept", n)
	}
}
