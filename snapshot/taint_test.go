// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot_test

import (
	"errors"
	"testing"

	"github.com/seguekv/segue/snapshot"
)

// Boundaries above the clean one cover nothing: what is handed out ends at it, as if it had never grown further.
func TestStore_TakeoverUpToTheCleanBoundary(t *testing.T) {
	for name, x := range map[string]struct {
		delivered, clean int
		want             int // 0: not covered
	}{
		"clean at d":          {3, 3, 3},
		"clean between":       {2, 4, 4},
		"clean at the newest": {5, 6, 6},
		"clean above":         {5, 9, 6},
		"clean below d":       {4, 3, 0},
		"nothing is clean":    {0, 0, 0},
		"d = 0, one is clean": {0, 1, 1},
		"a count below zero":  {0, -1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := head(baseOf(1, 3), 12, 20)
			s, _ := newStore(1 << 20)
			mustReceive(t, s, records(chain(t, h, 6), 5)...)
			need := needOf(&h, x.delivered)
			need.Clean = &x.clean
			held, err := s.Takeover(h.Session, 4, need)
			if x.want == 0 {
				if _, ok := errors.AsType[*snapshot.NotCoveredError](err); !ok {
					t.Fatalf("got %v, want that it isn't covered", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer held.Memory.Release()
			checkState(t, held.State, &h, x.want)
			// What goes on from it is sealed as if the rest had never been there.
			next, err := held.Chain.Rebase(baseOf(1, 4))
			if err != nil {
				t.Fatal(err)
			}
			if next.Committed() != x.want {
				t.Errorf("goes on from boundary %d", next.Committed())
			}
		})
	}
}

// A base that was continued from boundary 5 has nothing below it.
func TestStore_TakeoverBelowTheBase(t *testing.T) {
	h := head(baseOf(1, 3), 12, 20)
	again, err := chain(t, h, 5).Rebase(baseOf(1, 4))
	if err != nil {
		t.Fatal(err)
	}
	s, _ := newStore(1 << 20)
	mustReceive(t, s, records(again, 5)...)
	clean := 4
	need := needOf(again.Head(), 2)
	need.Clean = &clean
	if _, err := s.Takeover(h.Session, 5, need); err == nil {
		t.Error("handed out a boundary that was never sealed in this base")
	}
}
