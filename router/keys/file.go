// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package keys

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// Limits of a key file.
const (
	MaxFile = 4 << 20 // bytes
	MaxKeys = 16384
	// MaxTenant is the longest name of a tenant in bytes.
	MaxTenant = 64
	// maxProblems is how many wrong lines one error names.
	maxProblems = 10
)

// Errors of key files, found with errors.Is.
var (
	ErrLine   = errors.New("want TENANT:sha256:DIGEST with 64 hex digits, as segue key new prints it")
	ErrTenant = errors.New("a tenant's name has 1 to 64 of A-Z a-z 0-9 . _ -")
	ErrTwice  = errors.New("the same key as in line")
	ErrTooBig = errors.New("too many keys")
)

type digest = [sha256.Size]byte

// table has the tenant of each key, by the digest of the key.
type table map[digest]string

// parse reads a key file. Its errors have line numbers and nothing of what the lines hold.
func parse(text []byte) (table, error) {
	keys, lines := make(table), make(map[digest]int)
	var errs []error
	for n := 1; len(text) > 0; n++ {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte("\n"))
		line, _, _ = bytes.Cut(line, []byte("#"))
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		tenant, d, err := parseLine(line)
		if first := lines[d]; err == nil && first > 0 {
			err = fmt.Errorf("%w %d", ErrTwice, first)
		}
		switch {
		case err != nil && len(errs) == maxProblems:
			return nil, errors.Join(append(errs, errors.New("and more"))...)
		case err != nil:
			errs = append(errs, fmt.Errorf("line %d: %w", n, err))
		case len(keys) == MaxKeys:
			return nil, errors.Join(append(errs, fmt.Errorf("line %d: %w: at most %d", n, ErrTooBig, MaxKeys))...)
		default:
			keys[d], lines[d] = tenant, n
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return keys, nil
}

func parseLine(line []byte) (string, digest, error) {
	tenant, rest, _ := bytes.Cut(line, []byte(":"))
	text, ok := bytes.CutPrefix(rest, []byte("sha256:"))
	var d digest
	if !ok || len(text) != hex.EncodedLen(len(d)) {
		return "", d, ErrLine
	}
	if _, err := hex.Decode(d[:], text); err != nil {
		return "", digest{}, ErrLine
	}
	if !ValidTenant(string(tenant)) {
		return "", digest{}, ErrTenant
	}
	return string(tenant), d, nil
}

// ValidTenant reports whether a tenant may have this name.
func ValidTenant(name string) bool {
	if name == "" || len(name) > MaxTenant {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}
