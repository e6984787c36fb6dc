// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// mostTokens bounds an estimate, so that sums stay far from overflow.
const mostTokens = 1 << 30

// countTokens makes an estimate usable: a session of unknown size counts as one token.
func countTokens(tokens int) int64 { return int64(min(max(tokens, 1), mostTokens)) }

// Claim counts one running session on its node. Its methods may be called concurrently.
type Claim struct {
	Node *Node
	// round is the node's exclusion round in which the session began.
	round uint64
	// left is what the session still has to come: at least 1 while it runs, 0 once released.
	left atomic.Int64
	// answered: it has yielded output.
	answered atomic.Bool
	once     sync.Once
}

// Tokens is the session's part of the node's outstanding tokens: at least 1, and 0 once released.
func (c *Claim) Tokens() int { return int(c.left.Load()) }

// Progress takes so many tokens off the estimate. It takes no lock: call it for every piece of output.
func (c *Claim) Progress(tokens int) {
	if !c.answered.Load() && c.answered.CompareAndSwap(false, true) {
		c.Node.answering.Add(1)
	}
	c.Node.produced.Add(uint64(max(tokens, 0)))
	c.revise(func(left int64) int64 { return max(left-int64(min(max(tokens, 0), mostTokens)), 1) })
}

// Expect replaces the estimate of outstanding tokens, once more is known than when the session was queued.
func (c *Claim) Expect(tokens int) { c.revise(func(int64) int64 { return countTokens(tokens) }) }

// revise changes what is left unless the claim is released.
func (c *Claim) revise(next func(int64) int64) {
	for {
		left := c.left.Load()
		if left == 0 {
			return
		}
		want := next(left)
		if c.left.CompareAndSwap(left, want) {
			c.Node.outstanding.Add(want - left)
			return
		}
	}
}

// Release gives the context back. Later calls do nothing.
func (c *Claim) Release() {
	c.once.Do(func() {
		n, f := c.Node, c.Node.fleet
		n.outstanding.Add(-c.left.Swap(0))
		if c.answered.Swap(true) {
			n.answering.Add(-1)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		n.state.ours--
		if n.state.exclusion.trial == c {
			n.state.exclusion.trial = nil
		}
		f.dispatchLocked()
	})
}

// Occupy counts a session on n without asking for room: a takeover uses reserved contexts, and the
// node itself decides. It counts as one token until Expect says more.
func (f *Fleet) Occupy(n *Node) *Claim {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.occupyLocked(n, 1)
}

func (f *Fleet) occupyLocked(n *Node, tokens int) *Claim {
	f.turn++
	n.state.ours++
	n.state.lastUsed = f.turn
	c := &Claim{Node: n, round: n.state.exclusion.round}
	c.left.Store(countTokens(tokens))
	n.outstanding.Add(c.left.Load())
	return c
}

// placeLocked looks for a node for t; the views are brought up to date when it finds one.
func (f *Fleet) placeLocked(t *Ticket, views []View, now time.Time) bool {
	i := Primary(views, t.want)
	if i < 0 {
		return false
	}
	n := f.nodes[i]
	c := f.occupyLocked(n, t.want.Tokens)
	if n.state.exclusion.failures > 0 {
		n.state.exclusion.trial = c
	}
	views[i] = n.view(now)
	t.C <- c
	return true
}

// dispatchLocked serves the queue in order. A ticket that can't be served doesn't hold up the next: it
// may want another model or kind, or avoid a node that the next can use.
func (f *Fleet) dispatchLocked() {
	if len(f.queue) == 0 {
		return
	}
	now := time.Now()
	views := f.viewsLocked(now)
	f.queue = slices.DeleteFunc(f.queue, func(t *Ticket) bool { return f.placeLocked(t, views, now) })
}

func (f *Fleet) viewsLocked(now time.Time) []View {
	views := make([]View, len(f.nodes))
	for i, n := range f.nodes {
		views[i] = n.view(now)
	}
	return views
}
