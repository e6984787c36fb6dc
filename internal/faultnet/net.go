// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package faultnet

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Net is a network. Its methods may be called at once.
type Net struct {
	seed uint64

	mu        sync.Mutex
	closed    bool
	rules     []*rule // the newest last
	hosts     map[string]*host
	listeners map[string]*listener // by address
	homes     map[string]string    // the host that last listened, by address
	conns     map[*conn]struct{}   // those with an end that is open
	dialled   int                  // connections so far
	stats     map[[2]string]*Stats
	changed   signal // what a dial waits for
}

// host is what the network knows of a machine.
type host struct {
	frozen bool
	down   bool // the process is dead: it can't dial
	off    bool // the machine is dead: it doesn't answer
}

// New returns a network without rules. The seed decides jitter.
func New(seed uint64) *Net {
	return &Net{
		seed:      seed,
		hosts:     map[string]*host{},
		listeners: map[string]*listener{},
		homes:     map[string]string{},
		conns:     map[*conn]struct{}{},
		stats:     map[[2]string]*Stats{},
	}
}

// host returns a host's record, which exists from its first mention. Called with mu held.
func (n *Net) host(name string) *host {
	h := n.hosts[name]
	if h == nil {
		h = &host{}
		n.hosts[name] = h
	}
	return h
}

// ordered returns the live connections, the oldest first. Called with mu held.
func (n *Net) ordered() []*conn {
	return slices.SortedFunc(maps.Keys(n.conns), func(a, b *conn) int { return a.number - b.number })
}

// refresh lets every connection and dial see what has changed. Called with mu held.
func (n *Net) refresh() {
	now := time.Now()
	for _, c := range n.ordered() {
		for _, e := range c.ends {
			e.out.reshape(now)
		}
	}
	for _, l := range n.listeners {
		l.changed.raise()
	}
	n.changed.raise()
}

// Open is how many connections have an end that isn't closed.
func (n *Net) Open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}

// Close ends every connection, listener and dial. It is idempotent.
func (n *Net) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	for _, l := range n.listeners {
		l.end()
	}
	for _, c := range n.ordered() {
		for _, e := range c.ends {
			e.end(markReset)
		}
	}
	n.refresh()
}

// signal wakes everyone who waits for a change. Its channel exists while someone waits.
type signal struct{ c chan struct{} }

func (s *signal) raise() {
	if s.c != nil {
		close(s.c)
		s.c = nil
	}
}

// await returns after the signal, at the earliest of the given times that isn't zero, or when done ends. Called with
// mu held, which it gives up meanwhile.
func (n *Net) await(s *signal, done <-chan struct{}, times ...time.Time) {
	if s.c == nil {
		s.c = make(chan struct{})
	}
	c := s.c
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	n.mu.Unlock()
	defer n.mu.Lock()
	var due <-chan time.Time
	if !first.IsZero() {
		t := time.NewTimer(time.Until(first))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-c:
	case <-due:
	case <-done:
	}
}
