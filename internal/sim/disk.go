// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"errors"
	"sync"
	"time"

	"github.com/seguekv/segue/router/journal"
)

var errDisk = errors.New("sim: the disk fails")

// Disk is what the router's processes keep their journal on: each process finds what those before it have committed.
type Disk struct {
	mu      sync.Mutex
	present *journal.Memory
	// torn: commits that fail are applied all the same.
	failing, torn bool
	delay         time.Duration
	failed, slow  int
}

func newDisk() *Disk { return &Disk{present: journal.NewMemory()} }

// open is the storage of a new process.
func (d *Disk) open() journal.Storage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &mount{Memory: d.present, disk: d}
}

// crash takes the disk away from the present process.
func (d *Disk) crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.present = d.present.Crash()
}

// Fail makes every commit fail; torn ones have their effect nevertheless.
func (d *Disk) Fail(on, torn bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failing, d.torn = on, torn
}

// Slow makes every commit take that long.
func (d *Disk) Slow(delay time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.delay = delay
}

// Met counts the commits that have failed and those that were slow.
func (d *Disk) Met() (failed, slow int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed, d.slow
}

// mount is the disk as one process sees it.
type mount struct {
	*journal.Memory
	disk *Disk
}

// Commit implements journal.Storage.
func (m *mount) Commit(ops []journal.Op) error {
	d := m.disk
	d.mu.Lock()
	delay, failing, torn := d.delay, d.failing, d.torn
	if delay > 0 {
		d.slow++
	}
	if failing {
		d.failed++
	}
	d.mu.Unlock()
	time.Sleep(delay) // virtual
	if failing && !torn {
		return errDisk
	}
	if err := m.Memory.Commit(ops); err != nil || !failing {
		return err
	}
	return errDisk
}
