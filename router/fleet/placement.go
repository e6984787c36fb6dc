// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import (
	"slices"
	"time"
)

// View is one node as placement sees it.
type View struct {
	ID    string
	Kind  Kind
	Ready bool
	// Draining keeps new sessions and holds away.
	Draining bool
	// Shunned means that its engine is lost or to be left: the same.
	Shunned bool
	// Full means that the node refused a session since it was last described.
	Full bool
	// Models are the names it serves; those of an agent are one.
	Models []string
	// Weight is its share of the work among others; positive.
	Weight float64
	// Outstanding estimates how many tokens this router's sessions there still have to come.
	Outstanding int64
	// Excluded is how long failures keep it from being chosen; 0 when they don't.
	Excluded time.Duration
	// Tried means that failures kept it from being chosen, and one session is finding out whether they still should.
	Tried bool
	// Fingerprint is the canonical encoding; equal strings mean equal fingerprints.
	Fingerprint string
	// Used counts contexts in use: this router's sessions and Foreign, what the node reported beyond them.
	Contexts, Reserved, Used, Foreign int
	// Held counts sessions held there by this router's choice.
	Held int
	// SnapshotFree is in bytes.
	SnapshotFree uint64
	// LastUsed and LastHeld order nodes by when they were last chosen; higher is later.
	LastUsed, LastHeld uint64
}

// free is how many new sessions the node takes.
func (v View) free() int {
	if !v.Ready || v.Draining || v.Shunned || v.Full {
		return 0
	}
	return max(v.Contexts-v.Reserved-v.Used, 0)
}

// suits reports whether the session may run there at all, now or later.
func (v View) suits(w Want) bool {
	return v.Kind == w.Kind && slices.Contains(v.Models, w.Model) && !slices.Contains(w.Avoid, v.ID)
}

// load is what the node would have to do with one more session of so many tokens, by its weight. A session of
// another router's counts as much as the new one: nothing is known about its size.
func (v View) load(tokens int64) float64 {
	return (float64(v.Outstanding) + float64(v.Foreign+1)*float64(tokens)) / v.Weight
}

// Primary picks the node for a new session: the one with the least load among those of the wanted kind that serve the
// model, have a free unreserved context and aren't excluded; among equals the one with the fewest sessions, then the
// one that was chosen longest ago. If failures exclude all that are ready, it is the one with a free context whose
// exclusion ends first, and that no session tries yet: failures alone never keep everybody waiting. It returns the
// index in views, or -1.
func Primary(views []View, w Want) int {
	tokens := countTokens(w.Tokens)
	best, doubtful, trusted := -1, -1, false
	for i, v := range views {
		if !v.Ready || v.Draining || v.Shunned || !v.suits(w) {
			continue
		}
		doubted := v.Excluded > 0 || v.Tried
		trusted = trusted || !doubted
		switch {
		case v.free() == 0:
		case doubted:
			if doubtful < 0 || sooner(v, views[doubtful], tokens) {
				doubtful = i
			}
		case best < 0 || before(v, views[best], tokens):
			best = i
		}
	}
	if best < 0 && !trusted {
		return doubtful
	}
	return best
}

// sooner orders nodes that failures speak against.
func sooner(a, b View, tokens int64) bool {
	if a.Tried != b.Tried {
		return b.Tried
	}
	if a.Excluded != b.Excluded {
		return a.Excluded < b.Excluded
	}
	return before(a, b, tokens)
}

func before(a, b View, tokens int64) bool {
	if al, bl := a.load(tokens), b.load(tokens); al != bl {
		return al < bl
	}
	if a.Used != b.Used {
		return a.Used < b.Used
	}
	return a.LastUsed < b.LastUsed
}

// Holder picks the node that holds a session of primary's: a ready agent, with the primary's fingerprint if
// there is one, with the most free snapshot memory, among equals the one that holds fewest and then the
// one chosen longest ago. It returns the index in views, or -1.
func Holder(views []View, primary string, avoid []string) int {
	fingerprint := ""
	for _, v := range views {
		if v.ID == primary {
			fingerprint = v.Fingerprint
		}
	}
	best := -1
	for i, v := range views {
		if v.Kind != KindAgent || !v.Ready || v.Draining || v.Shunned || v.ID == primary || slices.Contains(avoid, v.ID) {
			continue
		}
		if best < 0 || betterHolder(v, views[best], fingerprint) {
			best = i
		}
	}
	return best
}

func betterHolder(a, b View, fingerprint string) bool {
	if am, bm := a.Fingerprint == fingerprint, b.Fingerprint == fingerprint; am != bm {
		return am
	}
	if a.SnapshotFree != b.SnapshotFree {
		return a.SnapshotFree > b.SnapshotFree
	}
	if a.Held != b.Held {
		return a.Held < b.Held
	}
	return a.LastHeld < b.LastHeld
}
