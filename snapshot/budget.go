// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot

import (
	"fmt"
	"sync"
)

// Budget bounds the memory of all rows on a node. Safe for concurrent use.
type Budget struct {
	mu    sync.Mutex
	limit int64
	used  int64
}

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Reserve takes n bytes or returns ErrStoreFull.
func (b *Budget) Reserve(n int64) (*Reservation, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n < 0 || n > b.limit-b.used {
		return nil, fmt.Errorf("%w: need %d bytes, %d of %d in use: raise agent.snapshot_memory", ErrStoreFull, n, b.used, b.limit)
	}
	b.used += n
	return &Reservation{b: b, n: n}, nil
}

// Used returns the bytes reserved, and the limit.
func (b *Budget) Used() (used, limit int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used, b.limit
}

// Reservation is a part of a budget.
type Reservation struct {
	b    *Budget
	n    int64
	once sync.Once
}

// Release gives the bytes back. Idempotent.
func (r *Reservation) Release() {
	r.once.Do(func() {
		r.b.mu.Lock()
		defer r.b.mu.Unlock()
		r.b.used -= r.n
	})
}
