// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

//go:build segue_fault

package main

import (
	"math"
	"slices"
	"testing"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/engines/sampling"
	"github.com/seguekv/segue/snapshot"
)

// faultPrompt is long enough that position 0 is one of many.
const faultPrompt = "List three reasons why a small town might build a lighthouse, and explain each of them briefly."

// fault flips bits of the high byte of every f16 element in the K rows of position 0.
type fault struct {
	name string
	mask byte
	// finite: the numbers stay finite, so that not even a check for NaN would notice.
	finite bool
}

func (f fault) apply(s *snapshot.State) *snapshot.State {
	s = enginetest.Clone(s)
	row := s.RowData(0)
	for _, l := range s.Geometry.Layers {
		for i := 1; i < l.KBytes; i += 2 {
			row[i] ^= f.mask
		}
		row = row[l.KBytes+l.VBytes:]
	}
	return s
}

// TestFault_WrongRowChangesTheContinuation is the negative proof of the restore tests: a state that is wrong in
// one row of one position is loaded without complaint, and what follows is wrong. So equal continuations mean
// equal states, and nothing but a digest can refuse such a state.
func TestFault_WrongRowChangesTheContinuation(t *testing.T) {
	e := testEngine(t)
	g := e.config.Geometry
	const at, within = 8, 32
	const tokens = at + within
	job := engines.Job{Capture: true, Request: engines.Request{
		Model: "m", MaxTokens: tokens, MinTokens: tokens, Sampling: sampling.Params{Seed: 1},
		Prompt: engines.Prompt{Messages: []engines.Message{{Role: "user", Content: faultPrompt}}},
	}}
	ref := enginetest.NewRecorder(g, true)
	if err := e.Run(t.Context(), job, ref); err != nil {
		t.Fatal(err)
	}
	good, err := ref.State(at)
	if err != nil {
		t.Fatal(err)
	}
	c := testContext(t, 256)
	next := func(s *snapshot.State) []float32 {
		t.Helper()
		if err := c.Load(s); err != nil {
			t.Fatal(err)
		}
		if err := c.Step(s.Output[at-1], s.Rows()); err != nil {
			t.Fatal(err)
		}
		return slices.Clone(c.Logits().Values)
	}
	ids := func(s *snapshot.State) []int32 {
		t.Helper()
		r := enginetest.NewRestoredRecorder(s, true)
		job.From = s
		if err := e.Run(t.Context(), job, r); err != nil {
			t.Fatal(err)
		}
		return r.IDs()
	}
	want := next(good)
	if !slices.Equal(ids(good), ref.IDs()) {
		t.Error("the right state doesn't continue as the uninterrupted run")
	}
	for _, f := range []fault{
		{name: "highest exponent bit", mask: 0x40},
		{name: "lowest exponent bit", mask: 0x04, finite: true},
	} {
		t.Run(f.name, func(t *testing.T) {
			bad := f.apply(good)
			got := next(bad)
			differ, finite := 0, 0
			for i := range want {
				if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
					differ++
				}
				if x := float64(got[i]); !math.IsNaN(x) && !math.IsInf(x, 0) {
					finite++
				}
			}
			if differ == 0 {
				t.Error("the next logits are those of the right state")
			}
			if f.finite && finite != len(got) {
				t.Errorf("%d of %d logits are finite", finite, len(got))
			}
			wrong, first := ids(bad), at
			for first < tokens && wrong[first] == ref.IDs()[first] {
				first++
			}
			if first == tokens {
				t.Errorf("%d ids after the wrong state are right", within)
			}
			t.Logf("%d of %d logits differ, %d are finite; %d ids are right before the first wrong one", differ, len(want), finite, first-at)
		})
	}
}
