// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/seguekv/segue/conformance/matrix"
	"github.com/seguekv/segue/conformance/upstream"
)

// table prints passed of run cells: a row per ending and place, a column per client.
func table(w io.Writer, clients []matrix.Client, outcomes []outcome) {
	type key struct {
		ending upstream.Ending
		place  upstream.Place
		client string
	}
	type count struct{ passed, run int }
	cells, rows := map[key]count{}, map[key]bool{}
	for _, o := range outcomes {
		k := key{o.Ending, o.Place, o.Client.Name}
		c := cells[k]
		c.run++
		if len(o.found) == 0 {
			c.passed++
		}
		cells[k], rows[key{ending: o.Ending, place: o.Place}] = c, true
	}
	fmt.Fprintf(w, "\npassed of run cells, over chat and completions, stream and not, which upstreams are bad:\n%-13s %-8s", "ending", "place")
	for _, c := range clients {
		fmt.Fprintf(w, " %*s", width(c), c.Name)
	}
	fmt.Fprintln(w)
	for _, e := range upstream.Endings() {
		for _, p := range upstream.Places() {
			if !rows[key{ending: e, place: p}] {
				continue
			}
			fmt.Fprintf(w, "%-13s %-8s", e, p)
			for _, c := range clients {
				cell := "-"
				if n := cells[key{e, p, c.Name}]; n.run > 0 {
					cell = fmt.Sprintf("%d/%d", n.passed, n.run)
				}
				fmt.Fprintf(w, " %*s", width(c), cell)
			}
			fmt.Fprintln(w)
		}
	}
}

func width(c matrix.Client) int { return max(6, len(c.Name)) }

// leftOut prints which combinations are no cells.
func leftOut(w io.Writer, rules []matrix.Rule) {
	fmt.Fprintf(w, "\ncombinations that are no cells:\n")
	for _, r := range rules {
		if r.Cases > 0 {
			fmt.Fprintf(w, "%6d  %s\n", r.Cases, r.Reason)
		}
	}
	fmt.Fprintln(w, strings.Repeat("-", 60))
}
