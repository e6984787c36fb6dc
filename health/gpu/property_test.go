// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package gpu_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/gpu"
)

func maybe[T any](t *rapid.T, g *rapid.Generator[T], name string) *T {
	if rapid.Bool().Draw(t, "has "+name) {
		return new(g.Draw(t, name))
	}
	return nil
}

var actions = []gpu.Recovery{
	gpu.RecoveryNone, gpu.RecoveryNone, gpu.RecoveryReset, gpu.RecoveryReboot, gpu.RecoveryDrain, gpu.RecoveryDrainAndReset, gpu.RecoveryIMEX, gpu.RecoveryOther,
}

func drawDevice(t *rapid.T, uuid string) gpu.Device {
	rare := rapid.Custom(func(t *rapid.T) bool { return rapid.IntRange(0, 9).Draw(t, "one in ten") == 0 })
	return gpu.Device{
		UUID: uuid, Lost: rare.Draw(t, "lost"), ResetRequired: rare.Draw(t, "reset"),
		Uncorrected:  maybe(t, rapid.Uint64Range(0, 3), "uncorrected"),
		RemapPending: maybe(t, rare, "remap pending"), RemapFailed: maybe(t, rare, "remap failed"), PagesPending: maybe(t, rare, "pages"),
		Recovery: maybe(t, rapid.SampledFrom(actions), "recovery"),
		Thermal:  maybe(t, rapid.Bool(), "thermal"), PowerBrake: maybe(t, rapid.Bool(), "brake"),
		Links: maybe(t, rapid.Uint64Range(0, 3), "links"),
	}
}

func drawSample(t *rapid.T, at time.Time) gpu.Sample {
	s := gpu.Sample{At: at, MonotonicNS: at.UnixNano()}
	for range rapid.IntRange(0, 2).Draw(t, "events") {
		uuid := rapid.SampledFrom([]string{first, second, ""}).Draw(t, "of")
		code := rapid.SampledFrom([]int{31, 45, 63, 68, 74, 79, 95, 109, 154, 999}).Draw(t, "xid")
		s.Events = append(s.Events, gpu.Event{At: at, MonotonicNS: 1, UUID: uuid, XID: code})
	}
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0:
		s.InitFailed = "no"
	case 1:
		s.StalledMS = 5
	default:
		s.Complete = rapid.Bool().Draw(t, "complete")
		for _, uuid := range []string{first, second} {
			if rapid.IntRange(0, 4).Draw(t, "present") > 0 {
				s.Devices = append(s.Devices, drawDevice(t, uuid))
			}
		}
	}
	return s
}

func drawJudge(t *rapid.T) *gpu.Judge {
	cfg := gpu.Config{Table: gpu.DefaultTable(), MultiGPU: rapid.Bool().Draw(t, "multi")}
	cfg.Devices = rapid.SampledFrom([][]string{nil, {first}, {first, second}}).Draw(t, "devices")
	j, err := gpu.NewJudge(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// dead lists the devices with a fatal finding.
func dead(j *gpu.Judge) []string {
	var out []string
	for _, m := range j.Memory().Lasting {
		if m.Verdict == health.Dead && !slices.Contains(out, m.UUID) {
			out = append(out, m.UUID)
		}
	}
	return out
}

// Whatever comes: Dead ends only with what the result names as cleared, and silence changes nothing that lasts.
func TestJudge_DeadEndsOnlyWhereItSaysSo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJudge(t)
		now, boot := time.Unix(1_800_000_000, 0), "boot-0"
		j.Take(gpu.Report{At: now, Hello: &gpu.Hello{Protocol: gpu.Protocol, Boot: boot}})
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			now = now.Add(time.Second)
			before := dead(j)
			r := gpu.Report{At: now}
			silent := false
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				r.Unavailable, silent = "exit status 127", true
			case 1:
				r.Hello, silent = &gpu.Hello{Protocol: gpu.Protocol, Boot: boot}, true
			case 2:
				r.Hello, silent = &gpu.Hello{Protocol: gpu.Protocol, Unavailable: "gone"}, true
			case 3:
				j.Started(now)
				j.Ours(now, now.Add(3*time.Second))
				fallthrough
			default:
				r.Sample = new(drawSample(t, now))
			}
			got := j.Take(r)
			after := dead(j)
			for _, uuid := range before {
				switch {
				case silent && !slices.Contains(after, uuid):
					t.Fatalf("%s lives after silence", uuid)
				case !slices.Contains(after, uuid) && !cleared(r, uuid):
					t.Fatalf("%s lives though the driver doesn't say that nothing is needed: %+v", uuid, r.Sample)
				}
			}
			if len(after) > 0 && got.Verdict != health.Dead {
				t.Fatalf("%v are dead, and the verdict is %v", after, got.Verdict)
			}
			if len(after) == 0 && got.Verdict == health.Dead {
				t.Fatalf("dead without a finding that lasts: %v", got.Reasons)
			}
			if got.Verdict == health.Unknown && health.Combine(health.Assessment{Verdict: health.Busy}, got.Assessment).Verdict != health.Busy {
				t.Fatal("unknown changes something")
			}
		}
	})
}

