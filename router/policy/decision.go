// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package policy

import "time"

// Class is what kind of failure ended an attempt.
type Class int

// Classes.
const (
	// Dead: the replica's process or its connection is gone, or it says itself that the run has ended.
	Dead Class = iota
	// Uncertain: the replica was cut off or fell silent, and may still work.
	Uncertain
	// Overloaded: the replica has no room.
	Overloaded
	// Refused: the request is wrong, and any replica would say so.
	Refused
	// ClientGone: nobody waits for the answer.
	ClientGone
	// Stopping: this router stops, or may not go on without protection.
	Stopping
)

// classNames is a read-only table.
var classNames = [...]string{"dead", "uncertain", "overloaded", "refused", "client_gone", "stopping"}

func (c Class) String() string { return classNames[c] }

// Action is what follows the end of an attempt.
type Action int

// Actions.
const (
	// Fail ends the answer honestly.
	Fail Action = iota
	// Takeover asks a holder to continue.
	Takeover
	// Wait lets a holder that can't continue at the moment come back.
	Wait
	// Retry starts over from the prompt on another replica.
	Retry
)

// actionNames is a read-only table.
var actionNames = [...]string{"fail", "takeover", "wait", "retry"}

func (a Action) String() string { return actionNames[a] }

// Why says what forbids a retry.
type Why string

// Reasons against a retry, in the order in which they are looked at.
const (
	// Final: nothing can help, whatever the budgets.
	Final Why = "final"
	// Written: content was written to the client, or may have been.
	Written Why = "content_written"
	// NoReplica: no replica is left on which the session has not failed.
	NoReplica Why = "no_replica"
	// Unconfirmed: the failed run may go on, and the session is to wait for its end, which nobody can confirm.
	Unconfirmed Why = "source_not_ended"
	// Attempts: the request's starts from the prompt are used up.
	Attempts Why = "attempts"
	// SameFailure: a second replica failed in the same way.
	SameFailure Why = "same_failure"
	// PrefillTokens: the prompt is longer than what a retry may compute again.
	PrefillTokens Why = "prefill_tokens"
	// Time: the retry would begin, or get to its first token, too late.
	Time Why = "time"
	// FleetBudget: retries have used up their share of the fleet's prefill.
	FleetBudget Why = "fleet_budget"
)

// Facts are what a decision depends on.
type Facts struct {
	Class Class
	// Ran is false when the replica said no at once, or was never reached.
	Ran bool
	// Content: a content-bearing write was begun.
	Content bool
	// Accepted counts tokens the gate has accepted.
	Accepted int
	// Holders counts assigned holders that were not asked about this interruption, Waiting those whose refusal may
	// pass in time.
	Holders, Waiting int
	// Takeovers counts continuations.
	Takeovers, MaxTakeovers int
	// Elsewhere counts replicas on which no run of the session failed.
	Elsewhere int
	// Unconfirmed: the end of an earlier run is to be waited for and can't be known.
	Unconfirmed bool
	// Starts counts runs from the prompt that began somewhere.
	Starts, MaxAttempts int
	// Repeated: this failure and the one before it, on another replica, have the same cause.
	Repeated bool
	// PrefillTokens is the length of the prompt, estimated until a replica has told it. MaxPrefillTokens bounds what
	// may be computed again; 0 is no bound.
	PrefillTokens, MaxPrefillTokens int
	// Elapsed is counted from the request's arrival, PrefillTime is what the prompt took before. MaxTime bounds their
	// sum; 0 is no bound.
	Elapsed, PrefillTime, MaxTime time.Duration
	// Affordable: the fleet's budget has room for PrefillTokens.
	Affordable bool
}

// Decide chooses by rules, first match wins:
//
//	nothing can help             the client is gone, the router stops, the request itself is wrong
//	a holder is left             takeover, content or not: it loses nothing
//	a holder may come back       wait for it, unless a retry is possible and loses nothing
//	nothing forbids it           retry from the prompt on a replica where none failed
//	else                         honest error
//
// The reason is set with Fail.
func Decide(f Facts) (Action, Why) {
	switch f.Class {
	case ClientGone, Stopping, Refused:
		return Fail, Final
	}
	why := f.againstRetry()
	takeover := f.Ran && f.Takeovers < f.MaxTakeovers
	switch {
	case takeover && f.Holders > 0:
		return Takeover, ""
	case takeover && f.Waiting > 0 && (f.Accepted > 0 || why != ""):
		return Wait, ""
	case why == "":
		return Retry, ""
	}
	return Fail, why
}

// againstRetry is empty when nothing speaks against one. A run that never began costs nothing.
func (f Facts) againstRetry() Why {
	switch {
	case f.Content:
		return Written
	case f.Elsewhere == 0:
		return NoReplica
	case f.Unconfirmed:
		return Unconfirmed
	case !f.Ran:
		return ""
	case f.Starts >= f.MaxAttempts:
		return Attempts
	case f.Repeated:
		return SameFailure
	case f.MaxPrefillTokens > 0 && f.PrefillTokens > f.MaxPrefillTokens:
		return PrefillTokens
	case f.MaxTime > 0 && f.Elapsed+f.PrefillTime > f.MaxTime:
		return Time
	case !f.Affordable:
		return FleetBudget
	}
	return ""
}
