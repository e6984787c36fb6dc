// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import "slices"

// View is one node as placement sees it.
type View struct {
	ID    string
	Ready bool
	// Full means that the node refused a session since it was last described.
	Full  bool
	Model string
	// Fingerprint is the canonical encoding; equal strings mean equal fingerprints.
	Fingerprint string
	// Used counts contexts in use: this router's sessions and what the node reported beyond them.
	Contexts, Reserved, Used int
	// Held counts sessions held there by this router's choice.
	Held int
	// SnapshotFree is in bytes.
	SnapshotFree uint64
	// LastUsed and LastHeld order nodes by when they were last chosen; higher is later.
	LastUsed, LastHeld uint64
}

// free is how many new sessions the node takes.
func (v View) free() int {
	if !v.Ready || v.Full {
		return 0
	}
	return max(v.Contexts-v.Reserved-v.Used, 0)
}

// Primary picks the node for a new session: the least loaded one that serves the model and has a free
// unreserved context, among equals the one that was chosen longest ago. avoid lists ids that are out of
// the question. It returns the index in views, or -1.
func Primary(views []View, model string, avoid []string) int {
	best := -1
	for i, v := range views {
		if v.free() == 0 || v.Model != model || slices.Contains(avoid, v.ID) {
			continue
		}
		if best < 0 || before(v, views[best]) {
			best = i
		}
	}
	return best
}

func before(a, b View) bool {
	if a.Used != b.Used {
		return a.Used < b.Used
	}
	return a.LastUsed < b.LastUsed
}

// Holder picks the node that holds a session of primary's: a ready one, with the primary's fingerprint if
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
		if !v.Ready || v.ID == primary || slices.Contains(avoid, v.ID) {
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
