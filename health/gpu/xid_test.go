// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package gpu_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/gpu"
)

// classes is the classification as it was agreed, kept apart from the table under test.
var classes = map[gpu.Class][]int{
	gpu.App:        {13, 31, 32, 43, 45, 69, 94, 109, 137},
	gpu.Watched:    {38, 68, 93, 121, 122, 124, 125, 157, 160, 161},
	gpu.Leave:      {63, 80, 92, 123, 144, 145, 146, 147, 148, 149, 150, 167, 168, 169, 171, 172},
	gpu.Fatal:      {46, 48, 54, 61, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158},
	gpu.ReadAction: {154},
}

func TestTable_Builtin(t *testing.T) {
	want := make(map[int]gpu.Class)
	for class, codes := range classes {
		for _, c := range codes {
			want[c] = class
		}
	}
	table := gpu.DefaultTable()
	for code := 1; code < 1000; code++ {
		class := want[code]
		if class == "" {
			class = gpu.Leave // not listed
		}
		if got := table.Rule(code); got.Class != class || code < got.First || code > got.Last {
			t.Errorf("xid %d: got %+v, want class %s", code, got, class)
		}
	}
}

func TestXID_AppDemandsProgress(t *testing.T) {
	for _, code := range classes[gpu.App] {
		r := single(t)
		got := r.xid(code)
		r.expect(got, health.Watch, gpu.ReasonXIDApp)
		if !got.Demand.Equal(r.now) || len(got.XIDs) != 1 || got.XIDs[0].Class != gpu.App {
			t.Errorf("xid %d: got demand at %v, %v", code, got.Demand, got.XIDs)
		}
		got = r.sample(well(first))
		r.expect(got, health.Reachable, gpu.ReasonOK)
		if !got.Demand.IsZero() {
			t.Errorf("xid %d: got demand %v a second time", code, got.Demand)
		}
	}
}

func TestXID_WatchIsCounted(t *testing.T) {
	for _, code := range classes[gpu.Watched] {
		r := single(t)
		got := r.xid(code, code)
		r.expect(got, health.Watch, gpu.ReasonXIDWatch)
		if len(got.XIDs) != 2 || !got.Demand.IsZero() {
			t.Errorf("xid %d: got %v, demand %v", code, got.XIDs, got.Demand)
		}
		r.expect(r.sample(well(first)), health.Reachable, gpu.ReasonOK)
	}
}

func TestXID_EvacuateLasts(t *testing.T) {
	for _, code := range append(classes[gpu.Leave], 7, 200, 65535) { // and such as aren't listed
		r := single(t)
		r.expect(r.xid(code), health.Evacuate, gpu.ReasonXIDEvacuate)
		r.expect(r.sample(well(first)), health.Evacuate, gpu.ReasonXIDEvacuate)
		r.expect(r.silence(), health.Evacuate, gpu.ReasonXIDEvacuate, gpu.ReasonUnavailable)
	}
}

func TestXID_DeadLasts(t *testing.T) {
	for _, code := range classes[gpu.Fatal] {
		r := double(t)
		got := r.xid(code)
		r.expect(got, health.Dead, gpu.ReasonXIDDead)
		if want := fmt.Sprintf("%s: XID %d", first, code); got.Detail != want {
			t.Errorf("got %q, want %q", got.Detail, want)
		}
		r.expect(r.sample(well(first), well(second)), health.Dead, gpu.ReasonXIDDead)
	}
}

func TestXID_MemoryErrorTaints(t *testing.T) {
	for _, code := range []int{48, 95} {
		r := single(t)
		clean := r.now
		got := r.xid(code)
		if len(got.Taints) != 1 || !got.Taints[0].Clean.Equal(clean) || !got.Taints[0].Seen.Equal(r.now) {
			t.Errorf("xid %d: got %+v, want a taint since %v", code, got.Taints, clean)
		}
		if got := r.sample(uncorrected(4)); len(got.Taints) != 0 {
			t.Errorf("xid %d: got %+v for the same damage", code, got.Taints)
		}
	}
}

func TestXID_74IsDeadForSeveralDevicesOnly(t *testing.T) {
	one := single(t)
	one.expect(one.xid(74), health.Watch, gpu.ReasonXIDWatch)
	two := double(t)
	two.expect(two.xid(74), health.Dead, gpu.ReasonXIDDead)
}

func TestXID_109AgainWithinTheHourIsDead(t *testing.T) {
	r := single(t)
	r.expect(r.xid(109), health.Watch, gpu.ReasonXIDApp)
	r.expect(r.xid(109, 109), health.Watch, gpu.ReasonXIDApp) // one incident, several channels
	r.now = r.now.Add(59 * time.Minute)
	got := r.xid(109)
	r.expect(got, health.Dead, gpu.ReasonXIDAgain)
	if got.Demand.IsZero() {
		t.Error("no demand for progress")
	}

	late := single(t)
	late.xid(109)
	late.now = late.now.Add(time.Hour)
	late.expect(late.xid(109), health.Watch, gpu.ReasonXIDApp)

	twice := single(t)
	twice.xid(31)
	twice.now = twice.now.Add(time.Minute)
	twice.expect(twice.xid(31), health.Watch, gpu.ReasonXIDApp) // any other may come again
}

