// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// entry is one stanza of the table: a mutant, or a part that a mutant waits for.
type entry struct {
	ID     string
	Line   int // of the stanza
	Breaks string
	// Absent is the part that doesn't exist yet; the fields below are then empty.
	Absent string
	// File is relative to the module's root. In, if it isn't empty, begins the one declaration that Find is in.
	File, In   string
	Find, With string
	// Tests are those that notice, all in the package Package, a folder relative to the module's root.
	Package string
	Tests   []string
	// Hangs says that a run which doesn't end in time counts as noticed.
	Hangs bool
}

// guarantee is the id's first part: G3, Lease.
func (e entry) guarantee() string {
	g, _, _ := strings.Cut(e.ID, "-")
	return g
}

const idForm = `^(G[1-9][0-9]*|Lease)-[a-z0-9-]+$`

// parse reads stanzas of "key: value" lines, with blank lines between them. Lines that begin with # are comments.
func parse(text string) ([]entry, error) {
	var out []entry
	var errs []error
	var lines []string
	first := 0
	flush := func() {
		if len(lines) == 0 {
			return
		}
		e, err := stanza(first, lines)
		if err == nil && slices.ContainsFunc(out, func(o entry) bool { return o.ID == e.ID }) {
			err = fmt.Errorf("line %d: id %s is in the table twice", first, e.ID)
		}
		errs = append(errs, err)
		out, lines = append(out, e), nil
	}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			flush()
		default:
			if len(lines) == 0 {
				first = number
			}
			lines = append(lines, line)
		}
	}
	flush()
	return out, errors.Join(errs...)
}

// stanza reads one entry whose first line has that number.
func stanza(first int, lines []string) (entry, error) {
	e := entry{Line: first}
	seen := make(map[string]bool)
	var hangs, tests string
	fields := map[string]*string{
		"id": &e.ID, "breaks": &e.Breaks, "absent": &e.Absent, "file": &e.File, "in": &e.In, "find": &e.Find, "with": &e.With,
		"hangs": &hangs, "tests": &tests,
	}
	for i, line := range lines {
		key, value, ok := strings.Cut(line, ":")
		to := fields[key]
		if !ok || to == nil {
			return e, fmt.Errorf("line %d: %q is no known key with a value", first+i, line)
		}
		if seen[key] {
			return e, fmt.Errorf("line %d: second %q of one mutant", first+i, key)
		}
		seen[key] = true
		*to = strings.TrimSpace(value)
	}
	if words := strings.Fields(tests); len(words) > 0 {
		e.Package, e.Tests = words[0], words[1:]
	}
	e.Hangs = hangs == "killed"
	if err := e.validate(seen); err != nil {
		return e, fmt.Errorf("line %d: %w", first, err)
	}
	return e, nil
}

func (e entry) validate(seen map[string]bool) error {
	switch {
	case !regexp.MustCompile(idForm).MatchString(e.ID):
		return fmt.Errorf("id %q, want the guarantee and a name in lower case: G1-old-index", e.ID)
	case e.Breaks == "":
		return fmt.Errorf("%s: breaks what?", e.ID)
	case e.Absent != "":
		if len(seen) != 3 {
			return fmt.Errorf("%s: what waits for a part has only id, absent and breaks", e.ID)
		}
		return nil
	case e.File == "" || e.Find == "" || !seen["with"]:
		return fmt.Errorf("%s: want file, find and with (which may be empty)", e.ID)
	case e.Find == e.With:
		return fmt.Errorf("%s: find and with are equal", e.ID)
	case len(e.Tests) == 0 || !strings.HasPrefix(e.Package, "."):
		return fmt.Errorf("%s: tests: want a package (./fence) and the names of tests in it", e.ID)
	case seen["hangs"] && !e.Hangs:
		return fmt.Errorf("%s: hangs: want killed, or no such line", e.ID)
	}
	return nil
}
