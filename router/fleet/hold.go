// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import (
	"sync"
	"time"
)

// Hold counts one session that its node holds for another.
type Hold struct {
	Node *Node
	once sync.Once
}

// Drop ends the count. Later calls do nothing.
func (h *Hold) Drop() {
	h.once.Do(func() {
		f := h.Node.fleet
		f.mu.Lock()
		defer f.mu.Unlock()
		h.Node.state.held--
	})
}

// PickHolder chooses an agent as the holder for a session whose primary is given; nil when there is none.
func (f *Fleet) PickHolder(primary *Node, avoid []string) *Hold {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := Holder(f.viewsLocked(time.Now()), primary.id, avoid)
	if i < 0 {
		return nil
	}
	return f.holdLocked(f.nodes[i])
}
