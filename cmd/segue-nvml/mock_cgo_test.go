// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

//go:build cgo && linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/gpu"
)

// Of go-nvml's mocks a function that isn't set panics: what these tests leave out isn't called.

// mocked is a library of mocks whose symbols are all there but the ones named.
func mocked(devices []*mock.Device, missing ...string) (*library, *mock.Interface) {
	i := &mock.Interface{
		InitFunc:           func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc: func() (int, nvml.Return) { return len(devices), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(n int) (nvml.Device, nvml.Return) {
			return devices[n], nvml.SUCCESS
		},
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return "550.54.15", nvml.SUCCESS },
		SystemGetNVMLVersionFunc:   func() (string, nvml.Return) { return "12.550.54.15", nvml.SUCCESS },
	}
	i.ExtensionsFunc = func() nvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: func(symbol string) error {
			if slices.Contains(missing, symbol) {
				return errors.New("no such symbol")
			}
			return nil
		}}
	}
	return &library{lib: i}, i
}

// whole is a device that is well.
func whole(uuid string) *mock.Device {
	return &mock.Device{
		GetUUIDFunc: func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) {
			return nvml.PciInfo{BusId: [32]int8{'0', ':', '1'}}, nvml.SUCCESS
		},
		GetMigModeFunc: func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_DISABLE, nvml.DEVICE_MIG_DISABLE, nvml.SUCCESS },
		GetTotalEccErrorsFunc: func(e nvml.MemoryErrorType, c nvml.EccCounterType) (uint64, nvml.Return) {
			if e != nvml.MEMORY_ERROR_TYPE_UNCORRECTED || c != nvml.VOLATILE_ECC {
				return 0, nvml.ERROR_INVALID_ARGUMENT
			}
			return 2, nvml.SUCCESS
		},
		GetRemappedRowsFunc:              func() (int, int, bool, bool, nvml.Return) { return 4, 0, false, false, nvml.SUCCESS },
		GetRetiredPagesPendingStatusFunc: func() (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED },
		GetFieldValuesFunc:               action(nvml.GPU_RECOVERY_ACTION_NONE),
		GetCurrentClocksEventReasonsFunc: func() (uint64, nvml.Return) { return nvml.ClocksEventReasonGpuIdle, nvml.SUCCESS },
		GetNvLinkStateFunc: func(n int) (nvml.EnableState, nvml.Return) {
			switch {
			case n >= 12:
				return 0, nvml.ERROR_INVALID_ARGUMENT
			case n == 3:
				return nvml.FEATURE_DISABLED, nvml.SUCCESS
			}
			return nvml.FEATURE_ENABLED, nvml.SUCCESS
		},
		RegisterEventsFunc: func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS },
	}
}

