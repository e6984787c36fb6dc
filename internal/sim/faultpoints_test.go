// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// cell is one fault at one point.
type cell struct{ point, fault, protection, target string }

func (c cell) String() string {
	return strings.Join([]string{c.point, c.fault, c.protection, c.target}, "/")
}

// row is a line of the table: what is expected of a cell, or why it makes no sense.
type row struct {
	cell
	expected []string
	absent   string
}

// cells lists every combination, in the order of the table.
func cells() []cell {
	var out []cell
	for _, point := range []string{
		"before-prefill", "between-chunks", "mid-base", "after-compute", "after-capture", "mid-chunk", "before-ack", "after-ack",
		"before-append", "after-append", "after-write", "after-last-token", "before-terminator",
		"takeover-asked", "takeover-loaded", "takeover-seam", "takeover-reemitted", "takeover-new",
		"planned-asked", "planned-prepared", "planned-fenced", "planned-parked", "planned-resumed",
	} {
		for _, protection := range []string{"off", "async", "sync"} {
			for _, fault := range []string{"crash", "pause", "cut"} {
				for _, target := range []string{"engine", "node"} {
					out = append(out, cell{point, fault, protection, target})
				}
			}
		}
	}
	return append(append(out, keptCells()...), verdictCells()...)
}

// readTable reads testdata/faultpoints.txt: point, protection, fault, target, and the outcomes that are right, separated by
// bars, or "n/a" and a reason. What follows # is a comment.
func readTable(t *testing.T) map[cell]row {
	t.Helper()
	f, err := os.Open("testdata/faultpoints.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	table := map[cell]row{}
	for in := bufio.NewScanner(f); in.Scan(); {
		line, _, _ := strings.Cut(in.Text(), "#")
		w := strings.Fields(line)
		if len(w) == 0 {
			continue
		}
		if len(w) < 5 {
			t.Fatalf("bad line %q", in.Text())
		}
		r := row{cell: cell{w[0], w[2], w[1], w[3]}}
		if w[4] == "n/a" {
			r.absent = strings.Join(w[5:], " ")
		} else {
			r.expected = strings.Split(w[4], "|")
		}
		if _, twice := table[r.cell]; twice || (r.absent == "") == (len(r.expected) == 0) {
			t.Fatalf("line %q comes twice, or says nothing", in.Text())
		}
		table[r.cell] = r
	}
	return table
}

// TestFaultPoints runs every cell of the table and prints it.
func TestFaultPoints(t *testing.T) {
	table := readTable(t)
	rows, left := 0, 0
	for i, c := range cells() {
		r, ok := table[c]
		delete(table, c)
		name := fmt.Sprintf("%-19s %-6s %-6s %-7s", c.point, c.protection, c.fault, c.target)
		switch {
		case !ok:
			t.Errorf("%s: isn't in the table", c)
			continue
		case r.absent != "":
			fmt.Println(name, "n/a:", r.absent)
			continue
		}
		if i%rowStride != 0 {
			left++
			continue
		}
		play := (&scene{row: r}).run
		if slices.Contains(keptCells(), c) {
			play = (&keptScene{scene: scene{row: r}}).run
		}
		t.Run(c.String(), func(t *testing.T) {
			rows++
			observed, err := play(t)
			verdict := "ok"
			if err != nil || !slices.Contains(r.expected, observed) {
				verdict = "FAIL, expected " + strings.Join(r.expected, " or ")
				t.Errorf("%s: expected %s, observed %s: %v", c, strings.Join(r.expected, " or "), observed, err)
			}
			fmt.Println(name, fmt.Sprintf("%-38s", observed), verdict)
		})
	}
	for c := range table {
		t.Errorf("%s: is in the table, and no cell", c)
	}
	if !t.Failed() {
		if left > 0 {
			fmt.Printf("under the race detector %d rows were left out\n", left)
		}
		fmt.Printf("FAULTPOINTS PASS rows=%d\n", rows)
	}
}
