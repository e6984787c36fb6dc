// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/seguekv/segue/agent"
	"github.com/seguekv/segue/health/gpu"
	"github.com/seguekv/segue/health/gpu/supervisor"
)

// What agent.gpu.helper may say besides a path.
const (
	gpuAuto = "auto"
	gpuOff  = "off"
	// gpuHelper is the program that reads GPUs.
	gpuHelper = "segue-nvml"
)

// gpuConfig says how the engine's devices are watched.
type gpuConfig struct {
	// Helper is auto, off, or the path of segue-nvml.
	Helper string `yaml:"helper"`
	// Devices are UUIDs; empty: all of the machine.
	Devices []string `yaml:"devices"`
	// XIDs is a file that classes error codes otherwise, Memory a file for what a restart mustn't forget.
	XIDs   string `yaml:"xids"`
	Memory string `yaml:"memory"`
}

// apply gives the agent what reads and judges devices.
func (c gpuConfig) apply(d *agent.Deps, log *slog.Logger) error {
	if c.Helper == gpuOff {
		return nil
	}
	d.GPU = gpu.Config{Devices: c.Devices, Table: gpu.DefaultTable()}
	if c.XIDs != "" {
		file, err := os.ReadFile(c.XIDs)
		if err == nil {
			d.GPU.Table, err = d.GPU.Table.Override(file)
		}
		if err != nil {
			return fmt.Errorf("agent.gpu.xids: %w", err)
		}
	}
	if c.Memory != "" {
		if err := readMemory(c.Memory, &d.GPU.Memory); err != nil {
			return fmt.Errorf("agent.gpu.memory: %w; remove the file if what it says is over", err)
		}
		d.Remember = func(m gpu.Memory) {
			if err := writeMemory(c.Memory, m); err != nil {
				log.Error("what is held against a GPU can't be kept", "err", err)
			}
		}
	}
	path, err := c.find()
	if err != nil {
		d.Devices = unknownDevices(err.Error())
		return nil
	}
	d.Devices = &helperDevices{path: path, log: log}
	return nil
}

// find returns the helper's path.
func (c gpuConfig) find() (string, error) {
	if c.Helper != gpuAuto {
		return exec.LookPath(c.Helper)
	}
	if self, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), gpuHelper)); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(gpuHelper)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside segue nor on PATH", gpuHelper)
	}
	return path, nil
}

// unknownDevices is why nothing is known of any device.
type unknownDevices string

// Run implements agent.Devices.
func (u unknownDevices) Run(ctx context.Context, report func(gpu.Report)) error {
	report(gpu.Report{At: time.Now(), Unavailable: string(u)})
	<-ctx.Done()
	return nil
}

// helperDevices are read by a helper.
type helperDevices struct {
	path string
	log  *slog.Logger
}

// Run implements agent.Devices.
func (h *helperDevices) Run(ctx context.Context, report func(gpu.Report)) error {
	s, err := supervisor.New(supervisor.Config{Command: []string{h.path}, Report: report, Log: h.log})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// maxMemory bounds the file of what is held against devices.
const maxMemory = 1 << 20

func readMemory(path string, m *gpu.Memory) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Size() > maxMemory:
		return fmt.Errorf("%s has %d bytes, more than %d", path, info.Size(), maxMemory)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, m)
}

// writeMemory replaces the file at once: it is whole after a crash.
func writeMemory(path string, m gpu.Memory) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
