// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package gpu_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/health/gpu"
)

// at begins a sample's text.
const at = `{"sample":{"at":"2026-11-30T12:00:00Z","monotonic_ns":5`

func TestParse_ReadsWhatAppendWrites(t *testing.T) {
	full := with(first, func(d *gpu.Device) {
		d.Index, d.MIG, d.Unsupported = 3, []gpu.Instance{{UUID: part, GPU: 1, Compute: 2}}, []string{"xid: no permission"}
	})
	for _, l := range []gpu.Line{
		{Hello: &gpu.Hello{Protocol: gpu.Protocol, Version: "v1", Driver: "550.1", Library: "12.1", Boot: "b-1", IntervalMS: 1000, Capabilities: []string{"ecc"}}},
		{Hello: &gpu.Hello{Protocol: gpu.Protocol, Unavailable: "the library isn't there"}},
		{Sample: &gpu.Sample{At: time.Unix(5, 6).UTC(), MonotonicNS: 7, Complete: true, Devices: []gpu.Device{full}, Errors: []string{"e"}}},
		{Sample: &gpu.Sample{At: time.Unix(5, 6).UTC(), MonotonicNS: 7, Events: []gpu.Event{
			{At: time.Unix(5, 0).UTC(), MonotonicNS: 6, UUID: first, XID: 79, GPU: new(uint32(1)), Compute: new(uint32(2))},
		}}},
	} {
		b, err := l.Append([]byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		if b[0] != 'x' || b[len(b)-1] != '\n' || strings.Count(string(b), "\n") != 1 {
			t.Errorf("not one line after what was there: %q", b)
		}
		got, err := gpu.Parse(b[1:])
		if err != nil || !reflect.DeepEqual(got, l) {
			t.Errorf("%s: got %+v, %v", b, got, err)
		}
	}
}

func TestParse_Refuses(t *testing.T) {
	many := func(what string, n int, item func(int) string) string {
		list := make([]string, n)
		for i := range list {
			list[i] = item(i)
		}
		return at + `,"` + what + `":[` + strings.Join(list, ",") + `]}}`
	}
	dev := func(rest string) string { return at + `,"devices":[{"uuid":"GPU-1"` + rest + `}]}}` }
	event := func(rest string) string {
		return at + `,"events":[{"at":"2026-11-30T12:00:00Z","monotonic_ns":5` + rest + `}]}}`
	}
	for name, text := range map[string]string{
		"empty":              ``,
		"no object":          `[]`,
		"null":               `null`,
		"neither":            `{}`,
		"both":               `{"hello":{"protocol":1},` + at[1:] + `}}`,
		"cut":                at,
		"rubbish":            "Segmentation fault",
		"two values":         `{"hello":{"protocol":1}}{}`,
		"no protocol":        `{"hello":{}}`,
		"newer protocol":     `{"hello":{"protocol":2}}`,
		"boot":               `{"hello":{"protocol":1,"boot":"a\nb"}}`,
		"interval":           `{"hello":{"protocol":1,"interval_ms":-1}}`,
		"version":            `{"hello":{"protocol":1,"version":"a\u0007"}}`,
		"capabilities":       `{"hello":{"protocol":1,"capabilities":[` + strings.Repeat(`"a",`, 40) + `"a"]}}`,
		"no time":            `{"sample":{"monotonic_ns":5}}`,
		"no monotonic time":  `{"sample":{"at":"2026-11-30T12:00:00Z"}}`,
		"bad time":           `{"sample":{"at":"yesterday","monotonic_ns":5}}`,
		"stalled":            at + `,"stalled_ms":-1}}`,
		"stalled, devices":   at + `,"stalled_ms":1,"devices":[{"uuid":"GPU-1"}]}}`,
		"failed, complete":   at + `,"init_failed":"x","complete":true}}`,
		"long text":          at + `,"init_failed":"` + strings.Repeat("x", 600) + `"}}`,
		"errors":             at + `,"errors":[` + strings.Repeat(`"a",`, 40) + `"a"]}}`,
		"devices":            many("devices", 65, func(i int) string { return fmt.Sprintf(`{"uuid":"GPU-%d"}`, i) }),
		"devices, no object": at + `,"devices":[5]}}`,
		"devices, no list":   at + `,"devices":{}}}`,
		"events":             many("events", 257, func(int) string { return `{}` }),
		"no uuid":            at + `,"devices":[{}]}}`,
		"same uuid":          at + `,"devices":[{"uuid":"GPU-1"},{"uuid":"GPU-1"}]}}`,
		"uuid":               at + `,"devices":[{"uuid":"GPU 1"}]}}`,
		"long uuid":          at + `,"devices":[{"uuid":"` + strings.Repeat("x", 97) + `"}]}}`,
		"index":              dev(`,"index":-1`),
		"pci":                dev(`,"pci":"a b"`),
		"negative count":     dev(`,"uncorrected":-1`),
		"huge count":         dev(`,"uncorrected":99999999999999999999`),
		"recovery":           dev(`,"recovery":"pray"`),
		"part":               dev(`,"mig":[{"uuid":""}]`),
		"part like device":   dev(`,"mig":[{"uuid":"GPU-1"}]`),
		"parts":              dev(`,"mig":[` + strings.Repeat(`{"uuid":"m"},`, 17) + `{"uuid":"n"}]`),
		"unsupported":        dev(`,"unsupported":["a\u0000"]`),
		"xid 0":              event(`,"xid":0`),
		"xid":                event(`,"xid":65536`),
		"event uuid":         event(`,"xid":5,"uuid":"a b"`),
		"event time":         at + `,"events":[{"xid":5}]}}`,
		"too long":           at + `,"x":"` + strings.Repeat("x", gpu.MaxLine) + `"}}`,
		"deep":               strings.Repeat("[", 100_000),
	} {
		if l, err := gpu.Parse([]byte(text)); !errors.Is(err, gpu.ErrLine) {
			t.Errorf("%s: got %+v, %v", name, l, err)
		}
	}
}

func TestParse_TakesTheMost(t *testing.T) {
	s := gpu.Sample{At: time.Unix(5, 0), MonotonicNS: 1, Complete: true}
	for i := range gpu.MaxDevices {
		d := well(fmt.Sprintf("GPU-%d", i))
		for p := range gpu.MaxInstances {
			d.MIG = append(d.MIG, gpu.Instance{UUID: fmt.Sprintf("MIG-%d-%d", i, p)})
		}
		d.Unsupported = []string{"xid: no permission"}
		s.Devices = append(s.Devices, d)
	}
	b, err := gpu.Line{Sample: &s}.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := gpu.Parse(b); err != nil || len(l.Sample.Devices) != gpu.MaxDevices {
		t.Errorf("got %v of %d bytes", err, len(b))
	}
}

func TestLine_AppendRefuses(t *testing.T) {
	if b, err := (gpu.Line{}).Append([]byte("x")); !errors.Is(err, gpu.ErrLine) || string(b) != "x" {
		t.Errorf("got %q, %v", b, err)
	}
	long := gpu.Sample{At: time.Unix(5, 0), MonotonicNS: 1, Complete: true}
	for i := range gpu.MaxDevices {
		d := gpu.Device{UUID: fmt.Sprintf("GPU-%d", i)}
		for range gpu.MaxTexts {
			d.Unsupported = append(d.Unsupported, strings.Repeat("x", gpu.MaxText))
		}
		long.Devices = append(long.Devices, d)
	}
	if _, err := (gpu.Line{Sample: &long}).Append(nil); !errors.Is(err, gpu.ErrLine) {
		t.Errorf("got %v for a line that is too long", err)
	}
}

func TestSample_Rebase(t *testing.T) {
	now := time.Unix(1000, 0)
	s := gpu.Sample{At: time.Unix(5, 0), MonotonicNS: int64(90 * time.Second), Events: []gpu.Event{{MonotonicNS: int64(85 * time.Second)}}}
	if err := s.Rebase(now, int64(100*time.Second)); err != nil {
		t.Fatal(err)
	}
	if !s.At.Equal(now.Add(-10*time.Second)) || !s.Events[0].At.Equal(now.Add(-15*time.Second)) {
		t.Errorf("got %v, %v", s.At, s.Events[0].At)
	}
	s.MonotonicNS = int64(100*time.Second + time.Millisecond)
	if err := s.Rebase(now, int64(100*time.Second)); err != nil || !s.At.Equal(now) {
		t.Errorf("got %v, %v for a hair of the future", s.At, err)
	}
	s.MonotonicNS = int64(102 * time.Second)
	if err := s.Rebase(now, int64(100*time.Second)); !errors.Is(err, gpu.ErrLine) {
		t.Errorf("got %v for the future", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(at + `,"complete":true,"devices":[{"uuid":"GPU-1","recovery":"none"}]}}`))
	f.Add([]byte(at + `,"events":[{"at":"2026-11-30T12:00:00Z","monotonic_ns":5,"xid":79,"gpu_instance":1}]}}`))
	f.Add([]byte(`{"hello":{"protocol":1,"unavailable":"no"}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		l, err := gpu.Parse(line)
		if err != nil {
			if !errors.Is(err, gpu.ErrLine) {
				t.Errorf("got %v", err)
			}
			return
		}
		b, err := l.Append(nil)
		if err != nil {
			t.Fatalf("%q was read and can't be written: %v", line, err)
		}
		again, err := gpu.Parse(b)
		if err != nil {
			t.Fatalf("%q was written and can't be read: %v", b, err)
		}
		if c, err := again.Append(nil); err != nil || string(c) != string(b) {
			t.Errorf("got %q, then %q, %v", b, c, err)
		}
		j, err := gpu.NewJudge(gpu.Config{Table: gpu.DefaultTable()})
		if err != nil {
			t.Fatal(err)
		}
		j.Take(gpu.Report{Hello: l.Hello, Sample: l.Sample})
	})
}

func FuzzOverride(f *testing.F) {
	f.Add([]byte("xids: [{xid: 144-150, class: dead, single_gpu: watch, dead_within: 1h}]"))
	f.Fuzz(func(t *testing.T, file []byte) {
		table, err := gpu.DefaultTable().Override(file)
		if err != nil {
			return
		}
		last := 0
		for _, r := range table.Rules() {
			if r.First <= last || r.Last < r.First || r.Class == "" {
				t.Fatalf("rules %+v", table.Rules())
			}
			last = r.Last
		}
	})
}
