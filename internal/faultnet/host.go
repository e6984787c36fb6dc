// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package faultnet

// Freeze stops a host as SIGSTOP stops its processes: its reads, writes, accepts and dials wait, whatever their
// deadline, and what it closes stays open for its peers. What it wrote before is delivered, and what peers
// send waits in its buffers. Only Close, Crash and PowerOff end a frozen operation.
func (n *Net) Freeze(host string) { n.setFrozen(host, true) }

// Thaw undoes Freeze; everything flows.
func (n *Net) Thaw(host string) { n.setFrozen(host, false) }

func (n *Net) setFrozen(host string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.host(host).frozen = on
	n.refresh()
}

// Reset resets every live connection between two hosts; what was in transit is lost.
func (n *Net) Reset(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.ordered() {
		x, y := c.ends[0], c.ends[1]
		if x.host == a && y.host == b || x.host == b && y.host == a {
			x.in.abort()
			y.in.abort()
		}
	}
}

// Crash ends a host's process: its listeners close, its connections end for the peers with EOF, or with a reset where
// something was left unread. What the process had written is still delivered. Dials to it are refused, and its own fail,
// until it listens again or Start.
func (n *Net) Crash(host string) { n.kill(host, false) }

// PowerOff ends a host's machine: peers learn nothing and dials to it hang. After it listens again, or Start, a peer that
// writes, or whose bytes still travel, is answered by a reset.
func (n *Net) PowerOff(host string) { n.kill(host, true) }

// Start ends the downtime of a host that doesn't listen.
func (n *Net) Start(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.start(host)
}

// start is Start. Called with mu held.
func (n *Net) start(name string) {
	h := n.host(name)
	if !h.down && !h.off {
		return
	}
	h.down, h.off = false, false
	for c := range n.conns {
		for _, e := range c.ends {
			if e.host == name {
				e.lost = false
			}
		}
	}
	n.refresh()
}

func (n *Net) kill(name string, off bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.host(name)
	h.frozen, h.down, h.off = false, true, h.off || off
	for _, l := range n.listeners {
		if l.host == name {
			l.end()
		}
	}
	for _, c := range n.ordered() {
		for _, e := range c.ends {
			switch {
			case e.host != name || e.closed:
			case off:
				e.vanish()
			default:
				e.end(markEnd)
			}
		}
	}
	n.refresh()
}
