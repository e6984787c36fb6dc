// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package faultnet

import (
	"slices"
	"time"
)

// Link says how bytes travel in one direction. The zero value is a perfect link.
type Link struct {
	// Latency is how long a byte takes, Jitter the most that is added to it. Order is kept.
	Latency, Jitter time.Duration
	// BytesPerSecond limits each connection; 0 doesn't.
	BytesPerSecond int
	// Cut holds everything back, ends of connections included, until the link changes.
	Cut bool
	// TruncateAfter resets, when it isn't 0, the connection over which the last of so many bytes passes. The
	// bytes count over all connections that the rule covers. It happens once, the link is perfect in this respect
	// afterwards.
	TruncateAfter int64
}

// rule is a Link with the hosts it is about.
type rule struct {
	from, to string
	link     Link
	left     int64 // of TruncateAfter
}

func (r *rule) covers(from, to string) bool {
	if from == to {
		return r.from == from && r.to == to
	}
	return (r.from == "" || r.from == from) && (r.to == "" || r.to == to)
}

// Shape sets how bytes travel from one host to another, live connections included. An empty name is every host;
// a host's connections to itself obey only a rule that names it twice. The newest rule that covers a pair holds.
func (n *Net) Shape(from, to string, l Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules = slices.DeleteFunc(n.rules, func(r *rule) bool { return r.from == from && r.to == to })
	n.rules = append(n.rules, &rule{from, to, l, l.TruncateAfter})
	n.refresh()
}

// Heal removes every rule and thaws every host. What was held back flows, in order.
func (n *Net) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules = nil
	for _, h := range n.hosts {
		h.frozen = false
	}
	n.refresh()
}

// rule returns the rule for a direction; nil if there is none. Called with mu held.
func (n *Net) rule(from, to string) *rule {
	for _, r := range slices.Backward(n.rules) {
		if r.covers(from, to) {
			return r
		}
	}
	return nil
}

// link returns the Link of a direction. Called with mu held.
func (n *Net) link(from, to string) Link {
	if r := n.rule(from, to); r != nil {
		return r.link
	}
	return Link{}
}
