// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"slices"
	"sync"
	"time"

	"github.com/seguekv/segue/snapshot"
)

// finishedKept is how many finished sessions stay readable.
const finishedKept = 1024

// registry finds session records by id: all live ones and the last finishedKept finished ones.
type registry struct {
	mu       sync.Mutex
	byID     map[snapshot.SessionID]*record
	order    []entry              // by start, oldest first
	finished []snapshot.SessionID // by end, oldest first
}

type entry struct {
	id  snapshot.SessionID
	rec *record
}

func newRegistry() *registry {
	return &registry{byID: map[snapshot.SessionID]*record{}}
}

func (g *registry) add(id snapshot.SessionID, rec *record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.byID[id] = rec
	g.order = append(g.order, entry{id, rec})
}

// finish marks a session as ended and forgets the oldest ended one beyond the limit.
func (g *registry) finish(id snapshot.SessionID, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	rec, ok := g.byID[id]
	if !ok {
		return
	}
	rec.update(func(i *SessionInfo) { i.EndedAt = stamp(now) })
	close(rec.gone)
	g.finished = append(g.finished, id)
	if len(g.finished) <= finishedKept {
		return
	}
	old := g.finished[0]
	g.finished = slices.Delete(g.finished, 0, 1)
	delete(g.byID, old)
	g.order = slices.DeleteFunc(g.order, func(e entry) bool { return e.id == old })
}

func (g *registry) get(id snapshot.SessionID) (SessionInfo, bool) {
	g.mu.Lock()
	rec, ok := g.byID[id]
	g.mu.Unlock()
	if !ok {
		return SessionInfo{}, false
	}
	return rec.snapshot(), true
}

// running are the records of live sessions whose present attempt is on a node.
func (g *registry) running(node string) []*record {
	g.mu.Lock()
	order := slices.Clone(g.order)
	g.mu.Unlock()
	var out []*record
	for _, e := range order {
		if i := e.rec.snapshot(); i.EndedAt == "" && i.Primary == node {
			out = append(out, e.rec)
		}
	}
	return out
}

// liveRecord is the record of a session that hasn't ended, or nil.
func (g *registry) liveRecord(id snapshot.SessionID) *record {
	g.mu.Lock()
	defer g.mu.Unlock()
	rec := g.byID[id]
	if rec == nil {
		return nil
	}
	select {
	case <-rec.gone:
		return nil
	default:
		return rec
	}
}

// list is all sessions, newest first.
func (g *registry) list() []SessionInfo {
	g.mu.Lock()
	order := slices.Clone(g.order)
	g.mu.Unlock()
	out := make([]SessionInfo, 0, len(order))
	for _, e := range slices.Backward(order) {
		out = append(out, e.rec.snapshot())
	}
	return out
}

// live is the number of sessions that haven't ended.
func (g *registry) live() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.order) - len(g.finished)
}
