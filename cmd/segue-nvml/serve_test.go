// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/health/gpu"
)

const quick = 100 * time.Millisecond

func TestServe_HelloThenReadings(t *testing.T) {
	out := lines(t, newFake("GPU-1", "GPU-2"), quick)
	l := <-out
	if l.Hello == nil || l.Hello.Driver != "550.1" || l.Hello.Boot != "boot-1" || l.Hello.IntervalMS != 100 || !slices.Equal(l.Hello.Capabilities, []string{factECC}) {
		t.Fatalf("got %+v", l)
	}
	for range 3 {
		s := (<-out).Sample
		if s == nil || !s.Complete || len(s.Devices) != 2 || s.Devices[1].UUID != "GPU-2" || s.Devices[1].Index != 1 || s.Devices[1].Uncorrected == nil || s.MonotonicNS < 2 {
			t.Fatalf("got %+v", s)
		}
	}
}

func TestServe_UnsupportedIsListedOnce(t *testing.T) {
	f := newFake("GPU-1")
	f.devices[0].fails = map[string]error{
		factECC: errUnsupported, factRecovery: fmt.Errorf("nvmlX: %w", errNoSymbol), factLinks: errNoPermission, factMIG: errUnsupported, factPages: errors.New("NVML error 999"),
	}
	out := lines(t, f, quick)
	d := next(t, out, "reading", isReading).Sample
	want := []string{"ecc: not supported", "recovery_action: nvmlX: not in this version of the library", "nvlink: no permission"}
	if got := d.Devices[0]; !slices.Equal(got.Unsupported, want) || got.Uncorrected != nil || got.Recovery != nil || got.Links != nil || got.PagesPending != nil || got.RemapPending == nil {
		t.Errorf("got %+v", got)
	}
	if !slices.Equal(d.Errors, []string{"GPU-1: retired_pages: NVML error 999"}) {
		t.Errorf("got errors %v", d.Errors)
	}
	if got := next(t, out, "reading", isReading).Sample.Devices[0].Unsupported; got != nil {
		t.Errorf("got %v once more", got)
	}
	f.with(func() { delete(f.devices[0].fails, factECC) })
	l := next(t, out, "changed list", func(l gpu.Line) bool { return isReading(l) && l.Sample.Devices[0].Unsupported != nil })
	if got := l.Sample.Devices[0].Unsupported; !slices.Equal(got, want[1:]) {
		t.Errorf("got %v", got)
	}
}

