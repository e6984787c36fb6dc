// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package matrix_test

import (
	"testing"

	"github.com/seguekv/segue/conformance/matrix"
	"github.com/seguekv/segue/conformance/upstream"
)

func TestCases_CoverEveryEndingOfEveryClient(t *testing.T) {
	cases, rules := matrix.Cases(matrix.Clients())
	type part struct {
		client   string
		endpoint matrix.Endpoint
		stream   bool
		ending   upstream.Ending
	}
	have := map[part]int{}
	places := map[upstream.Ending]map[upstream.Place]bool{}
	for i, c := range cases {
		if c.N != i+1 {
			t.Fatalf("case %d has number %d", i+1, c.N)
		}
		have[part{c.Client.Name, c.Endpoint, c.Stream, c.Ending}]++
		if places[c.Ending] == nil {
			places[c.Ending] = map[upstream.Place]bool{}
		}
		places[c.Ending][c.Place] = true
	}
	for _, cl := range matrix.Clients() {
		for _, e := range []matrix.Endpoint{matrix.Chat, matrix.Completions} {
			for _, stream := range []bool{true, false} {
				for _, ending := range upstream.Endings() {
					callOnly := ending == upstream.CutCall && e == matrix.Completions
					if n := have[part{cl.Name, e, stream, ending}]; (n > 0) == callOnly {
						t.Errorf("%s %s stream %t: %d cases of %s", cl.Name, e, stream, n, ending)
					}
				}
			}
		}
	}
	for _, ending := range upstream.Endings() {
		want := map[upstream.Place]bool{upstream.Before: true, upstream.After: true, upstream.InCall: true}
		switch {
		case ending.Whole():
			delete(want, upstream.Before)
		case ending.Status() != 0:
			want = map[upstream.Place]bool{upstream.Before: true}
		case ending == upstream.CutCall:
			want = map[upstream.Place]bool{upstream.InCall: true}
		}
		for _, p := range upstream.Places() {
			if places[ending][p] != want[p] {
				t.Errorf("%s at %s: in the matrix is %t, want %t", ending, p, places[ending][p], want[p])
			}
		}
	}
	left := 0
	for _, r := range rules {
		if r.Reason == "" || r.Cases == 0 {
			t.Errorf("rule %q leaves out %d cases", r.Reason, r.Cases)
		}
		left += r.Cases
	}
	if all := len(matrix.Clients()) * 2 * 2 * len(upstream.Endings()) * 3 * 3; len(cases)+left != all {
		t.Errorf("%d cases and %d left out are not all %d", len(cases), left, all)
	}
}

func TestWant_EveryEndingHasItsRow(t *testing.T) {
	cases, _ := matrix.Cases(matrix.Clients()[:1])
	for _, c := range cases {
		w := c.Want()
		if w.Outcome != matrix.Refused {
			continue
		}
		if status, codes := c.Refusal(); len(status) == 0 || len(codes) == 0 {
			t.Errorf("%s: no refusal is allowed", c)
		}
	}
}
