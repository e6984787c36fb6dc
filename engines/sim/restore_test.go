// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import "testing"

// From every boundary, with full blocks and with parts of one, the captured state goes on as the run did.
func TestEngine_ContinuesFromEveryRow(t *testing.T) {
	s := newSubject(t, quick(), 60)
	for n := 1; n < 60; n++ {
		x := s.state(t, n)
		if got, want := s.next(t, x), s.want(x); got != want {
			t.Errorf("boundary %d, %d rows: token %d, want %d", n, x.Rows(), got, want)
		}
	}
}
