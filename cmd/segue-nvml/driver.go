// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"time"

	"github.com/seguekv/segue/health/gpu"
)

// Why a call yields nothing. An error that wraps none of them is a failure of that one call.
var (
	errNoLibrary    = errors.New("the library isn't there")
	errNoCgo        = errors.New("built without cgo, which the library needs")
	errUnsupported  = errors.New("not supported")
	errNoPermission = errors.New("no permission")
	errNoSymbol     = errors.New("not in this version of the library")
	errLost         = errors.New("GPU is lost")
	errReset        = errors.New("reset required")
	errTimeout      = errors.New("timeout")
	errClosed       = errors.New("the library isn't initialised")
)

// driver is what is read of the management library. Any call may hang for ever. A call after a failed Init isn't made.
type driver interface {
	// Init loads the library and starts it. It may be called again after a failure.
	Init() error
	// Versions are those of driver and library, empty when unknown.
	Versions() (driver, library string)
	// Capabilities names the facts that the library has calls for.
	Capabilities() []string
	Count() (int, error)
	Device(index int) (device, error)
	// Events waits for XIDs of all the devices; without is why it doesn't for some.
	Events(devices []device) (e events, without map[string]error, err error)
}

// device is one GPU.
type device interface {
	UUID() (string, error)
	PCI() (string, error)
	// Parts are those of a divided device; none of a whole one.
	Parts() ([]gpu.Instance, error)
	// Uncorrected is the volatile count of uncorrectable ECC errors.
	Uncorrected() (uint64, error)
	Remapped() (pending, failed bool, err error)
	PagesPending() (bool, error)
	Recovery() (gpu.Recovery, error)
	Slowdown() (thermal, brake bool, err error)
	// Links has a bit for each NVLink that is up.
	Links() (uint64, error)
}

// events are those of all devices.
type events interface {
	// Wait returns errTimeout if none comes.
	Wait(timeout time.Duration) (event, error)
}

// event is an XID. uuid is empty when the library names no device.
type event struct {
	uuid         string
	xid          uint64
	gpu, compute *uint32
}

// The facts' names, as in a list of capabilities or of what is missing.
const (
	factMIG      = "mig"
	factECC      = "ecc"
	factRemap    = "row_remap"
	factPages    = "retired_pages"
	factRecovery = "recovery_action"
	factClocks   = "clocks"
	factLinks    = "nvlink"
	factEvents   = "xid"
)
