// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/transfer"
)

// Rules are a session's rules in a test.
type Rules struct {
	Sync                       bool
	Window                     int
	CommitTimeout, BaseTimeout time.Duration
}

// Judge is the protection of one session.
type Judge struct{ p protection }

// Shield is a judge's state as text.
type Shield struct{ State, Cause, Detail string }

// NewJudge returns a judge in a state.
func NewJudge(s Shield) *Judge {
	for i, name := range shieldNames() {
		if name == s.State {
			return &Judge{protection{shield(i), s.Cause, s.Detail}}
		}
	}
	panic("no such state: " + s.State)
}

func shieldNames() []string { return []string{"pending", "protected", "unprotected"} }

// Now is the judge's state.
func (j *Judge) Now() Shield {
	return Shield{shieldNames()[j.p.state], j.p.cause, j.p.detail}
}

// Update is protection.update.
func (j *Judge) Update(r Rules, st transfer.Status, released int, now time.Time) (changed bool, next time.Duration) {
	return j.p.update(rules{sync: r.Sync, window: r.Window, commitTimeout: r.CommitTimeout, baseTimeout: r.BaseTimeout}, st, released, now)
}

// ReasonName names a reason by number.
func ReasonName(n int32) string { return reasonName(seguev1.Reason(n)) }

// Slots is the admission.
type Slots struct{ a admission }

// Acquire takes a slot.
func (s *Slots) Acquire(limit int) (release func(), ok bool) { return s.a.acquire(limit) }

// InUse counts the slots taken.
func (s *Slots) InUse() int { return s.a.inUse() }
