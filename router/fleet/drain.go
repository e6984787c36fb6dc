// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

// HoldOn counts a session that n holds without having been picked for it.
func (f *Fleet) HoldOn(n *Node) *Hold {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.holdLocked(n)
}

func (f *Fleet) holdLocked(n *Node) *Hold {
	f.turn++
	n.state.held++
	n.state.lastHeld = f.turn
	return &Hold{Node: n}
}

// Drain keeps new sessions and holds off the node, or no longer does. What runs there goes on.
func (n *Node) Drain(on bool) {
	f := n.fleet
	f.mu.Lock()
	was := n.state.draining
	n.state.draining = on
	if !on {
		f.dispatchLocked()
	}
	f.mu.Unlock()
	if was != on {
		f.log.Info("drain changed", n.kind.String(), n.id, "draining", on)
	}
}

// Draining reports whether Drain is on.
func (n *Node) Draining() bool {
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	return n.state.draining
}