// A call that never returns: the word that nothing is known goes on, no second reading is begun, and events come through.
func TestServe_CallThatNeverReturns(t *testing.T) {
	f := newFake("GPU-1")
	out := lines(t, f, quick)
	next(t, out, "reading", isReading)
	f.with(func() { f.hang = factECC })
	stalled := func(l gpu.Line) bool { return l.Sample != nil && l.Sample.StalledMS > 0 }
	a := next(t, out, "stalled sample", stalled).Sample.StalledMS
	if b := next(t, out, "another", stalled).Sample.StalledMS; b <= a {
		t.Errorf("stalled for %d ms, then for %d", a, b)
	}
	f.events <- event{uuid: "GPU-1", xid: 79}
	l := next(t, out, "event", func(l gpu.Line) bool { return l.Sample != nil && len(l.Sample.Events) > 0 })
	if e := l.Sample.Events[0]; e.UUID != "GPU-1" || e.XID != 79 {
		t.Errorf("got %+v", e)
	}
	for range 3 {
		next(t, out, "stalled sample", stalled)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.busy != 1 {
		t.Errorf("%d calls hang, want one", f.busy)
	}
}

func TestServe_EventsComeAtOnceAndHaveTheDeviceRead(t *testing.T) {
	f := newFake("GPU-1")
	out := lines(t, f, time.Minute)
	next(t, out, "reading", isReading)
	f.events <- event{uuid: "GPU-1", xid: 154, gpu: new(uint32(2))}
	f.events <- event{xid: 0}       // no XID
	f.events <- event{xid: 1 << 40} // nonsense
	l := next(t, out, "event", func(l gpu.Line) bool { return l.Sample != nil && len(l.Sample.Events) > 0 })
	if e := l.Sample.Events[0]; e.XID != 154 || e.GPU == nil || *e.GPU != 2 || len(l.Sample.Events) != 1 {
		t.Errorf("got %+v", l.Sample.Events)
	}
	next(t, out, "reading after it", isReading)
	for range 280 { // more than there is room for, at most
		f.events <- event{uuid: "GPU-1", xid: 31}
	}
	for n := 0; n < 200; {
		s := next(t, out, "events", func(l gpu.Line) bool { return l.Sample != nil && len(l.Sample.Events) > 0 }).Sample
		n += len(s.Events)
	}
}

func TestServe_LostDevice(t *testing.T) {
	for name, where := range map[string]string{"handle": "device", "uuid": "uuid", "fact": factECC} {
		t.Run(name, func(t *testing.T) {
			f := newFake("GPU-1", "GPU-2")
			out := lines(t, f, quick)
			next(t, out, "reading", isReading)
			f.with(func() { f.devices[0].fails[where] = errLost })
			l := next(t, out, "lost device", func(l gpu.Line) bool {
				return isReading(l) && len(l.Sample.Devices) == 2 && l.Sample.Devices[0].Lost && !l.Sample.Devices[1].Lost
			})
			if l.Sample.Devices[0].UUID != "GPU-1" || !l.Sample.Complete {
				t.Errorf("got %+v", l.Sample)
			}
			f.with(func() { f.devices[0].fails[where] = errReset })
			next(t, out, "device in want of a reset", func(l gpu.Line) bool { return isReading(l) && l.Sample.Devices[0].ResetRequired })
			f.with(func() { f.devices[0].fails[where] = errors.New("NVML error 999") })
			next(t, out, "failure", func(l gpu.Line) bool {
				return isReading(l) && len(l.Sample.Errors) > 0 && (where == factECC) == l.Sample.Complete
			})
		})
	}
}

func TestServe_InitFailure(t *testing.T) {
	f := newFake("GPU-1")
	f.inits = []error{errors.New("the driver isn't loaded\n(NVML error 9)")}
	out := lines(t, f, quick)
	if l := <-out; l.Hello == nil || l.Hello.Unavailable != "" {
		t.Fatalf("got %+v", l)
	}
	if s := (<-out).Sample; s == nil || s.InitFailed != "init: the driver isn't loaded?(NVML error 9)" || s.Complete {
		t.Fatalf("got %+v", s)
	}
	next(t, out, "reading", func(l gpu.Line) bool { return isReading(l) && l.Sample.InitFailed == "" && len(l.Sample.Devices) == 1 })

	f = newFake("GPU-1")
	out = lines(t, f, quick)
	next(t, out, "reading", isReading)
	f.with(func() { f.count = errClosed })
	next(t, out, "failure", func(l gpu.Line) bool { return isReading(l) && l.Sample.InitFailed != "" })
}

func TestServe_UnavailableEnds(t *testing.T) {
	for _, err := range []error{errNoLibrary, errNoCgo, errNoPermission, fmt.Errorf("nvmlInit: %w", errNoSymbol)} {
		f := newFake()
		f.inits = []error{err}
		out := lines(t, f, quick)
		if l := <-out; l.Hello == nil || l.Hello.Unavailable != err.Error() {
			t.Errorf("got %+v", l)
		}
		if l, open := <-out; open {
			t.Errorf("got %+v after that", l)
		}
	}
}

func TestRead_MoreDevicesThanALineHolds(t *testing.T) {
	var uuids []string
	for i := range gpu.MaxDevices + 1 {
		uuids = append(uuids, fmt.Sprintf("GPU-%d", i))
	}
	r := newReader(newFake(uuids...))
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	if s := r.read(); s.Complete || len(s.Devices) != gpu.MaxDevices || len(s.Errors) != 1 {
		t.Errorf("got %d devices, complete %v, %v", len(s.Devices), s.Complete, s.Errors)
	}
}

func TestClean(t *testing.T) {
	long := clean(strings.Repeat("é", 400))
	if got := clean("a\x00b\nc\xff"); got != "a?b?c?" || len(long) > gpu.MaxText || !strings.HasPrefix(long, "éé") {
		t.Errorf("got %q, %d bytes", got, len(long))
	}
}

func TestRun_Flags(t *testing.T) {
	none := func(string) (driver, error) { return nil, errNoCgo }
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"--help", exitOK, "segue-nvml --once"},
		{"--interval 1ms", exitUsage, "want 100ms to 1m0s"},
		{"--interval x", exitUsage, "--help"},
		{"--nothing", exitUsage, "--help"},
		{"--timeout 0s", exitUsage, "positive"},
		{"once", exitUsage, "unexpected argument"},
		{"--once", exitOK, `"unavailable":"built without cgo`},
		{"", exitOK, `"unavailable":"built without cgo`},
	} {
		var out, errs bytes.Buffer
		code := run(strings.Fields(tt.args), &out, &errs, none)
		text := out.String() + errs.String()
		if code != tt.code || !strings.Contains(text, tt.want) || code == exitUsage && strings.Count(text, "\n") != 1 {
			t.Errorf("%s: got %d, %q", tt.args, code, text)
		}
	}
}

func TestRun_Once(t *testing.T) {
	f := newFake("GPU-1")
	open := func(string) (driver, error) { return f, nil }
	var out, errs bytes.Buffer
	if code := run([]string{"--once"}, &out, &errs, open); code != exitOK || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("got %d, %s%s", code, &out, &errs)
	}
	f.hang = factECC
	if code := run([]string{"--once", "--timeout", "50ms"}, io.Discard, &errs, open); code != exitFailed || !strings.Contains(errs.String(), "hangs") {
		t.Errorf("got %d, %s", code, &errs)
	}
}

func TestRun_ClosedOutputEnds(t *testing.T) {
	r, w := io.Pipe()
	r.Close()
	var errs bytes.Buffer
	if code := run(nil, w, &errs, func(string) (driver, error) { return newFake("GPU-1"), nil }); code != exitFailed || !strings.Contains(errs.String(), "closed pipe") {
		t.Errorf("got %d, %s", code, &errs)
	}
}
