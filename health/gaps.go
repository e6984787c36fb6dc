// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health

import (
	"slices"
	"time"
)

// warm is how many gaps have to be seen before they say something.
const warm = 8

// remembered is how many gaps count: about a minute of short steps, and enough for a 99th percentile.
const remembered = 256

// gaps are the latest times between two signs of progress.
type gaps struct {
	ring [remembered]time.Duration
	n    int // of all that were added
}

func (g *gaps) add(d time.Duration) {
	g.ring[g.n%remembered] = d
	g.n++
}

// cold reports whether too few were seen.
func (g *gaps) cold() bool { return g.n < warm }

// p99 is 0 without gaps; of fewer than a hundred it is the longest.
func (g *gaps) p99() time.Duration {
	n := min(g.n, remembered)
	if n == 0 {
		return 0
	}
	sorted := g.ring
	slices.Sort(sorted[:n])
	return sorted[(n*99+99)/100-1]
}
