// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/enginetest"
)

// A state stays its owner's: neither the run that continues it nor a later run in the same context writes into it.
func TestEngine_LeavesALoadedStateAlone(t *testing.T) {
	c := quick()
	c.Contexts = 1
	s := newSubject(t, c, 60)
	x := enginetest.Clone(s.rows(t, 50))
	before := enginetest.Clone(x)
	for range 3 {
		if got, want := s.next(t, x), s.want(x); got != want {
			t.Fatalf("token %d, want %d", got, want)
		}
		other := engines.Job{Capture: true, Request: greedy(80)}
		other.Request.Prompt.Text = "Another tenant's prompt, whose rows are others from the first position on"
		if err := s.engine.Run(t.Context(), other, enginetest.NewRecorder(mustDescribe(t, s.engine).Geometry, true)); err != nil {
			t.Fatal(err)
		}
		if !cmp.Equal(before, x) {
			t.Fatal("a loaded state has changed")
		}
	}
}