// cleared reports whether a report may clear a device: the driver needs nothing.
func cleared(r gpu.Report, uuid string) bool {
	return r.Sample != nil && slices.ContainsFunc(r.Sample.Devices, func(d gpu.Device) bool {
		return d.UUID == uuid && d.Recovery != nil && *d.Recovery == gpu.RecoveryNone && !d.Lost && !d.ResetRequired
	})
}

// A sample that comes late, after a newer one, clears nothing and brings no fact back; its events count.
func TestJudge_LateSampleHasEventsOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJudge(t)
		now := time.Unix(1_800_000_000, 0)
		for i := range rapid.IntRange(1, 12).Draw(t, "samples") {
			j.Take(gpu.Report{At: now, Sample: new(drawSample(t, now.Add(time.Duration(i)*time.Second)))})
		}
		newest := gpu.Sample{At: now.Add(time.Minute), MonotonicNS: 1, Complete: true, Devices: []gpu.Device{drawDevice(t, first), drawDevice(t, second)}}
		j.Take(gpu.Report{At: now, Sample: &newest})
		held, events := j.Memory(), gpu.Sample{}
		late := drawSample(t, now.Add(30*time.Second))
		events.Events, late.Events = late.Events, nil
		j.Take(gpu.Report{At: now, Sample: &late})
		if got := j.Memory(); !slices.Equal(got.Lasting, held.Lasting) {
			t.Fatalf("a late sample changed %v into %v", held, got)
		}
		events.At, events.MonotonicNS = late.At, 1
		j.Take(gpu.Report{At: now, Sample: &events})
		for _, e := range events.Events {
			if e.UUID == first && e.XID == 79 && !slices.Contains(dead(j), first) {
				t.Fatal("an event of a late sample didn't count")
			}
		}
	})
}

// The verdict never depends on the order in which a sample lists its devices.
func TestJudge_OrderOfDevicesSaysNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := gpu.Config{Table: gpu.DefaultTable(), MultiGPU: rapid.Bool().Draw(t, "multi"), Devices: []string{first, second}}
		a, _ := gpu.NewJudge(cfg)
		b, err := gpu.NewJudge(cfg)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Unix(1_800_000_000, 0)
		for range rapid.IntRange(1, 12).Draw(t, "samples") {
			now = now.Add(time.Second)
			s := drawSample(t, now)
			back := s
			back.Devices = slices.Clone(s.Devices)
			slices.Reverse(back.Devices)
			x, y := a.Take(gpu.Report{At: now, Sample: &s}), b.Take(gpu.Report{At: now, Sample: &back})
			if x.Verdict != y.Verdict || len(x.Taints) != len(y.Taints) || !slices.Equal(sorted(x.Reasons), sorted(y.Reasons)) {
				t.Fatalf("got %v %v and %v %v", x.Verdict, x.Reasons, y.Verdict, y.Reasons)
			}
		}
	})
}

func sorted(r []health.Reason) []health.Reason { return slices.Sorted(slices.Values(r)) }
