// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

// action is what follows the end of an attempt.
type action int

const (
	actFail action = iota
	actTakeover
	actRetry
)

func (a action) String() string { return [...]string{"fail", "takeover", "retry"}[a] }

// facts are what the decision depends on.
type facts struct {
	// end is the interruption; a refused takeover doesn't replace it.
	end ending
	// content: a content-bearing write was begun.
	content bool
	// holders counts assigned holders that were not asked about this interruption.
	holders int
	// elsewhere counts nodes on which no run of this session failed.
	elsewhere int
	// starts counts runs from the prompt that began somewhere.
	starts, maxAttempts     int
	takeovers, maxTakeovers int
}

// decide chooses by rules, first match wins:
//
//	nothing can help             the client is gone, the router stops, the request itself is wrong,
//	                             protection is required and gone
//	nothing ran                  no holder has anything: elsewhere, without spending an attempt
//	a holder is left             takeover, content or not: it loses nothing
//	no content, attempts left    retry from the prompt on a node where none failed
//	else                         honest error
func decide(f facts) action {
	switch f.end.cause {
	case CauseClientGone, CauseRouterShutdown, CauseUnprotected:
		return actFail
	}
	switch {
	case f.end.deterministic():
		return actFail
	case !f.end.refused && f.holders > 0 && f.takeovers < f.maxTakeovers:
		return actTakeover
	case f.content || f.elsewhere <= 0:
		return actFail
	case f.end.refused || f.starts < f.maxAttempts:
		return actRetry
	}
	return actFail
}
