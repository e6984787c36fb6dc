// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

//go:build cgo && linux

package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"
)

const defaultLibrary = "libnvidia-ml.so.1"

// openLibrary prepares the library of a file, or the system's. It calls nothing.
func openLibrary(file string) (driver, error) {
	if file == "" {
		file = defaultLibrary
	}
	return &library{lib: nvml.New(nvml.WithLibraryPath(file)), probe: func() error { return probe(file) }}, nil
}

// reserveOutput keeps standard output to this program: what the library itself prints goes to standard error.
func reserveOutput() (io.Writer, error) {
	fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("standard output: %w", err)
	}
	if err := unix.Dup3(2, 1, 0); err != nil {
		return nil, fmt.Errorf("standard output: %w", err)
	}
	return os.NewFile(uintptr(fd), "standard output"), nil
}

// probe says whether the library is there, with what Init calls: a call of a symbol that isn't ends the process.
func probe(file string) error {
	l := dl.New(file, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := l.Open(); err != nil {
		return fmt.Errorf("%w: %w", errNoLibrary, err)
	}
	// It stays open: Init opens it once more.
	if l.Lookup("nvmlInit_v2") != nil && l.Lookup("nvmlInit") != nil {
		return fmt.Errorf("nvmlInit: %w", errNoSymbol)
	}
	return nil
}

// library is the management library behind go-nvml. Methods may be called concurrently.
//
// INVARIANT: every call but Init is preceded by a look-up of its symbol.
type library struct {
	lib   nvml.Interface
	probe func() error

	mu      sync.Mutex
	symbols map[string]bool
	names   map[nvml.Device]string // UUIDs, for events of a device that answers no more
}

// calls are the symbols behind each fact. Of a list within it, one is enough.
var calls = map[string][][]string{
	"count":      {{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"}},
	"device":     {{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"}},
	"uuid":       {{"nvmlDeviceGetUUID"}},
	"pci":        {{"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"}},
	factECC:      {{"nvmlDeviceGetTotalEccErrors"}},
	factRemap:    {{"nvmlDeviceGetRemappedRows"}},
	factPages:    {{"nvmlDeviceGetRetiredPagesPendingStatus"}},
	factRecovery: {{"nvmlDeviceGetFieldValues"}},
	factClocks:   {{"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"}},
	factLinks:    {{"nvmlDeviceGetNvLinkState"}},
	factMIG: {
		{"nvmlDeviceGetMigMode"}, {"nvmlDeviceGetMaxMigDeviceCount"}, {"nvmlDeviceGetMigDeviceHandleByIndex"},
		{"nvmlDeviceGetUUID"}, {"nvmlDeviceGetGpuInstanceId"}, {"nvmlDeviceGetComputeInstanceId"},
	},
	factEvents: {
		{"nvmlEventSetCreate"}, {"nvmlDeviceRegisterEvents"}, {"nvmlEventSetWait_v2", "nvmlEventSetWait"}, {"nvmlEventSetFree"},
	},
}

func (l *library) Init() error {
	if l.probe != nil {
		if err := l.probe(); err != nil {
			return err
		}
	}
	return outcome(l.lib.Init())
}

func (l *library) has(symbol string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.symbols == nil {
		l.symbols = make(map[string]bool)
	}
	found, known := l.symbols[symbol]
	if !known {
		found = l.lib.Extensions().LookupSymbol(symbol) == nil
		l.symbols[symbol] = found
	}
	return found
}

// can fails if a symbol of a call isn't there.
func (l *library) can(call string) error {
	for _, any := range calls[call] {
		found := false
		for _, symbol := range any {
			found = found || l.has(symbol)
		}
		if !found {
			return fmt.Errorf("%s: %w", any[0], errNoSymbol)
		}
	}
	return nil
}

func (l *library) Versions() (driver, library string) {
	if l.has("nvmlSystemGetDriverVersion") {
		driver, _ = l.lib.SystemGetDriverVersion() // "" on failure
	}
	if l.has("nvmlSystemGetNVMLVersion") {
		library, _ = l.lib.SystemGetNVMLVersion()
	}
	return driver, library
}

func (l *library) Capabilities() []string {
	var out []string
	for _, f := range []string{factMIG, factECC, factRemap, factPages, factRecovery, factClocks, factLinks, factEvents} {
		if l.can(f) == nil {
			out = append(out, f)
		}
	}
	return out
}

func (l *library) Count() (int, error) {
	if err := l.can("count"); err != nil {
		return 0, err
	}
	n, ret := l.lib.DeviceGetCount()
	return n, outcome(ret)
}

func (l *library) Device(index int) (device, error) {
	if err := l.can("device"); err != nil {
		return nil, err
	}
	d, ret := l.lib.DeviceGetHandleByIndex(index)
	if err := outcome(ret); err != nil {
		return nil, err
	}
	return &handle{l, d}, nil
}

func (l *library) Events(devices []device) (events, map[string]error, error) {
	if err := l.can(factEvents); err != nil {
		without := make(map[string]error)
		for _, d := range devices {
			if uuid, uerr := d.UUID(); uerr == nil {
				without[uuid] = err
			}
		}
		return nil, without, nil
	}
	set, ret := l.lib.EventSetCreate()
	if err := outcome(ret); err != nil {
		return nil, nil, err
	}
	without, registered := make(map[string]error), 0
	for _, d := range devices {
		err := outcome(d.(*handle).d.RegisterEvents(nvml.EventTypeXidCriticalError, set))
		if err == nil {
			registered++
			continue
		}
		if uuid, uerr := d.UUID(); uerr == nil {
			without[uuid] = err
		}
	}
	if registered == 0 {
		return nil, without, outcome(set.Free())
	}
	return &eventSet{l, set}, without, nil
}

// eventSet lives as long as the process.
type eventSet struct {
	l   *library
	set nvml.EventSet
}

func (e *eventSet) Wait(timeout time.Duration) (event, error) {
	data, ret := e.set.Wait(uint32(timeout.Milliseconds()))
	if err := outcome(ret); err != nil {
		return event{}, err
	}
	const whole = 0xFFFFFFFF
	out := event{xid: data.EventData}
	if data.EventType&nvml.EventTypeXidCriticalError == 0 {
		out.xid = 0
	}
	if data.GpuInstanceId != whole {
		out.gpu = &data.GpuInstanceId
		if data.ComputeInstanceId != whole {
			out.compute = &data.ComputeInstanceId
		}
	}
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	if data.Device != nil {
		out.uuid = e.l.names[data.Device]
	}
	return out, nil
}

// named remembers a device's UUID.
func (l *library) named(d nvml.Device, uuid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		l.names = make(map[nvml.Device]string)
	}
	l.names[d] = uuid
}

// outcome makes an error of what a call returned. It doesn't ask the library for the text, since that is a call too.
func outcome(ret nvml.Return) error {
	switch ret {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return errNoLibrary
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_VGPU_ECC_NOT_SUPPORTED, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED:
		return errUnsupported
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return errNoSymbol
	case nvml.ERROR_NO_PERMISSION:
		return errNoPermission
	case nvml.ERROR_GPU_IS_LOST:
		return errLost
	case nvml.ERROR_RESET_REQUIRED:
		return errReset
	case nvml.ERROR_TIMEOUT:
		return errTimeout
	case nvml.ERROR_UNINITIALIZED:
		return errClosed
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fmt.Errorf("the driver isn't loaded (NVML error %d)", ret)
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fmt.Errorf("library and driver are of different versions (NVML error %d)", ret)
	}
	return fmt.Errorf("NVML error %d", ret)
}
