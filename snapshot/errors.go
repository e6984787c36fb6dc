// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package snapshot

import (
	"errors"
	"fmt"
)

var (
	// ErrDigest means bytes, ids or their order are not what their digest says. Permanent for that base.
	ErrDigest = errors.New("snapshot: digest mismatch")
	// ErrFormat means a record can't be read. Permanent.
	ErrFormat = errors.New("snapshot: malformed record")
	// ErrStoreFull means the memory budget has no room for the session.
	ErrStoreFull = errors.New("snapshot: store full")
	// ErrUnknownSession means nothing is held for the session.
	ErrUnknownSession = errors.New("snapshot: unknown session")
	// ErrUnknownBase means the record belongs to a base that isn't held.
	ErrUnknownBase = errors.New("snapshot: unknown base")
	// ErrPrompt means the held prompt ids are not those of the caller.
	ErrPrompt = errors.New("snapshot: prompt mismatch")
	// ErrOutput means the first output ids are not those of the caller.
	ErrOutput = errors.New("snapshot: output mismatch")
)

// VersionError is a record of a format version this reader doesn't know.
type VersionError struct {
	Got, Want uint16
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("snapshot: record has format version %d, this build reads %d: run the same release on both agents", e.Got, e.Want)
}

// OrderError is a row or boundary that doesn't follow the last one: a gap, a repeat or a swap.
type OrderError struct {
	What      string
	Got, Want int
}

func (e *OrderError) Error() string {
	return fmt.Sprintf("snapshot: %s %d, want %d", e.What, e.Got, e.Want)
}

// NotCoveredError is a takeover that the held state can't serve.
type NotCoveredError struct {
	// Committed is the newest complete boundary, Need the boundary that covers every delivered token.
	Committed, Need int
}

func (e *NotCoveredError) Error() string {
	return fmt.Sprintf("snapshot: newest complete boundary is %d, need %d", e.Committed, e.Need)
}
