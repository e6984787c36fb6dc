// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package faultnet

// Stats counts what happened in one direction.
type Stats struct {
	// Dials counts connections tried, Refused those that nobody listened for, Hung those that met a path nothing got
	// through.
	Dials, Refused, Hung int
	// Bytes counts what was written, Read what was read, Held what a cut or a dead machine held back.
	Bytes, Read, Held int64
	// Frozen counts operations that the first host couldn't do because it was frozen.
	Frozen int
	// Resets counts connections that were reset.
	Resets int
}

// Stats returns the counts of what went from one host to another; an empty name is every host.
func (n *Net) Stats(from, to string) Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	var s Stats
	for k, x := range n.stats {
		if (from == "" || k[0] == from) && (to == "" || k[1] == to) {
			s.Dials += x.Dials
			s.Refused += x.Refused
			s.Hung += x.Hung
			s.Bytes += x.Bytes
			s.Read += x.Read
			s.Held += x.Held
			s.Frozen += x.Frozen
			s.Resets += x.Resets
		}
	}
	return s
}

// count returns a direction's counters. Called with mu held.
func (n *Net) count(from, to string) *Stats {
	k := [2]string{from, to}
	s := n.stats[k]
	if s == nil {
		s = &Stats{}
		n.stats[k] = s
	}
	return s
}
