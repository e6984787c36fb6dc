// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"strings"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/transfer"
)

// shield is a session's protection state.
//
//	pending ----holder commits----> protected
//	pending, protected --lost, rejected--> unprotected --holder is a window behind or less--> pending
type shield uint8

const (
	// pending: a holder is assigned and has not caught up; under sync, tokens wait. The state before the
	// first announcement, and a short one without an announcement of its own later.
	pending shield = iota
	protected
	unprotected
)

// Causes of an unprotected session that aren't refusals of the holder.
const (
	causeNoHolder   = "no_holder"
	causeHolderLost = "holder_lost"
	causeStoreFull  = "store_full"
)

// rules are what a session's protection depends on besides the outbox.
type rules struct {
	sync          bool
	window        int
	commitTimeout time.Duration
	baseTimeout   time.Duration
}

// protection is the pure core of the guard.
type protection struct {
	state  shield
	cause  string
	detail string
}

// update moves the state according to what the outbox says at time now, when released tokens have been
// handed on. It returns whether the state changed and how long it holds if nothing else happens (0: no bound).
//
// INVARIANT: under sync, protected implies committed >= released.
func (p *protection) update(r rules, st transfer.Status, released int, now time.Time) (changed bool, next time.Duration) {
	to, cause, detail := p.judge(r, st, released, now, &next)
	changed = to != p.state || (to == unprotected && cause != p.cause)
	p.state, p.cause, p.detail = to, cause, detail
	return changed, next
}

func (p *protection) judge(r rules, st transfer.Status, released int, now time.Time, next *time.Duration) (to shield, cause, detail string) {
	switch {
	case !st.Attached:
		return unprotected, causeNoHolder, ""
	case st.Rejected:
		return unprotected, reasonName(st.Reason), st.Detail
	}
	late := func(since time.Time, limit time.Duration) bool {
		if since.IsZero() {
			return false
		}
		left := limit - now.Sub(since)
		if left > 0 && (*next == 0 || left < *next) {
			*next = left
		}
		return left <= 0
	}
	if st.Replicating {
		if late(st.OldestUncommitted, r.commitTimeout) {
			return unprotected, causeHolderLost, "commit_timeout"
		}
	} else if st.Rows > st.AckRows || st.Captured > 0 || !st.Connected {
		// A base may be long in coming, the connection may not.
		if late(st.DownSince, r.commitTimeout) {
			return unprotected, causeHolderLost, "no connection"
		}
		if late(st.MovedAt, r.baseTimeout) {
			return unprotected, causeHolderLost, "base_timeout"
		}
	}
	caughtUp := st.Replicating && (!r.sync || st.Committed >= released)
	near := st.Replicating && st.Connected && st.Captured-st.Committed < r.window
	switch {
	case p.state == protected && !caughtUp:
		return unprotected, causeHolderLost, "the holder's store is gone"
	case p.state == unprotected && !near:
		return unprotected, p.cause, p.detail
	case caughtUp:
		return protected, "", ""
	}
	// While tokens flow, a commit always comes too late for the newest: they wait until it has come.
	return pending, p.cause, p.detail
}

// reasonName is the enum value as it appears in causes: REASON_STORE_FULL → store_full. Values that this build
// doesn't know have one name.
func reasonName(r seguev1.Reason) string {
	if _, ok := seguev1.Reason_name[int32(r)]; !ok {
		r = seguev1.Reason_REASON_UNSPECIFIED
	}
	return strings.ToLower(strings.TrimPrefix(r.String(), "REASON_"))
}
