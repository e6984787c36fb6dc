// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fence

import "time"

// asksKept is how many questions a holder remembers.
const asksKept = 64

// Asks remembers when a holder asked for renewals. A grant quotes the question's number, so that however long question
// and answer were on their way, the lease counts from before it was asked for. The zero value has asked nothing.
type Asks struct {
	last uint64
	at   [asksKept]time.Duration
}

// Ask numbers a question asked after now. The first is 1.
func (a *Asks) Ask(now time.Duration) uint64 {
	a.last++
	a.at[a.last%asksKept] = now
	return a.last
}

// At is when the question was asked; false for one that never was, or too many questions ago.
func (a *Asks) At(number uint64) (time.Duration, bool) {
	if number == 0 || number > a.last || a.last-number >= asksKept {
		return 0, false
	}
	return a.at[number%asksKept], true
}