func action(a nvml.DeviceGpuRecoveryAction) func([]nvml.FieldValue) nvml.Return {
	return func(f []nvml.FieldValue) nvml.Return {
		if len(f) != 1 || f[0].FieldId != nvml.FI_DEV_GET_GPU_RECOVERY_ACTION {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		f[0].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
		binary.NativeEndian.PutUint32(f[0].Value[:], uint32(a))
		return nvml.SUCCESS
	}
}

// bench reads a library again and again and judges.
type bench struct {
	t *testing.T
	r *reader
	j *gpu.Judge
}

func newBench(t *testing.T, l *library, cfg gpu.Config) *bench {
	t.Helper()
	cfg.Table = gpu.DefaultTable()
	j, err := gpu.NewJudge(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, r: newReader(l), j: j}
	if err := b.r.open(); err != nil {
		t.Fatal(err)
	}
	return b
}

// read makes one reading, has it pass a line, and judges it.
func (b *bench) read() (gpu.Sample, gpu.Result) {
	b.t.Helper()
	s := b.r.read()
	text, err := gpu.Line{Sample: &s}.Append(nil)
	if err != nil {
		b.t.Fatal(err)
	}
	l, err := gpu.Parse(text)
	if err != nil {
		b.t.Fatal(err)
	}
	return *l.Sample, b.j.Take(gpu.Report{At: s.At, Sample: l.Sample})
}

func (b *bench) expect(v health.Verdict, why health.Reason) gpu.Result {
	b.t.Helper()
	_, r := b.read()
	if !is(v, why)(r) {
		b.t.Errorf("got %v %v (%s), want %v %v", r.Verdict, r.Reasons, r.Detail, v, why)
	}
	return r
}

func TestMock_EveryFact(t *testing.T) {
	l, _ := mocked([]*mock.Device{whole("GPU-1")})
	b := newBench(t, l, gpu.Config{})
	s, r := b.read()
	d := s.Devices[0]
	if d.UUID != "GPU-1" || d.PCI != "0:1" || *d.Uncorrected != 2 || *d.RemapPending || *d.RemapFailed || d.PagesPending != nil ||
		*d.Recovery != gpu.RecoveryNone || *d.Thermal || *d.PowerBrake || *d.Links != 0xff7 || !slices.Equal(d.Unsupported, []string{"retired_pages: not supported"}) {
		t.Errorf("got %+v", d)
	}
	if !is(health.Reachable, gpu.ReasonOK)(r) || len(s.Errors) > 0 {
		t.Errorf("got %v %v, %v", r.Verdict, r.Reasons, s.Errors)
	}
	if driver, lib := l.Versions(); driver != "550.54.15" || lib != "12.550.54.15" {
		t.Errorf("got %s, %s", driver, lib)
	}
	if got := l.Capabilities(); len(got) != 8 {
		t.Errorf("got %v", got)
	}
}

// A symbol that isn't there isn't called: what belongs to it is listed as missing, the rest is read.
func TestMock_MissingSymbols(t *testing.T) {
	d := whole("GPU-1")
	d.GetRemappedRowsFunc, d.GetFieldValuesFunc, d.GetMigModeFunc, d.GetCurrentClocksEventReasonsFunc = nil, nil, nil, nil
	d.GetCurrentClocksThrottleReasonsFunc = func() (uint64, nvml.Return) { return nvml.ClocksThrottleReasonHwThermalSlowdown, nvml.SUCCESS }
	missing := []string{
		"nvmlDeviceGetRemappedRows", "nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetCurrentClocksEventReasons",
		"nvmlEventSetCreate", "nvmlSystemGetNVMLVersion",
	}
	l, i := mocked([]*mock.Device{d}, missing...)
	i.SystemGetNVMLVersionFunc = nil
	l.Versions()
	b := newBench(t, l, gpu.Config{})
	s, _ := b.read()
	if e, err := b.r.listen(); e != nil || err != nil {
		t.Errorf("got %v, %v", e, err)
	}
	if got := s.Devices[0]; !*got.Thermal || got.RemapPending != nil || got.Recovery != nil || len(got.Unsupported) != 4 || !s.Complete {
		t.Errorf("got %+v", got)
	}
	if s, _ := b.read(); len(s.Devices[0].Unsupported) != 5 { // the events too
		t.Errorf("got %v", s.Devices[0].Unsupported)
	}
	for _, symbols := range [][]string{
		{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"}, {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"}, {"nvmlDeviceGetUUID"},
	} {
		l, _ := mocked([]*mock.Device{d}, symbols...)
		if s, r := newBench(t, l, gpu.Config{}).read(); s.Complete || len(s.Devices) > 0 || len(s.Errors) != 1 || r.Verdict != health.Unknown {
			t.Errorf("%v: got %+v, %v", symbols, s, r.Verdict)
		}
	}
}

func TestMock_MissingLibrary(t *testing.T) {
	l, i := mocked(nil)
	i.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }
	if err := newReader(l).open(); !errors.Is(err, errNoLibrary) {
		t.Errorf("got %v", err)
	}
	i.InitFunc = func() nvml.Return { return nvml.ERROR_NO_PERMISSION }
	if err := newReader(l).open(); !errors.Is(err, errNoPermission) {
		t.Errorf("got %v", err)
	}
}

