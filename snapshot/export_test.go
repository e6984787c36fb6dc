// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot

// SetMaxRecords changes the bound on epoch records without a chain.
func (s *Store) SetMaxRecords(n int) { s.records = n }

// Records is the number of sessions that s remembers.
func (s *Store) Records() (sessions, order int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held), len(s.order)
}
