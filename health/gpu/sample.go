// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package gpu

import "time"

// Protocol is the version of the lines. A Hello of another one is refused.
const Protocol = 1

// Limits of what a line may hold.
const (
	MaxLine      = 256 << 10 // bytes, with the line end
	MaxDevices   = 64
	MaxInstances = 16 // of one device
	MaxEvents    = 256
	MaxTexts     = 32  // in a list of texts
	MaxText      = 512 // bytes of one text
)

// Hello is the first line.
type Hello struct {
	// Protocol is that of the program.
	Protocol int `json:"protocol"`
	// Version is the program's.
	Version string `json:"version,omitempty"`
	// Unavailable says why no sample follows: the library is absent, the program can't call it. Empty otherwise.
	Unavailable string `json:"unavailable,omitempty"`
	// Driver and Library are versions, empty when unknown.
	Driver  string `json:"driver,omitempty"`
	Library string `json:"library,omitempty"`
	// Boot names the life of the machine; empty when unknown.
	Boot string `json:"boot,omitempty"`
	// IntervalMS is the pause between two readings in milliseconds.
	IntervalMS int64 `json:"interval_ms,omitempty"`
	// Capabilities names what the library offers, supported by the devices or not.
	Capabilities []string `json:"capabilities,omitempty"`
}

// Sample is one reading of all devices, or events, or the word that a reading doesn't end.
type Sample struct {
	// At is when the reading began. Events of a sample with devices came before that.
	At time.Time `json:"at"`
	// MonotonicNS is the same moment on the machine's CLOCK_MONOTONIC, in nanoseconds: other processes of the machine
	// can place it in time though the wall clock is set meanwhile.
	MonotonicNS int64 `json:"monotonic_ns"`
	// InitFailed says why the library refused to start though it is there. Then nothing is known of the devices.
	InitFailed string `json:"init_failed,omitempty"`
	// StalledMS is for how many milliseconds a reading has been under way without an end. Such a sample has events only.
	StalledMS int64 `json:"stalled_ms,omitempty"`
	// Complete: all devices of the machine are listed, so that one that isn't is gone.
	Complete bool     `json:"complete,omitempty"`
	Devices  []Device `json:"devices,omitempty"`
	Events   []Event  `json:"events,omitempty"`
	// Errors are readings that failed, for people.
	Errors []string `json:"errors,omitempty"`
}

// Reading reports whether the sample is the end of a reading: not one with events only, nor of a stalled one.
func (s *Sample) Reading() bool {
	return s.StalledMS == 0 && (len(s.Events) == 0 || s.Complete || len(s.Devices) > 0 || s.InitFailed != "")
}

// Device is what was read of one device. What is nil wasn't read.
type Device struct {
	UUID  string `json:"uuid"`
	Index int    `json:"index"`
	PCI   string `json:"pci,omitempty"`
	// MIG lists the parts of a device that is divided.
	MIG []Instance `json:"mig,omitempty"`
	// Lost and ResetRequired are the driver's own words.
	Lost          bool `json:"lost,omitempty"`
	ResetRequired bool `json:"reset_required,omitempty"`
	// Uncorrected counts uncorrectable ECC errors since the driver was loaded or the device reset.
	Uncorrected *uint64 `json:"uncorrected,omitempty"`
	// RemapPending and RemapFailed are those of memory rows, PagesPending that of retired pages.
	RemapPending *bool `json:"remap_pending,omitempty"`
	RemapFailed  *bool `json:"remap_failed,omitempty"`
	PagesPending *bool `json:"pages_pending,omitempty"`
	// Recovery is what the driver asks for.
	Recovery *Recovery `json:"recovery,omitempty"`
	// Thermal and PowerBrake: the hardware itself slows its clocks down, by half or more.
	Thermal    *bool `json:"thermal,omitempty"`
	PowerBrake *bool `json:"power_brake,omitempty"`
	// Links has a bit for each NVLink that is up.
	Links *uint64 `json:"links,omitempty"`
	// Unsupported lists what can't be read here, in the first sample and in one where the list has changed.
	Unsupported []string `json:"unsupported,omitempty"`
}

// Instance is a part of a divided device.
type Instance struct {
	UUID    string `json:"uuid"`
	GPU     uint32 `json:"gpu_instance"`
	Compute uint32 `json:"compute_instance"`
}

// Event is one XID.
type Event struct {
	At          time.Time `json:"at"`
	MonotonicNS int64     `json:"monotonic_ns"`
	// UUID is that of the whole device; empty when the driver named none.
	UUID string `json:"uuid,omitempty"`
	XID  int    `json:"xid"`
	// GPU and Compute name the part of a divided device that it came from; nil for the whole.
	GPU     *uint32 `json:"gpu_instance,omitempty"`
	Compute *uint32 `json:"compute_instance,omitempty"`
}

// Recovery is what a driver asks for.
type Recovery string

// The recovery actions of NVML. RecoveryOther stands for one that is newer than this list.
const (
	RecoveryNone          Recovery = "none"
	RecoveryReset         Recovery = "gpu_reset"
	RecoveryReboot        Recovery = "node_reboot"
	RecoveryDrain         Recovery = "drain_p2p"
	RecoveryDrainAndReset Recovery = "drain_and_reset"
	RecoveryIMEX          Recovery = "recover_imex_domain"
	RecoveryBusReset      Recovery = "bus_reset"
	RecoverySystemReboot  Recovery = "system_reboot"
	RecoveryOther         Recovery = "other"
)

// Report is what is known of the program at a time: exactly one of Hello, Sample and Unavailable is set.
type Report struct {
	At     time.Time
	Hello  *Hello
	Sample *Sample
	// Unavailable says why nothing is known.
	Unavailable string
}