func TestMock_InitFails(t *testing.T) {
	for _, ret := range []nvml.Return{nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH, nvml.ERROR_UNKNOWN, nvml.ERROR_GPU_IS_LOST} {
		l, i := mocked(nil)
		i.InitFunc = func() nvml.Return { return ret }
		newBench(t, l, gpu.Config{}).expect(health.Degraded, gpu.ReasonInitFailed)
	}
}

func TestMock_LostGPU(t *testing.T) {
	d := whole("GPU-1")
	l, i := mocked([]*mock.Device{d, whole("GPU-2")})
	b := newBench(t, l, gpu.Config{Devices: []string{"GPU-1"}})
	b.expect(health.Reachable, gpu.ReasonOK)
	d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
		return 0, nvml.ERROR_GPU_IS_LOST
	}
	b.expect(health.Dead, gpu.ReasonLost)
	handle := i.DeviceGetHandleByIndexFunc
	i.DeviceGetHandleByIndexFunc = func(n int) (nvml.Device, nvml.Return) {
		if n == 0 {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return handle(n)
	}
	b.expect(health.Dead, gpu.ReasonLost)
	// A new process of the program doesn't know the device's name: it is gone that was there.
	b.r = newReader(l)
	if err := b.r.open(); err != nil {
		t.Fatal(err)
	}
	b.expect(health.Dead, gpu.ReasonGone)
	// A reset brings it back.
	i.DeviceGetHandleByIndexFunc, d.GetTotalEccErrorsFunc = handle, whole("").GetTotalEccErrorsFunc
	if r := b.expect(health.Reachable, gpu.ReasonOK); !slices.Equal(r.Cleared, []string{"GPU-1"}) {
		t.Errorf("cleared %v", r.Cleared)
	}
}

func TestMock_ECCRiseTaints(t *testing.T) {
	d := whole("GPU-1")
	n := uint64(7)
	d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return n, nvml.SUCCESS }
	l, _ := mocked([]*mock.Device{d})
	b := newBench(t, l, gpu.Config{})
	b.expect(health.Reachable, gpu.ReasonOK)
	captured := time.Now() // a boundary after the last clean sample
	n = 8
	r := b.expect(health.Dead, gpu.ReasonECC)
	if len(r.Taints) != 1 || !r.Taints[0].Clean.Before(captured) || !r.Taints[0].Seen.After(captured) {
		t.Errorf("got %+v, want the boundary of %v tainted", r.Taints, captured)
	}
}

func TestMock_RecoveryActions(t *testing.T) {
	for a, want := range map[nvml.DeviceGpuRecoveryAction]struct {
		action  gpu.Recovery
		verdict health.Verdict
	}{
		nvml.GPU_RECOVERY_ACTION_NONE:                {gpu.RecoveryNone, health.Reachable},
		nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:           {gpu.RecoveryDrain, health.Evacuate},
		nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:     {gpu.RecoveryDrainAndReset, health.Evacuate},
		nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: {gpu.RecoveryIMEX, health.Evacuate},
		nvml.GPU_RECOVERY_ACTION_GPU_RESET:           {gpu.RecoveryReset, health.Dead},
		nvml.GPU_RECOVERY_ACTION_NODE_REBOOT:         {gpu.RecoveryReboot, health.Dead},
		nvml.GPU_RECOVERY_ACTION_BUS_RESET:           {gpu.RecoveryBusReset, health.Dead},
		nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:       {gpu.RecoverySystemReboot, health.Dead},
		99:                                           {gpu.RecoveryOther, health.Evacuate},
	} {
		d := whole("GPU-1")
		d.GetFieldValuesFunc = action(a)
		l, _ := mocked([]*mock.Device{d})
		if s, r := newBench(t, l, gpu.Config{}).read(); *s.Devices[0].Recovery != want.action || r.Verdict != want.verdict {
			t.Errorf("%d: got %s, %v, want %v", a, *s.Devices[0].Recovery, r.Verdict, want)
		}
	}
	for _, ret := range []nvml.Return{nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NO_DATA} {
		d := whole("GPU-1")
		d.GetFieldValuesFunc = func(f []nvml.FieldValue) nvml.Return { f[0].NvmlReturn = uint32(ret); return nvml.SUCCESS }
		l, _ := mocked([]*mock.Device{d})
		if s, _ := newBench(t, l, gpu.Config{}).read(); s.Devices[0].Recovery != nil || len(s.Devices[0].Unsupported) != 2 {
			t.Errorf("%d: got %+v", ret, s.Devices[0])
		}
	}
}

