// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import "errors"

var (
	// errOrphan ends a run that nobody has listened to for the orphan grace time.
	errOrphan = errors.New("agent: no caller came back in time")
	// errReplaced ends a feed whose session another feed has taken.
	errReplaced = errors.New("agent: another caller attached to the session")
	// errCanceled ends a run that the router cancelled.
	errCanceled = errors.New("agent: cancelled by the router")
	// errLeaseEnded ends a run whose grantor was not heard in time, and refuses a call that comes too late.
	errLeaseEnded = errors.New("agent: the lease is over")
	// errParked ends a run whose state is kept for a takeover.
	errParked = errors.New("agent: the run is parked")
	// errStopping ends a run because the agent stops.
	errStopping = errors.New("agent: stopping")
)

// UnprotectedError ends a session that must be protected and isn't.
type UnprotectedError struct {
	Cause, Detail string
}

func (e *UnprotectedError) Error() string {
	s := "agent: session is unprotected: " + e.Cause
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}
