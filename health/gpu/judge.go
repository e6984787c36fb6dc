// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package gpu

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seguekv/segue/health"
)

// Config says what a Judge judges for.
type Config struct {
	// Devices are the UUIDs of the engine's devices, whole ones ("GPU-…") or parts of one ("MIG-…"). Without any it is
	// all devices of the machine.
	Devices []string
	// MultiGPU: the engine can't do without a link between devices. More than one of Devices implies it.
	MultiGPU bool
	// Table classes XIDs.
	Table Table
	// Memory is what an earlier Judge of the same engine returned.
	Memory Memory
}

// Memory is what a Judge holds against devices for as long as nobody clears it. It is meant for a file.
type Memory struct {
	// Boot is the life of the machine in which it was found.
	Boot    string `json:"boot,omitempty"`
	Lasting []Mark `json:"lasting,omitempty"`
}

// Mark is one lasting finding, Dead or Evacuate.
type Mark struct {
	UUID    string         `json:"uuid"`
	Verdict health.Verdict `json:"verdict"`
	Reason  health.Reason  `json:"reason"`
	Detail  string         `json:"detail,omitempty"`
	At      time.Time      `json:"at"`
}

const (
	maxMarks   = 16 // of one device
	maxExcuses = 16
)

// Judge turns Reports into what they mean for one engine. It belongs to one goroutine at a time.
type Judge struct {
	table  Table
	wanted []string
	multi  bool
	boot   string
	// devices are those of the engine that were seen or marked, in the order of appearance.
	devices []*device
	// whole: all devices of the machine are the engine's.
	whole bool
	// initFailed is the library's last word on why it doesn't start.
	initFailed string
	excuses    []span
	// last is the At of the newest sample.
	last time.Time
}

// span is a time in which the caller itself ended or started the engine.
type span struct{ from, until time.Time }

// NewJudge checks the configuration.
func NewJudge(cfg Config) (*Judge, error) {
	if len(cfg.Devices) > MaxDevices*MaxInstances {
		return nil, fmt.Errorf("gpu: %d devices, at most %d are possible", len(cfg.Devices), MaxDevices*MaxInstances)
	}
	for i, id := range cfg.Devices {
		switch {
		case !strings.HasPrefix(id, "GPU-") && !strings.HasPrefix(id, "MIG-") || !plain(id):
			return nil, fmt.Errorf("gpu: device %q is no UUID; nvidia-smi -L lists them, as GPU-… or MIG-…", id)
		case slices.Contains(cfg.Devices[:i], id):
			return nil, fmt.Errorf("gpu: device %s is named twice", id)
		}
	}
	if len(cfg.Table.rules) == 0 {
		return nil, errors.New("gpu: the xid table is empty, begin with DefaultTable")
	}
	j := &Judge{
		table: cfg.Table, wanted: slices.Clone(cfg.Devices), whole: len(cfg.Devices) == 0,
		multi: cfg.MultiGPU || len(cfg.Devices) > 1,
	}
	if err := j.recall(cfg.Memory); err != nil {
		return nil, err
	}
	return j, nil
}

// recall takes over what an earlier one held.
func (j *Judge) recall(m Memory) error {
	if !plain(m.Boot) {
		return fmt.Errorf("gpu: boot id %q in the memory isn't one", m.Boot)
	}
	j.boot = m.Boot
	for _, k := range m.Lasting {
		lasting := k.Verdict == health.Dead || k.Verdict == health.Evacuate
		if k.UUID == "" || !plain(k.UUID) || !lasting || !readable(string(k.Reason)) || !readable(k.Detail) {
			return fmt.Errorf("gpu: the memory's mark of device %.99q isn't one", k.UUID)
		}
		if len(j.wanted) > 0 && !slices.Contains(j.wanted, k.UUID) && !slices.ContainsFunc(j.wanted, isPart) {
			continue // of a device that was the engine's once
		}
		d := j.device(k.UUID)
		if d == nil {
			return fmt.Errorf("gpu: more than %d devices in the memory", MaxDevices)
		}
		d.recall(k)
		d.changed = false
	}
	return nil
}

func isPart(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }

// Memory is what the next Judge of the engine has to know. Result.Remember says when it has changed.
func (j *Judge) Memory() Memory {
	m := Memory{Boot: j.boot}
	for _, d := range j.devices {
		for _, k := range d.marks {
			m.Lasting = append(m.Lasting, k.Mark)
		}
	}
	return m
}