func TestMock_MIG(t *testing.T) {
	part := func(uuid string, g, c int) *mock.Device {
		return &mock.Device{
			GetUUIDFunc:              func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
			GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return g, nvml.SUCCESS },
			GetComputeInstanceIdFunc: func() (int, nvml.Return) { return c, nvml.SUCCESS },
		}
	}
	parts := map[int]*mock.Device{0: part("MIG-a", 1, 0), 3: part("MIG-b", 2, 1)}
	d := whole("GPU-1")
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS }
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(n int) (nvml.Device, nvml.Return) {
		if p := parts[n]; p != nil {
			return p, nvml.SUCCESS
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
	d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	d.GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	l, _ := mocked([]*mock.Device{d})
	b := newBench(t, l, gpu.Config{Devices: []string{"MIG-b"}})
	s, r := b.read()
	if want := []gpu.Instance{{UUID: "MIG-a", GPU: 1}, {UUID: "MIG-b", GPU: 2, Compute: 1}}; !slices.Equal(s.Devices[0].MIG, want) {
		t.Errorf("got %+v", s.Devices[0].MIG)
	}
	if len(s.Devices[0].Unsupported) != 3 || !is(health.Reachable, gpu.ReasonOK)(r) {
		t.Errorf("got %v, %v %v", s.Devices[0].Unsupported, r.Verdict, r.Reasons)
	}
	delete(parts, 3)
	b.expect(health.Dead, gpu.ReasonGone)

	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_NO_PERMISSION }
	if s, _ := newBench(t, l, gpu.Config{}).read(); !slices.Contains(s.Devices[0].Unsupported, "mig: no permission") {
		t.Errorf("got %v", s.Devices[0].Unsupported)
	}
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED }
	if s, _ := newBench(t, l, gpu.Config{}).read(); len(s.Devices[0].Unsupported) != 3 {
		t.Errorf("a device that can't be divided lacks %v", s.Devices[0].Unsupported)
	}
}

// One XID of each class comes through the library's events, with the device and its part.
func TestMock_XIDs(t *testing.T) {
	const none = 0xFFFFFFFF
	for xid, want := range map[uint64]health.Verdict{31: health.Watch, 38: health.Watch, 63: health.Evacuate, 4321: health.Evacuate, 79: health.Dead, 154: health.Reachable} {
		d := whole("GPU-1")
		l, i := mocked([]*mock.Device{d})
		told := false
		set := &mock.EventSet{WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
			if told {
				return nvml.EventData{}, nvml.ERROR_TIMEOUT
			}
			told = true
			return nvml.EventData{Device: d, EventType: nvml.EventTypeXidCriticalError, EventData: xid, GpuInstanceId: none, ComputeInstanceId: none}, nvml.SUCCESS
		}}
		i.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return set, nvml.SUCCESS }
		b := newBench(t, l, gpu.Config{})
		b.expect(health.Reachable, gpu.ReasonOK)
		e, err := b.r.listen()
		if err != nil {
			t.Fatal(err)
		}
		ev, err := e.Wait(time.Second)
		if err != nil || ev.uuid != "GPU-1" || ev.xid != xid || ev.gpu != nil || ev.compute != nil {
			t.Fatalf("got %+v, %v", ev, err)
		}
		s := gpu.Sample{At: time.Now(), MonotonicNS: 1, Events: []gpu.Event{{At: time.Now(), MonotonicNS: 1, UUID: ev.uuid, XID: int(ev.xid)}}}
		r := b.j.Take(gpu.Report{At: s.At, Sample: &s})
		if r.Verdict != want || (xid == 31) == r.Demand.IsZero() {
			t.Errorf("xid %d: got %v %v, demand %v", xid, r.Verdict, r.Reasons, r.Demand)
		}
		if _, err := e.Wait(time.Second); !errors.Is(err, errTimeout) {
			t.Errorf("got %v", err)
		}
	}
}

