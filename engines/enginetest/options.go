// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package enginetest

import (
	"strings"
	"time"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/snapshot"
)

// Options fit the suite to an engine. The zero value is a complete run for an engine that isn't
// deterministic.
type Options struct {
	// Prompts are used in turn by the sampling variants. Default: a chat and a text.
	Prompts []engines.Prompt
	// LongPrompt takes at least three prefill chunks. Default: about 2 kB of text.
	LongPrompt engines.Prompt
	// Tokens is the length of the reference runs, at least 8. Restoring at every boundary of more than
	// snapshot.BlockRows tokens meets every fill of a block. Default: snapshot.BlockRows + 4.
	Tokens int
	// RestorePoints bounds the boundaries that each sampling variant but greedy is restored at; they are
	// spread over the run, with the first and the last. 0 = all. Greedy is restored at all of them.
	RestorePoints int
	// Deterministic engines give the same ids, text and rows for the same request, alone or beside other
	// runs, fresh or restored. Of others only order, counters and what a state records are tested.
	Deterministic bool
	// FullContext also fills a context to its end, which computes as many tokens as it holds.
	FullContext bool
	// Patience bounds each run. Default: a minute.
	Patience time.Duration
}

func (o Options) withDefaults() Options {
	if len(o.Prompts) == 0 {
		o.Prompts = []engines.Prompt{
			{Messages: []engines.Message{
				{Role: "system", Content: "You answer in one sentence."},
				{Role: "user", Content: "What does a lighthouse keeper do at night?"},
			}},
			{Text: "The ferry left the harbour before sunrise, and"},
		}
	}
	if p := o.LongPrompt; p.Text == "" && len(p.Messages) == 0 && len(p.IDs) == 0 {
		o.LongPrompt.Text = strings.Repeat("It rained on the hills, on the fields and on the roofs of the town. ", 30)
	}
	if o.Tokens == 0 {
		o.Tokens = snapshot.BlockRows + 4
	}
	o.Tokens = max(o.Tokens, 8)
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	return o
}

// boundaries are those of a run of n tokens that are restored: 1 … n-1, or at most limit of them.
func boundaries(n, limit int) []int {
	all := n - 1
	if limit <= 0 || limit > all {
		limit = all
	}
	if limit == 1 {
		return []int{all}
	}
	var b []int
	for i := range limit {
		b = append(b, 1+i*(all-1)/(limit-1))
	}
	return b
}
