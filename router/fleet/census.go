// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import "slices"

// Len is the number of nodes of these kinds, ready or not; of all kinds without any.
func (f *Fleet) Len(kinds ...Kind) int {
	n := 0
	for _, x := range f.nodes {
		if x.isA(kinds) {
			n++
		}
	}
	return n
}

// Ready is the number of ready nodes of these kinds; of all kinds without any.
func (f *Fleet) Ready(kinds ...Kind) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	ready := 0
	for _, n := range f.nodes {
		if n.isA(kinds) && n.state.ready {
			ready++
		}
	}
	return ready
}

// Models lists what the nodes of these kinds serve, of all kinds without any, sorted, including nodes that aren't ready
// at the moment.
func (f *Fleet) Models(kinds ...Kind) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for _, n := range f.nodes {
		if n.isA(kinds) {
			names = append(names, n.state.models...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ModelKinds lists the kinds of the nodes that serve a model, agents first, including nodes that aren't ready at the
// moment; none for a name that no node has listed.
func (f *Fleet) ModelKinds(model string) []Kind {
	f.mu.Lock()
	defer f.mu.Unlock()
	var kinds []Kind
	for _, n := range f.nodes {
		if slices.Contains(n.state.models, model) {
			kinds = append(kinds, n.kind)
		}
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// Candidates is the number of nodes on which a session could still run: those of the kind that serve the model, or
// haven't said yet what they serve, and that avoid doesn't list. They needn't be ready, and may be excluded or full.
func (f *Fleet) Candidates(model string, kind Kind, avoid []string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := 0
	for _, n := range f.nodes {
		if n.kind == kind && !slices.Contains(avoid, n.id) && (len(n.state.models) == 0 || slices.Contains(n.state.models, model)) {
			c++
		}
	}
	return c
}