func TestMock_Events(t *testing.T) {
	first, second := whole("GPU-1"), whole("GPU-2")
	first.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.ERROR_NOT_SUPPORTED }
	l, i := mocked([]*mock.Device{first, second})
	data, ret := nvml.EventData{Device: second, EventType: nvml.EventTypeXidCriticalError, EventData: 31, GpuInstanceId: 4, ComputeInstanceId: 5}, nvml.SUCCESS
	freed := 0
	set := &mock.EventSet{
		WaitFunc: func(uint32) (nvml.EventData, nvml.Return) { return data, ret },
		FreeFunc: func() nvml.Return { freed++; return nvml.SUCCESS },
	}
	i.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return set, nvml.SUCCESS }
	b := newBench(t, l, gpu.Config{})
	b.read()
	e, err := b.r.listen()
	if err != nil {
		t.Fatal(err)
	}
	if ev, err := e.Wait(time.Second); err != nil || *ev.gpu != 4 || *ev.compute != 5 || ev.uuid != "GPU-2" {
		t.Errorf("got %+v, %v", ev, err)
	}
	data.Device, data.EventType = nil, nvml.EventTypeDoubleBitEccError
	if ev, err := e.Wait(time.Second); err != nil || ev.uuid != "" || ev.xid != 0 {
		t.Errorf("got %+v, %v", ev, err)
	}
	for code, want := range map[nvml.Return]error{nvml.ERROR_UNINITIALIZED: errClosed, nvml.ERROR_GPU_IS_LOST: errLost, nvml.ERROR_TIMEOUT: errTimeout} {
		ret = code
		if _, err := e.Wait(time.Second); !errors.Is(err, want) {
			t.Errorf("%d: got %v, want %v", code, err, want)
		}
	}
	if s, _ := b.read(); !slices.Contains(s.Devices[0].Unsupported, "xid: not supported") || slices.Contains(s.Devices[1].Unsupported, "xid: not supported") {
		t.Errorf("got %+v", s.Devices)
	}
	second.RegisterEventsFunc = first.RegisterEventsFunc
	if e, err := b.r.listen(); e != nil || err != nil || freed != 1 {
		t.Errorf("got %v, %v, freed %d", e, err, freed)
	}
}

// The call that never returns, on the mock: the lines go on.
func TestMock_CallThatNeverReturns(t *testing.T) {
	d := whole("GPU-1")
	l, i := mocked([]*mock.Device{d})
	i.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
	entered := make(chan struct{}, 10)
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) {
		entered <- struct{}{}
		select {}
	}
	out := lines(t, l, quick)
	for range 3 {
		next(t, out, "stalled sample", func(l gpu.Line) bool { return l.Sample != nil && l.Sample.StalledMS > 0 })
	}
	if len(entered) != 1 {
		t.Errorf("%d calls, want the one", len(entered))
	}
}

func TestOutcome_NamesEveryCode(t *testing.T) {
	for ret := nvml.ERROR_UNINITIALIZED; ret <= nvml.ERROR_RESET_TYPE_NOT_SUPPORTED; ret++ {
		if outcome(ret) == nil {
			t.Errorf("%d is no error", ret)
		}
	}
	if got := outcome(nvml.ERROR_UNKNOWN); got == nil || got.Error() != fmt.Sprintf("NVML error %d", nvml.ERROR_UNKNOWN) {
		t.Errorf("got %v", got)
	}
}