// Started says that the engine's process began then: memory errors before that aren't its own. It may be said a few
// samples late.
func (j *Judge) Started(at time.Time) {
	for _, d := range j.devices {
		d.rebase(at)
	}
}

// Ours says that the caller itself cancelled, drained, ended or started the engine between the two times. What a
// driver reports of a process then is excused; what it reports of the device isn't. The latest 16 are kept.
func (j *Judge) Ours(from, until time.Time) {
	j.excuses = append(j.excuses, span{from, until})
	if len(j.excuses) > maxExcuses {
		j.excuses = slices.Delete(j.excuses, 0, 1)
	}
}

// Clear is an operator's word that a device is well again, or that all are if uuid is empty. It returns the devices
// that had a lasting verdict. What is still so is found again in the next sample.
func (j *Judge) Clear(uuid string) []string {
	var out []string
	for _, d := range j.devices {
		if uuid == "" || d.uuid == uuid {
			d.release(time.Time{})
			d.remapPending, d.pagesPending, d.recovery = false, false, ""
			out = j.drain(d, out)
		}
	}
	return out
}

// drain adds a device to the list if its lasting verdict ended.
func (j *Judge) drain(d *device, out []string) []string {
	if d.cleared && len(d.marks) == 0 {
		out = append(out, d.uuid)
	}
	d.cleared = false
	return out
}

// Take takes in the next Report.
func (j *Judge) Take(r Report) Result {
	out := Result{Assessment: health.Assessment{At: r.At}}
	switch {
	case r.Sample != nil:
		j.sample(&out, *r.Sample)
	case r.Hello != nil:
		j.hello(&out, *r.Hello)
	default:
		j.initFailed = ""
		out.Unavailable = r.Unavailable
		if out.Unavailable == "" {
			out.Unavailable = "nothing was read"
		}
	}
	j.conclude(&out)
	return out
}

// hello notices another life of the machine.
func (j *Judge) hello(out *Result, h Hello) {
	if h.Boot != "" && h.Boot != j.boot {
		if j.boot != "" {
			out.Cleared = j.Clear("")
			j.devices, j.last = nil, time.Time{}
		}
		j.boot, out.Remember = h.Boot, true
	}
	j.initFailed = ""
	out.Unavailable = h.Unavailable
	if out.Unavailable == "" {
		out.Unavailable = "no reading yet"
	}
}

// sample takes in a reading. Of one that is older than another the events count only.
func (j *Judge) sample(out *Result, s Sample) {
	reading := s.Reading() && (j.last.IsZero() || s.At.After(j.last))
	if reading && s.InitFailed == "" {
		j.whole = true
		for _, r := range s.Devices {
			if j.uses(r) {
				j.device(r.UUID)
			} else {
				j.whole = false
			}
		}
	}
	for _, e := range s.Events {
		j.event(out, e)
	}
	if s.StalledMS > 0 {
		out.Unavailable = fmt.Sprintf("a reading has been under way for %v", time.Duration(s.StalledMS)*time.Millisecond)
	}
	if !reading {
		return
	}
	j.last, j.initFailed = s.At, s.InitFailed
	if s.InitFailed != "" {
		return
	}
	for _, d := range j.devices {
		d.fresh = false
		i := slices.IndexFunc(s.Devices, func(r Device) bool { return r.UUID == d.uuid })
		switch {
		case i >= 0:
			if t := d.read(s.At, s.Devices[i], j.wanted, j.multi); t != nil {
				out.Taints = append(out.Taints, *t)
			}
		case s.Complete:
			d.absent(s.At, ReasonGone, "it was there and is listed no more")
		}
		out.Cleared = j.drain(d, out.Cleared)
	}
}

// uses reports whether a device, or a part of it, is the engine's. One that was stays so, though its part be gone.
func (j *Judge) uses(r Device) bool {
	if len(j.wanted) == 0 || slices.Contains(j.wanted, r.UUID) {
		return true
	}
	return slices.ContainsFunc(r.MIG, func(i Instance) bool { return slices.Contains(j.wanted, i.UUID) }) ||
		slices.ContainsFunc(j.devices, func(d *device) bool { return d.uuid == r.UUID })
}

// device finds one, or adds it; nil if there are too many.
func (j *Judge) device(uuid string) *device {
	for _, d := range j.devices {
		if d.uuid == uuid {
			return d
		}
	}
	if len(j.devices) >= MaxDevices {
		return nil
	}
	d := &device{uuid: uuid}
	j.devices = append(j.devices, d)
	return d
}