func TestXID_154ReadsTheAction(t *testing.T) {
	for action, want := range map[gpu.Recovery]health.Verdict{
		gpu.RecoveryNone: health.Reachable, gpu.RecoveryDrain: health.Evacuate, gpu.RecoveryReset: health.Dead,
	} {
		r := single(t)
		r.expect(r.xid(154), health.Reachable, gpu.ReasonOK)
		if got := r.sample(recovery(action)); got.Verdict != want {
			t.Errorf("%s: got %v %v, want %v", action, got.Verdict, got.Reasons, want)
		}
	}
	unread := single(t)
	unread.xid(154)
	unread.expect(unread.sample(with(first, func(d *gpu.Device) { d.Recovery = nil })), health.Evacuate, gpu.ReasonXIDEvacuate)
}

func TestXID_OfOurOwnRestartIsNoEvidence(t *testing.T) {
	r := single(t)
	r.j.Ours(r.now, r.now.Add(10*time.Second))
	for _, code := range []int{43, 45, 109} {
		got := r.xid(code)
		r.expect(got, health.Reachable, gpu.ReasonOK)
		if !got.Demand.IsZero() || len(got.XIDs) != 1 || !got.XIDs[0].Excused {
			t.Errorf("xid %d: got demand %v, %+v", code, got.Demand, got.XIDs)
		}
	}
	r.now = r.now.Add(time.Minute)
	r.expect(r.xid(109), health.Watch, gpu.ReasonXIDApp) // the excused one doesn't make it the second
	// The device isn't excused.
	r.j.Ours(r.now, r.now.Add(10*time.Second))
	r.expect(r.xid(79), health.Dead, gpu.ReasonXIDDead)
}

func TestXID_OfAnotherPartOfTheDevice(t *testing.T) {
	parts := []gpu.Instance{{UUID: part, GPU: 1}, {UUID: other, GPU: 2, Compute: 1}}
	divided := gpu.Device{UUID: first, MIG: parts, RemapFailed: new(false)}
	of := func(g uint32, xid int) gpu.Sample {
		return gpu.Sample{Events: []gpu.Event{{At: time.Unix(1, 0), MonotonicNS: 1, UUID: first, XID: xid, GPU: &g}}}
	}
	r := newRig(t, gpu.Config{Devices: []string{part}})
	r.sample(divided)
	r.expect(r.take(of(2, 31)), health.Reachable, gpu.ReasonOK)
	r.expect(r.take(of(1, 31)), health.Watch, gpu.ReasonXIDApp)
	r.expect(r.take(of(2, 95)), health.Dead, gpu.ReasonXIDDead) // uncontained
}

func TestTable_Override(t *testing.T) {
	table, err := gpu.DefaultTable().Override([]byte(`
xids:
  - {xid: 63, class: watch}
  - {xid: "145-146", class: dead, single_gpu: app}
  - {xid: 31, class: app, dead_within: 10m}
  - {xid: 500, class: dead, taints: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	for code, want := range map[int]gpu.Class{
		62: gpu.Fatal, 63: gpu.Watched, 64: gpu.Fatal, 144: gpu.Leave, 145: gpu.Fatal, 146: gpu.Fatal, 147: gpu.Leave, 150: gpu.Leave, 500: gpu.Fatal, 501: gpu.Leave,
	} {
		if got := table.Rule(code); got.Class != want {
			t.Errorf("xid %d: got %s, want %s", code, got.Class, want)
		}
	}
	r := newRig(t, gpu.Config{Devices: []string{first}, Table: table})
	r.sample(well(first))
	r.expect(r.xid(145), health.Watch, gpu.ReasonXIDApp)
	r.xid(31)
	r.now = r.now.Add(9 * time.Minute)
	r.expect(r.xid(31), health.Dead, gpu.ReasonXIDAgain)
	if got := gpu.DefaultTable().Rule(63); got.Class != gpu.Leave {
		t.Errorf("the built-in table has changed: %+v", got)
	}
	if same, err := table.Override(nil); err != nil || same.Rule(63).Class != gpu.Watched {
		t.Errorf("an empty file: %v, %v", same.Rule(63), err)
	}
}

func TestTable_OverrideRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"xids: [{xid: 0, class: dead}]":                         "want a number",
		"xids: [{xid: 9-3, class: dead}]":                       "want a number",
		"xids: [{xid: 70000, class: dead}]":                     "want a number",
		"xids: [{xid: x, class: dead}]":                         "want a number",
		"xids: [{xid: 9}]":                                      "no class",
		"xids: [{xid: 9, class: fine}]":                         "want app, watch",
		"xids: [{xid: 9, class: dead, single_gpu: fine}]":       "want app, watch",
		"xids: [{xid: 9, class: dead, dead_within: -1s}]":       "dead_within",
		"xids: [{xid: 9, class: app, taints: true}]":            "class dead only",
		"xids: [{xid: 5-9, class: dead}, {xid: 9, class: app}]": "two rules",
		"codes: []":               "not found",
		"xids: []\n---\nxids: []": "more than one document",
		"xids: 5":                 "cannot unmarshal",
		"xids: [" + strings.Repeat("{xid: 9, class: dead},", 600) + "]": "at most 512",
		"# " + strings.Repeat("x", gpu.MaxTable):                        "at most 65536",
		"xids: [{xid: 9, class: dead}":                                  "xid table",
	} {
		if _, err := gpu.DefaultTable().Override([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: got %v, want %q", text, err, want)
		}
	}
}
