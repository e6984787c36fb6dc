// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fence

import (
	"errors"
	"fmt"
	"time"
)

const (
	// renewalsPerLease is how many renewals must fit into a lease's usable time, and a bit more. What a renewal grants
	// was asked for one renewal earlier, the next takes another to come, and one may be lost.
	renewalsPerLease = 3
	// longestLease bounds what a holder accepts: a mistake in a unit must not keep a run for a day.
	longestLease = 10 * time.Minute
)

// Lease is how long a run may go on without a word from its grantor. Both sides use the same numbers. With clocks
// whose rates differ by a factor less than (TTL + Margin) / (TTL - Margin), a run has ended when its grantor
// says so.
type Lease struct {
	TTL time.Duration
	// Margin is taken from the holder's side and added on the grantor's.
	Margin time.Duration
}

// Usable is how long the holder may use it.
func (l Lease) Usable() time.Duration { return l.TTL - l.Margin }

// Validate reports all problems.
func (l Lease) Validate() error {
	var errs []error
	if l.TTL > longestLease {
		errs = append(errs, fmt.Errorf("ttl is %v, want at most %v", l.TTL, longestLease))
	}
	if l.Margin <= 0 {
		errs = append(errs, fmt.Errorf("margin is %v; without one, clocks that differ in rate end the lease in the wrong order", l.Margin))
	}
	if l.Usable() <= 0 {
		errs = append(errs, fmt.Errorf("ttl is %v, not above the margin (%v): nothing of the lease is usable", l.TTL, l.Margin))
	}
	return errors.Join(errs...)
}

// ValidateRenewal is Validate for a lease that is renewed at an interval.
func (l Lease) ValidateRenewal(every time.Duration) error {
	errs := []error{l.Validate()}
	if every <= 0 {
		errs = append(errs, fmt.Errorf("renewal is %v, want a positive interval", every))
	}
	if least := renewalsPerLease*every + l.Margin; l.TTL <= least {
		errs = append(errs, fmt.Errorf("ttl is %v, want more than %d renewals and the margin (%v): a grant is one renewal old when it comes, lasts until the next, and one may be lost",
			l.TTL, renewalsPerLease, least))
	}
	return errors.Join(errs...)
}

// Term is a lease as its holder sees it. The zero value was never granted and isn't live. All times are those of the
// holder's clock, as elapsed time.
type Term struct {
	until time.Duration
	given bool
	over  bool
}

// Grant gives or renews the term at now: it counts from asked, which is before the holder asked for it. It never
// shortens, and a term that is over stays over, which it reports as false.
func (t *Term) Grant(now, asked time.Duration, l Lease) bool {
	if t.given && !t.Live(now) {
		return false
	}
	t.given = true
	t.until = max(t.until, asked+l.Usable())
	return t.Live(now)
}

// Live reports whether the holder may go on at now.
func (t *Term) Live(now time.Duration) bool {
	if t.given && now >= t.until {
		t.over = true
	}
	return t.given && !t.over
}

// Left is how long the term is live if nothing renews it; 0 when it is over.
func (t *Term) Left(now time.Duration) time.Duration {
	if !t.Live(now) {
		return 0
	}
	return t.until - now
}

// Grant is a lease as its grantor sees it. The zero value is not counted yet: it may begin at any later time and isn't
// over. All times are those of the grantor's clock, as elapsed time.
type Grant struct {
	// until is when the holder stops at the latest, by this clock.
	until   time.Duration
	usable  time.Duration
	counted bool
}

// Count gives or renews the lease. It counts from received: not before the holder's question was received; for a
// lease that nobody asked for, not before the last moment at which the call that carries it may have arrived.
// A grantor counts before it sends. It never shortens.
func (g *Grant) Count(received time.Duration, l Lease) {
	g.counted = true
	g.until = max(g.until, received+l.TTL+l.Margin)
	g.usable = max(g.usable, received+l.Usable())
}

// Counted reports whether the lease has begun to run out.
func (g *Grant) Counted() bool { return g.counted }

// Over reports whether the holder has certainly stopped.
func (g *Grant) Over(now time.Duration) bool { return g.counted && now >= g.until }

// Left is how long it is until Over, for a lease that is counted and isn't renewed.
func (g *Grant) Left(now time.Duration) time.Duration { return max(g.until-now, 0) }

// Spare is how long a renewal may take to reach the holder in time, if the clocks agree.
func (g *Grant) Spare(now time.Duration) time.Duration { return max(g.usable-now, 0) }
