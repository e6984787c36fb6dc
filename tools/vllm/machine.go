// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

const (
	// diskNeeded is what making the environment takes at most, downloads included; it keeps 3 GB.
	diskNeeded = 7e9
	// memoryNeeded is what two servers take, and what is beside them.
	memoryNeeded = 8e9
)

// errNoRoom: the machine is too small, or of another kind.
var errNoRoom = errors.New("no room for vLLM")

// findPython sets the Python that the environment is made with: one of the versions that the list of packages is for.
func (e *environment) findPython(ctx context.Context) error {
	var found []string
	for _, name := range []string{"python3", "python3.11", "python3.12", "python3.13"} {
		out, err := exec.CommandContext(ctx, name, "-c", "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_platform())").Output()
		if err != nil {
			continue
		}
		version := strings.TrimSpace(string(out))
		for _, v := range pythons() {
			if version == v+" linux-x86_64" {
				e.python, e.version = name, v
				return nil
			}
		}
		found = append(found, version)
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return fmt.Errorf("%w: the pinned packages are for linux/amd64, this is %s/%s", errNoRoom, runtime.GOOS, runtime.GOARCH)
	}
	return fmt.Errorf("Python %s is needed, found %q; install line (Debian 12, as root): apt-get update && apt-get install -y python3 python3-venv python3-pip",
		strings.Join(pythons(), " or "), found)
}

// check reports in one error all that the machine lacks.
func (e *environment) check(ctx context.Context) error {
	var lacks, packages []string
	for program, from := range map[string]string{"gcc": "gcc libc6-dev", "readelf": "binutils", "nm": "binutils"} {
		if _, err := exec.LookPath(program); err != nil {
			lacks, packages = append(lacks, program), append(packages, from)
		}
	}
	if err := exec.CommandContext(ctx, e.python, "-c", "import venv, pip").Run(); err != nil {
		lacks, packages = append(lacks, "modules venv and pip of "+e.python), append(packages, "python3-venv python3-pip")
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(lacks) > 0 {
		return fmt.Errorf("this machine lacks %s; install line (Debian 12, as root): apt-get update && apt-get install -y %s",
			strings.Join(lacks, ", "), strings.Join(packages, " "))
	}
	return errors.Join(e.roomOnDisk(), roomInMemory())
}

func (e *environment) roomOnDisk() error {
	dir := e.store.Dir
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("look for free space at %s: %w", dir, err)
	}
	if free := float64(fs.Bavail) * float64(fs.Bsize); free < diskNeeded {
		return fmt.Errorf("%w: making the environment takes %.0f GB of disk, %.1f GB are free at %s (set SEGUE_CACHE to another folder)", errNoRoom, diskNeeded/1e9, free/1e9, dir)
	}
	return nil
}

// roomInMemory looks at what there is, not at what is free now: tests look at that.
func roomInMemory() error {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return fmt.Errorf("look for memory: %w", err)
	}
	if all := float64(info.Totalram) * float64(info.Unit); all < memoryNeeded {
		return fmt.Errorf("%w: two servers take %.0f GB of memory, this machine has %.1f GB", errNoRoom, memoryNeeded/1e9, all/1e9)
	}
	return nil
}
