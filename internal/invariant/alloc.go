// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package invariant

import (
	"fmt"
	"runtime"
)

// AllocError is more memory than allowed.
type AllocError struct {
	Allocated, Limit uint64
}

func (e *AllocError) Error() string {
	return fmt.Sprintf("invariant: %d bytes allocated, limit %d", e.Allocated, e.Limit)
}

// WithinBytes runs f and returns an *AllocError when more than limit bytes were allocated meanwhile, freed or
// not. It counts the whole process: nothing else may run. An allocation counts when it is made, so one that is
// as large as a length field says shows even if its memory is never touched.
func WithinBytes(limit int, f func()) error {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > uint64(limit) {
		return &AllocError{Allocated: got, Limit: uint64(limit)}
	}
	return nil
}
