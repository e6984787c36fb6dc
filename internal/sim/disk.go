// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/seguekv/segue/router/journal"
)

var (
	errDisk = errors.New("sim: the disk fails")
	errFull = fmt.Errorf("sim: the disk is full: %w", syscall.ENOSPC)
)

// Disk is what the router's processes keep their journal on: each process finds what those before it have committed.
type Disk struct {
	// see is called at each commit's moments, on the journal's goroutine.
	see func(Moment)

	mu      sync.Mutex
	present *journal.Memory
	// failing is what commits fail with. torn: those that fail are applied all the same.
	failing      error
	torn         bool
	delay        time.Duration
	failed, slow int
}

func newDisk(see func(Moment)) *Disk { return &Disk{see: see, present: journal.NewMemory()} }

// open is the storage of a new process.
func (d *Disk) open() journal.Storage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &mount{Memory: d.present, disk: d}
}

// Crash takes the disk away from the present process, also from one that is only starting.
func (d *Disk) Crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.present = d.present.Crash()
}

// Fail makes every commit fail; torn ones have their effect nevertheless.
func (d *Disk) Fail(on, torn bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failing, d.torn = nil, torn; on {
		d.failing = errDisk
	}
}

// Fill makes every commit fail for want of room, until Fail ends it.
func (d *Disk) Fill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failing, d.torn = errFull, false
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

// dead reports that the process has ended.
func (m *mount) dead() bool {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return m.disk.present != m.Memory
}

// Commit implements journal.Storage.
func (m *mount) Commit(ops []journal.Op) error {
	if m.dead() {
		return journal.ErrClosed
	}
	d := m.disk
	d.see(Moment{Point: PointCommit, Ops: ops})
	d.mu.Lock()
	delay, failing, torn := d.delay, d.failing, d.torn
	if delay > 0 {
		d.slow++
	}
	if failing != nil {
		d.failed++
	}
	d.mu.Unlock()
	time.Sleep(delay) // virtual
	if failing != nil && !torn {
		return failing
	}
	if err := m.Memory.Commit(ops); err != nil {
		return err
	}
	d.see(Moment{Point: PointDurable, Ops: ops})
	if m.dead() {
		return journal.ErrClosed // nobody is told
	}
	return failing
}
