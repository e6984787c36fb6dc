// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package reload

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Interval is the shortest time between two looks at the files.
const Interval = time.Second

// Options of a Value. The zero value is the machine's clock and no reports.
type Options struct {
	// Now is the clock; nil for time.Now.
	Now func() time.Time
	// Report hears nil when changed files are in force, and what is wrong when they are not and the value before
	// them stays: once per distinct error. It is called from the goroutine that looked, one call at a time, and has
	// to return soon; it must not call the Value.
	Report func(err error)
}

// Value is what files hold. Its methods may be called concurrently.
type Value[T any] struct {
	files []string
	read  func() (T, error)
	opt   Options
	now   atomic.Pointer[T]

	mu     sync.Mutex // held while looking
	looked time.Time
	stamps []stamp
	failed string // the last look's error, "" if the files are in force
}

// New reads the value for the first time. read is called again, one call at a time, when a file has changed, and at
// each look while its last result was an error.
func New[T any](files []string, read func() (T, error), opt Options) (*Value[T], error) {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Report == nil {
		opt.Report = func(error) {}
	}
	v := &Value[T]{files: files, read: read, opt: opt, looked: opt.Now()}
	v.stamps = v.stamp()
	x, err := read()
	if err != nil {
		return nil, err
	}
	v.now.Store(&x)
	return v, nil
}

// Get returns the value in force. It looks at the files if nobody has for Interval; of concurrent callers one looks,
// and the others go on with the value in force.
func (v *Value[T]) Get() T {
	if v.mu.TryLock() {
		if at := v.opt.Now(); at.Sub(v.looked) >= Interval || at.Before(v.looked) {
			_ = v.look(at)
		}
		v.mu.Unlock()
	}
	return *v.now.Load()
}

// Reload looks at the files now. The error is what keeps them from being in force.
func (v *Value[T]) Reload() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.look(v.opt.Now())
}

// Run looks at the files every Interval until ctx ends, so that a change is in force, or reported, without anybody
// asking. It returns nil.
func (v *Value[T]) Run(ctx context.Context) error {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			v.Get()
		}
	}
}

func (v *Value[T]) look(at time.Time) error {
	v.looked = at
	// Before reading: a change during the read differs from these and is found by the next look.
	stamps := v.stamp()
	changed := !slices.EqualFunc(stamps, v.stamps, stamp.same)
	if !changed && v.failed == "" {
		return nil
	}
	v.stamps = stamps
	x, err := v.read()
	if err != nil {
		if text := err.Error(); changed || text != v.failed {
			v.failed = text
			v.opt.Report(err)
		}
		return err
	}
	v.failed = ""
	v.now.Store(&x)
	v.opt.Report(nil)
	return nil
}

func (v *Value[T]) stamp() []stamp {
	out := make([]stamp, len(v.files))
	for i, f := range v.files {
		out[i] = stampOf(f)
	}
	return out
}
