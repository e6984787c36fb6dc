// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/seguekv/segue/health/gpu"
)

// initAgain is the pause between two attempts to start a library that refuses.
const initAgain = 5 * time.Second

// reader makes readings. It belongs to one goroutine at a time.
type reader struct {
	d driver
	// inited: the library has started; failed is why it hasn't, tried when that was.
	inited bool
	failed string
	tried  time.Time
	again  time.Duration // the pause between two attempts
	// names are the UUIDs by index, for devices that are lost.
	names map[int]string
	// told is what was last listed as missing, by device.
	told map[string]string
	// devices are those of the latest reading, for the events.
	devices []device
	// without is why no events come of a device.
	without map[string]error
}

func newReader(d driver) *reader {
	return &reader{d: d, again: initAgain, names: make(map[int]string), told: make(map[string]string)}
}

// open starts the library. It fails with what makes further attempts useless.
func (r *reader) open() error {
	r.tried = time.Now()
	err := r.d.Init()
	for _, final := range []error{errNoLibrary, errNoCgo, errNoSymbol, errNoPermission} {
		if errors.Is(err, final) {
			return err
		}
	}
	r.inited, r.failed = err == nil, ""
	if err != nil {
		r.failed = clean("init: " + err.Error())
	}
	return nil
}

// read makes one reading.
func (r *reader) read() gpu.Sample {
	s := stamp()
	if !r.inited && time.Since(r.tried) >= r.again {
		if err := r.open(); err != nil {
			r.failed = clean(err.Error())
		}
	}
	if !r.inited {
		s.InitFailed = r.failed
		return s
	}
	n, err := r.d.Count()
	if errors.Is(err, errClosed) {
		r.inited, r.failed = false, clean("count: "+err.Error())
	}
	if err != nil {
		note(&s, "count", err)
		return s
	}
	s.Complete = n <= gpu.MaxDevices
	if !s.Complete {
		note(&s, "count", fmt.Errorf("%d devices, %d are read", n, gpu.MaxDevices))
	}
	r.devices = nil
	for i := range min(n, gpu.MaxDevices) {
		r.device(&s, i)
	}
	return s
}

// device reads one device into the sample.
func (r *reader) device(s *gpu.Sample, index int) {
	d, err := r.d.Device(index)
	var uuid string
	if err == nil {
		uuid, err = d.UUID()
	}
	if err != nil {
		lost, reset := errors.Is(err, errLost), errors.Is(err, errReset)
		switch name := r.names[index]; {
		case !lost && !reset:
			s.Complete = false
		case name != "":
			s.Devices = append(s.Devices, gpu.Device{UUID: name, Index: index, Lost: lost, ResetRequired: reset})
		}
		note(s, fmt.Sprintf("device %d", index), err)
		return
	}
	r.names[index] = uuid
	out := gpu.Device{UUID: uuid, Index: index}
	f := facts{s: s, d: &out}
	if pci, err := d.PCI(); f.got("pci", err) {
		out.PCI = pci
	}
	if parts, err := d.Parts(); err == nil || !errors.Is(err, errUnsupported) && f.got(factMIG, err) {
		out.MIG = parts
	}
	if n, err := d.Uncorrected(); f.got(factECC, err) {
		out.Uncorrected = &n
	}
	if pending, failed, err := d.Remapped(); f.got(factRemap, err) {
		out.RemapPending, out.RemapFailed = &pending, &failed
	}
	if pending, err := d.PagesPending(); f.got(factPages, err) {
		out.PagesPending = &pending
	}
	if action, err := d.Recovery(); f.got(factRecovery, err) {
		out.Recovery = &action
	}
	if thermal, brake, err := d.Slowdown(); f.got(factClocks, err) {
		out.Thermal, out.PowerBrake = &thermal, &brake
	}
	if links, err := d.Links(); f.got(factLinks, err) {
		out.Links = &links
	}
	if err := r.without[uuid]; err != nil {
		f.got(factEvents, err)
	}
	if list := strings.Join(f.missing, ","); list != r.told[uuid] && !out.Lost && !out.ResetRequired {
		r.told[uuid], out.Unsupported = list, f.missing
	}
	r.devices = append(r.devices, d)
	s.Devices = append(s.Devices, out)
}

// facts sorts out what the calls for one device return.
type facts struct {
	s       *gpu.Sample
	d       *gpu.Device
	missing []string
}

// got reports whether a call yielded a fact, and keeps why it didn't.
func (f *facts) got(name string, err error) bool {
	switch {
	case err == nil:
		return true
	case errors.Is(err, errLost):
		f.d.Lost = true
	case errors.Is(err, errReset):
		f.d.ResetRequired = true
	case errors.Is(err, errUnsupported), errors.Is(err, errNoPermission), errors.Is(err, errNoSymbol):
		f.missing = append(f.missing, clean(name+": "+err.Error()))
	default:
		note(f.s, f.d.UUID+": "+name, err)
	}
	return false
}

// note adds an error for people, if there is room.
func note(s *gpu.Sample, what string, err error) {
	if len(s.Errors) < gpu.MaxTexts {
		s.Errors = append(s.Errors, clean(what+": "+err.Error()))
	}
}

// clean makes a text fit for a line.
func clean(s string) string {
	s = strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) && c != unicode.ReplacementChar {
			return c
		}
		return '?'
	}, s)
	if len(s) > gpu.MaxText {
		s = strings.ToValidUTF8(s[:gpu.MaxText], "")
	}
	return s
}

// listen begins to wait for events of the devices of the latest reading.
func (r *reader) listen() (events, error) {
	if !r.inited || len(r.devices) == 0 {
		return nil, nil
	}
	e, without, err := r.d.Events(slices.Clone(r.devices))
	r.without = without
	return e, err
}
