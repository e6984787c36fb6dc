// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fence

import (
	"errors"
	"fmt"
)

var (
	// ErrStaleEpoch means a higher epoch is known. The caller's attempt is over: stop and write nothing.
	ErrStaleEpoch = errors.New("fence: stale epoch")
	// ErrFutureEpoch means the gate hasn't issued that epoch.
	ErrFutureEpoch = errors.New("fence: epoch not issued")
	// ErrClosed means the session's finish is already in the gate.
	ErrClosed = errors.New("fence: gate closed")
	// ErrConflict means an index was appended before with another token or text end.
	ErrConflict = errors.New("fence: conflicting entry")
	// ErrCommitted means content was written to the client, so a retry from the prompt is forbidden.
	ErrCommitted = errors.New("fence: content already written")
	// ErrCanceled means the session was cancelled for that epoch.
	ErrCanceled = errors.New("fence: cancelled")
)

// IndexError is an append beyond the next index: a gap.
type IndexError struct {
	Got, Want int
}

func (e *IndexError) Error() string {
	return fmt.Sprintf("fence: index %d, want %d", e.Got, e.Want)
}
