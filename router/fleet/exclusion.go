// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import (
	"context"
	"time"
)

const (
	excludeFirst = time.Second
	excludeMost  = 30 * time.Second
)

// exclusion keeps a node that fails from being chosen: longer with each failure in a row. When it is over, one session
// at a time tries the node until one succeeds.
type exclusion struct {
	failures int
	until    time.Time
	reason   string
	// round rises with each exclusion: a session that began in an earlier one says nothing new by failing.
	round uint64
	trial *Claim
}

// fail begins the next exclusion, and returns how long it is.
func (e *exclusion) fail(now time.Time, reason string) time.Duration {
	d := excludeMost
	if e.failures < 5 {
		d = min(excludeFirst<<e.failures, excludeMost)
	}
	e.failures++
	e.round++
	e.until, e.reason, e.trial = now.Add(d), reason, nil
	return d
}

// succeed ends it for good. It reports whether there was anything to end.
func (e *exclusion) succeed() bool {
	was := e.failures > 0
	e.failures, e.until, e.reason, e.trial = 0, time.Time{}, "", nil
	return was
}

// left is how long the exclusion lasts; 0 when there is none or it is over.
func (e *exclusion) left(now time.Time) time.Duration {
	if e.failures == 0 {
		return 0
	}
	return max(e.until.Sub(now), 0)
}

// Fail counts a failure of the replica: it isn't chosen for 1 s, after the next failure in a row for 2 s, and so on up
// to 30 s. Then one session at a time tries it. Use it where no claim is at hand: a failure during an exclusion counts
// only while such a trial runs. reason is for people; it must not quote prompts or outputs.
func (n *Node) Fail(reason string) {
	n.exclude(reason, func(e *exclusion, now time.Time) bool { return e.trial != nil || e.left(now) == 0 })
}

func (n *Node) exclude(reason string, counts func(*exclusion, time.Time) bool) {
	f, e, now := n.fleet, &n.state.exclusion, time.Now()
	f.mu.Lock()
	if !counts(e, now) {
		f.mu.Unlock()
		return
	}
	d := e.fail(now, reason)
	failures := e.failures
	f.mu.Unlock()
	f.expireSoon()
	f.log.Info("excluded after a failure", n.kind.String(), n.id, "for", d, "failures", failures, "reason", reason)
}

// Succeed says that the replica works: failures before count no more. Call it as soon as a session on it has yielded
// output, so that others needn't wait for its end.
func (n *Node) Succeed() {
	f := n.fleet
	f.mu.Lock()
	was := n.state.exclusion.succeed()
	if was {
		f.dispatchLocked()
	}
	f.mu.Unlock()
	if was {
		f.log.Info("no longer excluded", n.kind.String(), n.id)
	}
}

// Fail is Node.Fail for the claim's own session. It does nothing if the node was excluded after the session began:
// sessions that fail together are one failure.
func (c *Claim) Fail(reason string) {
	c.Node.exclude(reason, func(e *exclusion, _ time.Time) bool { return c.round == e.round })
}

// Succeed is Node.Succeed.
func (c *Claim) Succeed() { c.Node.Succeed() }

// expiries serves the queue when an exclusion ends, until ctx ends.
func (f *Fleet) expiries(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-f.expire:
		}
		timer.Stop()
		if d := f.serveExpired(); d > 0 {
			timer.Reset(d)
		}
	}
}

// serveExpired returns how long the exclusion that ends next lasts; 0 when there is none.
func (f *Fleet) serveExpired() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dispatchLocked()
	var next time.Duration
	now := time.Now()
	for _, n := range f.nodes {
		if d := n.state.exclusion.left(now); d > 0 && (next == 0 || d < next) {
			next = d
		}
	}
	return next
}

// expireSoon has expiries look anew.
func (f *Fleet) expireSoon() {
	select {
	case f.expire <- struct{}{}:
	default:
	}
}
