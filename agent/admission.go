// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import "sync"

// admission counts the contexts in use. New sessions get contexts - reserved of them, takeovers all.
type admission struct {
	mu   sync.Mutex
	used int
}

// acquire takes a slot if fewer than limit are in use. The returned function gives it back, once.
func (a *admission) acquire(limit int) (release func(), ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used >= limit {
		return nil, false
	}
	a.used++
	var once sync.Once
	return func() {
		once.Do(func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.used--
		})
	}, true
}

func (a *admission) inUse() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used
}
