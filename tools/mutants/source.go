// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutate returns the file's text with the mutant's change.
func (e entry) mutate(text string) (string, error) {
	from, to := 0, len(text)
	if e.In != "" {
		at, err := once(text, "\n"+e.In, e.In)
		if err != nil {
			return "", fmt.Errorf("%s: %w", e.File, err)
		}
		from = at
		if n := strings.Index(text[from:], "\n}\n"); n >= 0 {
			to = from + n
		}
	}
	at, err := once(text[from:to], e.Find, e.Find)
	if err != nil {
		return "", fmt.Errorf("%s: %w", e.File, err)
	}
	at += from
	return text[:at] + e.With + text[at+len(e.Find):], nil
}

// once is where part is in text, if it is there exactly once. name is the part for people.
func once(text, part, name string) (int, error) {
	switch n := strings.Count(text, part); n {
	case 1:
		return strings.Index(text, part), nil
	case 0:
		return 0, fmt.Errorf("stale: %q isn't in it any more", name)
	default:
		return 0, fmt.Errorf("ambiguous: %q is in it %d times", name, n)
	}
}

// read returns the changed file's text.
func (e entry) read(root string) (string, error) {
	b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(e.File)))
	if err != nil {
		return "", fmt.Errorf("stale: %w", err)
	}
	return e.mutate(string(b))
}

// overlay writes the changed file and the go command's overlay file into dir, and returns the latter's name.
func (e entry) overlay(root, dir string) (string, error) {
	text, err := e.read(root)
	if err != nil {
		return "", err
	}
	changed := filepath.Join(dir, "mutant.go")
	if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
		return "", err
	}
	original := filepath.Join(root, filepath.FromSlash(e.File))
	list, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, list, 0o600)
}
