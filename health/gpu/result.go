// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package gpu

import (
	"time"

	"github.com/seguekv/segue/health"
)

// The reasons of a Judge.
const (
	ReasonOK            health.Reason = "gpu_ok"
	ReasonUnavailable   health.Reason = "gpu_unavailable"     // nothing is known of any device
	ReasonNoFacts       health.Reason = "gpu_no_facts"        // nothing can be read of this one
	ReasonUnlisted      health.Reason = "gpu_unlisted"        // a device of the engine's was never seen
	ReasonInitFailed    health.Reason = "gpu_init_failed"     // the library is there and doesn't start
	ReasonLost          health.Reason = "gpu_lost"            // the driver says so
	ReasonResetRequired health.Reason = "gpu_reset_required"  // the driver says so
	ReasonGone          health.Reason = "gpu_gone"            // it was there
	ReasonRecovery      health.Reason = "gpu_recovery_action" // the driver asks for one
	ReasonECC           health.Reason = "gpu_ecc_uncorrected" // it rose since the engine started
	ReasonRemapPending  health.Reason = "gpu_remap_pending"
	ReasonRemapFailed   health.Reason = "gpu_remap_failed"
	ReasonPagesPending  health.Reason = "gpu_pages_pending"
	ReasonThermal       health.Reason = "gpu_thermal_slowdown"
	ReasonPowerBrake    health.Reason = "gpu_power_brake"
	ReasonNVLink        health.Reason = "gpu_nvlink_down"
	ReasonXIDApp        health.Reason = "gpu_xid_app"
	ReasonXIDWatch      health.Reason = "gpu_xid_watch"
	ReasonXIDEvacuate   health.Reason = "gpu_xid_evacuate"
	ReasonXIDDead       health.Reason = "gpu_xid_dead"
	ReasonXIDAgain      health.Reason = "gpu_xid_again" // a second one too soon after another
)

// Result is what a Report means for one engine.
type Result struct {
	// Assessment is that of the engine's devices, for health.Combine: Reachable when they are well.
	health.Assessment
	// Unavailable says why nothing is known of the devices, "" when something is. A verdict that silence doesn't clear
	// stays beside it.
	Unavailable string
	// Taints come once per engine process and device.
	Taints []Taint
	// Demand is when the driver last reported that the engine's process may have lost its device, of this report; zero
	// for not. It goes to Watcher.Demand.
	Demand time.Time
	// XIDs are those of the engine's devices in this report, for counting.
	XIDs []XID
	// Cleared lists devices whose lasting verdict ended with this report.
	Cleared []string
	// Remember: Judge.Memory has changed.
	Remember bool
}

// Taint says that memory of a device was damaged, some time after Clean and not later than Seen: boundaries captured
// after Clean cover nothing, and nothing may be published once Seen.
type Taint struct {
	UUID string
	// Clean is when the device was last known to be clean; zero when it never was: then none covers anything.
	Clean, Seen time.Time
}

// XID is an event as the table classes it for this engine.
type XID struct {
	Event
	Class Class
	// Excused: it fell into a time in which the caller itself ended or started the engine.
	Excused bool
}
