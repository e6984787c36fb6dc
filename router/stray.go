// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"slices"
	"time"

	"github.com/seguekv/segue/router/fleet"
)

// How a wait for an old run ended.
const (
	waitAcknowledged = "acknowledged" // the agent has answered Cancel
	waitExpired      = "expired"      // the run's lease is over
)

// stray is a fenced run that may go on: it can't publish, but nobody has said that it ended.
type stray struct {
	node  *fleet.Node
	lease *fleet.Lease
	// acknowledged is closed when the agent has answered Cancel; nil when it isn't asked.
	acknowledged <-chan struct{}
}

// gone reports whether the run has certainly ended, and how that is known.
func (old stray) gone() (bool, string) {
	select {
	case <-old.acknowledged:
		return true, waitAcknowledged
	default:
	}
	return old.lease.Left() == 0, waitExpired
}

// doubt remembers a fenced run whose end is uncertain, for a session that waits for it.
func (s *session) doubt(a *attempt, end ending, acknowledged <-chan struct{}) {
	if s.cfg.UncertainSource != SourceWait || end.refused || end.said {
		return
	}
	if a.reply != nil {
		s.unconfirmed = true // it has no lease, and nobody to ask
		return
	}
	s.strays = append(s.strays, stray{a.node, a.lease, acknowledged})
}

// awaitEnds returns when every old run on another node than next has certainly ended, or with the session's end. The
// agent of next ends what runs there itself before it starts a run of a higher epoch. What it waits for takes at most
// until the leases are over.
func (s *session) awaitEnds(ctx context.Context, next *fleet.Node) *ending {
	waited := false
	for {
		var wake time.Duration
		var acknowledged <-chan struct{}
		s.strays = slices.DeleteFunc(s.strays, func(old stray) bool {
			gone, how := old.gone()
			if gone {
				s.r.metrics.waits.WithLabelValues(how).Inc()
				s.log.Info("old run has ended", "agent", old.node.ID(), "known_by", how)
			} else if old.node != next && wake == 0 {
				wake, acknowledged = old.lease.Left(), old.acknowledged
			}
			return gone
		})
		if wake == 0 {
			break
		}
		waited = true
		if failure := s.pause(ctx, time.Now().Add(wake), acknowledged); failure != nil {
			return failure
		}
	}
	if waited && s.lost != nil {
		s.lost.freedAt = time.Now()
	}
	return nil
}
