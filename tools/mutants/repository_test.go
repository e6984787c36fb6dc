// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// table reads the repository's table.
func table(t *testing.T) (root string, entries []entry) {
	t.Helper()
	root, err := moduleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(root, "tools", "mutants", "mutants.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if entries, err = parse(string(b)); err != nil {
		t.Fatal(err)
	}
	return root, entries
}

// The table follows the code: each mutant's text is in its file exactly once, and its tests exist.
func TestTable_IsCurrent(t *testing.T) {
	root, entries := table(t)
	tests := make(map[string]string) // sources of a package's tests
	for _, e := range entries {
		if e.Absent != "" {
			continue
		}
		text, err := e.read(root)
		if err != nil {
			t.Errorf("line %d: %s: %v", e.Line, e.ID, err)
			continue
		}
		if _, err := format.Source([]byte(text)); err != nil {
			t.Errorf("line %d: %s: %v", e.Line, e.ID, err)
		}
		if _, ok := tests[e.Package]; !ok {
			names, err := filepath.Glob(filepath.Join(root, e.Package, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				b, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				tests[e.Package] += string(b)
			}
		}
		for _, name := range e.Tests {
			if !regexp.MustCompile(`(?m)^func ` + name + `\(t \*testing\.T\)`).MatchString(tests[e.Package]) {
				t.Errorf("line %d: %s: there is no %s in %s", e.Line, e.ID, name, e.Package)
			}
		}
	}
}

// Every guarantee has a mutant, or says which part it waits for; those with the most ways to break have several.
func TestTable_CoversEveryGuarantee(t *testing.T) {
	_, entries := table(t)
	count := make(map[string]int)
	for _, e := range entries {
		count[e.guarantee()]++
	}
	for n := range 13 {
		g := fmt.Sprintf("G%d", n+1)
		least := 1
		if slices.Contains([]string{"G3", "G4", "G5", "G6", "G13"}, g) {
			least = 3
		}
		if count[g] < least {
			t.Errorf("%s has %d mutants, want at least %d", g, count[g], least)
		}
	}
	if count["Lease"] < 4 {
		t.Errorf("the lease rules have %d mutants", count["Lease"])
	}
}
