// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

// action is what follows the end of an attempt.
type action int

const (
	actFail action = iota
	actTakeover
	actWait
	actRetry
)

func (a action) String() string { return [...]string{"fail", "takeover", "wait", "retry"}[a] }

// facts are what the decision depends on.
type facts struct {
	// end is the interruption; a refused takeover doesn't replace it.
	end ending
	// content: a content-bearing write was begun.
	content bool
	// accepted counts the gate's tokens.
	accepted int
	// holders counts assigned holders that were not asked about this interruption, waiting those whose refusal
	// may pass in time.
	holders, waiting int
	// elsewhere counts nodes on which no run of this session failed.
	elsewhere int
	// starts counts runs from the prompt that began somewhere.
	starts, maxAttempts int
	// takeovers counts continuations.
	takeovers, maxTakeovers int
}

// decide chooses by rules, first match wins:
//
//	nothing can help             the client is gone, the router stops, the request itself is wrong,
//	                             protection is required and gone
//	nothing ran                  no holder has anything: elsewhere, without spending an attempt
//	a holder is left             takeover, content or not: it loses nothing
//	a holder may come back       wait for it, unless a retry is possible and loses nothing
//	no content, attempts left    retry from the prompt on a node where none failed
//	else                         honest error
func decide(f facts) action {
	switch f.end.cause {
	case CauseClientGone, CauseRouterShutdown, CauseUnprotected:
		return actFail
	}
	retry := !f.content && f.elsewhere > 0 && (f.end.refused || f.starts < f.maxAttempts)
	takeover := !f.end.refused && f.takeovers < f.maxTakeovers
	switch {
	case f.end.deterministic():
		return actFail
	case takeover && f.holders > 0:
		return actTakeover
	case takeover && f.waiting > 0 && (f.accepted > 0 || !retry):
		return actWait
	case retry:
		return actRetry
	}
	return actFail
}
