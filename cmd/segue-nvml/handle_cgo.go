// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

//go:build cgo && linux

package main

import (
	"encoding/binary"
	"errors"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/seguekv/segue/health/gpu"
)

// handle is one device of a library.
type handle struct {
	l *library
	d nvml.Device
}

func (h *handle) UUID() (string, error) {
	if err := h.l.can("uuid"); err != nil {
		return "", err
	}
	uuid, ret := h.d.GetUUID()
	if err := outcome(ret); err != nil {
		return "", err
	}
	if uuid == "" {
		return "", errors.New("a device without a UUID")
	}
	h.l.named(h.d, uuid)
	return uuid, nil
}

func (h *handle) PCI() (string, error) {
	if err := h.l.can("pci"); err != nil {
		return "", err
	}
	info, ret := h.d.GetPciInfo()
	var id []byte
	for _, c := range info.BusId {
		if c == 0 {
			break
		}
		id = append(id, byte(c))
	}
	return string(id), outcome(ret)
}

func (h *handle) Parts() ([]gpu.Instance, error) {
	if err := h.l.can(factMIG); err != nil {
		return nil, err
	}
	mode, _, ret := h.d.GetMigMode()
	if err := outcome(ret); err != nil || mode != nvml.DEVICE_MIG_ENABLE {
		return nil, err
	}
	n, ret := h.d.GetMaxMigDeviceCount()
	if err := outcome(ret); err != nil {
		return nil, err
	}
	var out []gpu.Instance
	for i := range min(n, gpu.MaxInstances) {
		part, ret := h.d.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue // there may be fewer than the most
		}
		if err := outcome(ret); err != nil {
			return nil, err
		}
		uuid, ret := part.GetUUID()
		if err := outcome(ret); err != nil {
			return nil, err
		}
		g, ret := part.GetGpuInstanceId()
		c, ret2 := part.GetComputeInstanceId()
		if err := errors.Join(outcome(ret), outcome(ret2)); err != nil {
			return nil, err
		}
		out = append(out, gpu.Instance{UUID: uuid, GPU: uint32(g), Compute: uint32(c)})
	}
	return out, nil
}

func (h *handle) Uncorrected() (uint64, error) {
	if err := h.l.can(factECC); err != nil {
		return 0, err
	}
	n, ret := h.d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	return n, outcome(ret)
}

func (h *handle) Remapped() (pending, failed bool, err error) {
	if err := h.l.can(factRemap); err != nil {
		return false, false, err
	}
	_, _, pending, failed, ret := h.d.GetRemappedRows()
	return pending, failed, outcome(ret)
}

func (h *handle) PagesPending() (bool, error) {
	if err := h.l.can(factPages); err != nil {
		return false, err
	}
	state, ret := h.d.GetRetiredPagesPendingStatus()
	return state == nvml.FEATURE_ENABLED, outcome(ret)
}

func (h *handle) Recovery() (gpu.Recovery, error) {
	if err := h.l.can(factRecovery); err != nil {
		return "", err
	}
	field := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if err := outcome(h.d.GetFieldValues(field)); err != nil {
		return "", err
	}
	switch ret := nvml.Return(field[0].NvmlReturn); ret {
	case nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NO_DATA: // a driver older than the field
		return "", errUnsupported
	default:
		if err := outcome(ret); err != nil {
			return "", err
		}
	}
	action := uint64(binary.NativeEndian.Uint32(field[0].Value[:]))
	if t := nvml.ValueType(field[0].ValueType); t == nvml.VALUE_TYPE_UNSIGNED_LONG || t == nvml.VALUE_TYPE_UNSIGNED_LONG_LONG {
		action = binary.NativeEndian.Uint64(field[0].Value[:])
	}
	known := [...]gpu.Recovery{
		nvml.GPU_RECOVERY_ACTION_NONE:                gpu.RecoveryNone,
		nvml.GPU_RECOVERY_ACTION_GPU_RESET:           gpu.RecoveryReset,
		nvml.GPU_RECOVERY_ACTION_NODE_REBOOT:         gpu.RecoveryReboot,
		nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:           gpu.RecoveryDrain,
		nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:     gpu.RecoveryDrainAndReset,
		nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: gpu.RecoveryIMEX,
		nvml.GPU_RECOVERY_ACTION_BUS_RESET:           gpu.RecoveryBusReset,
		nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:       gpu.RecoverySystemReboot,
	}
	if action >= uint64(len(known)) {
		return gpu.RecoveryOther, nil
	}
	return known[action], nil
}

func (h *handle) Slowdown() (thermal, brake bool, err error) {
	if err := h.l.can(factClocks); err != nil {
		return false, false, err
	}
	read := h.d.GetCurrentClocksThrottleReasons
	if h.l.has("nvmlDeviceGetCurrentClocksEventReasons") {
		read = h.d.GetCurrentClocksEventReasons
	}
	reasons, ret := read()
	return reasons&nvml.ClocksThrottleReasonHwThermalSlowdown != 0, reasons&nvml.ClocksThrottleReasonHwPowerBrakeSlowdown != 0, outcome(ret)
}

func (h *handle) Links() (uint64, error) {
	if err := h.l.can(factLinks); err != nil {
		return 0, err
	}
	var up uint64
	err := errUnsupported
	for i := range min(nvml.NVLINK_MAX_LINKS, 64) {
		state, ret := h.d.GetNvLinkState(i)
		switch ret {
		case nvml.SUCCESS:
			err = nil
			if state == nvml.FEATURE_ENABLED {
				up |= 1 << i
			}
		case nvml.ERROR_NOT_SUPPORTED:
		case nvml.ERROR_INVALID_ARGUMENT: // no such link, and none after it
			return up, err
		default:
			return 0, outcome(ret)
		}
	}
	return up, err
}
