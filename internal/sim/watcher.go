// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/seguekv/segue/router"
)

// watcher looks at the watermarks of all nodes from time to time.
//
// INVARIANT: captured >= sent >= committed; committed >= delivered while the session is protected under sync; what a
// primary counts as committed, the holder's present process life has.
type watcher struct {
	w        *World
	refs     map[uint64]*Reference
	problems []string
	before   map[string]promise
	// compared counts looks at a protected session, or at what a holder has of what was promised.
	compared int
}

// promise is what a primary counted on at an earlier look.
type promise struct {
	holder    *Node
	life      *agentLife
	epoch     uint64
	base      int
	committed int
}

func (v *watcher) problem(format string, args ...any) {
	if len(v.problems) < 5 {
		v.problems = append(v.problems, fmt.Sprintf(format, args...))
	}
}

func (v *watcher) watch(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		t := time.NewTimer(time.Duration(40+rng.IntN(160)) * time.Millisecond)
		select {
		case <-t.C:
			v.look()
		case <-ctx.Done():
			t.Stop()
		}
	}
}

func (v *watcher) look() {
	modes := map[string]router.Protection{}
	delivered := map[string]int{}
	for _, s := range v.w.Router.Sessions() {
		if s.EndedAt == "" {
			modes[s.Session] = s.Protection
			// Read before the nodes are asked: what they say later can only be more.
			delivered[s.Session] = v.w.Gates.len(s.Session)
		}
	}
	next := map[string]promise{}
	for _, n := range v.w.Nodes {
		list, err := n.Sessions()
		if err != nil {
			continue // it went down
		}
		for _, s := range list {
			if s.Role == "holder" {
				v.holder(n, s)
				continue
			}
			if s.Role == "parked" || s.State == "failed" || s.State == "finished" {
				continue
			}
			v.primary(n, s, modes[s.Session], delivered[s.Session])
			if h := v.w.Node(s.Peer); h != nil {
				next[s.Session+s.Peer] = promise{h, h.present(), s.Epoch, s.Base, s.Committed}
			}
		}
	}
	v.before = next
}

func (v *watcher) primary(n *Node, s AgentView, mode router.Protection, delivered int) {
	if s.Sent == 0 && s.Committed == 0 && !s.Protected {
		return // nothing is replicated
	}
	if s.Captured < s.Sent || s.Sent < s.Committed {
		v.problem("%v: node %s, session %.8s epoch %d: captured %d, sent %d, committed %d", v.at(), n.ID, s.Session, s.Epoch, s.Captured, s.Sent, s.Committed)
	}
	if mode != router.ProtectionSync || !s.Protected || uint64(v.w.Gates.epoch(s.Session)) != s.Epoch {
		return
	}
	v.compared++
	if s.Committed < delivered {
		v.problem("%v: node %s, session %.8s epoch %d: protected, committed %d, delivered %d", v.at(), n.ID, s.Session, s.Epoch, s.Committed, delivered)
	}
}

func (v *watcher) holder(n *Node, s AgentView) {
	p, ok := v.before[s.Session+n.ID]
	if !ok || p.life != n.present() || p.epoch != s.Epoch || p.base != s.Base {
		return
	}
	v.compared++
	if s.Committed < p.committed {
		v.problem("%v: node %s holds session %.8s epoch %d up to %d, its primary counted on %d", v.at(), n.ID, s.Session, s.Epoch, s.Committed, p.committed)
	}
}

func (v *watcher) at() time.Duration { return time.Since(v.w.Trace.begun) }
