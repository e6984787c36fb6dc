// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/seguekv/segue/bench/cluster"
)

// When the standby of a killed primary is killed too.
const (
	// SecondDuring is while it takes over: nobody else holds the session then. What it held is lost with its agent, and
	// outlives its engine.
	SecondDuring = "takeover"
	// SecondProtected is once a third node covers the session again.
	SecondProtected = "protected"
)

// SecondDraw says how the standby is killed after the primary.
type SecondDraw struct {
	Target cluster.Target
	// When is SecondDuring or SecondProtected.
	When string
	// Delay from the moment that the router's record shows the condition.
	Delay time.Duration
}

// secondKill is the kill of a standby as it was observed.
type secondKill struct {
	at        time.Time // just before the kill call
	shot      *cluster.Shot
	protected bool // the router's record said so just before
}

// secondPoll spaces the looks at the router's record, which has no event to wait for.
const secondPoll = 3 * time.Millisecond

// aim prepares a shot at every node.
func (l *lab) aim(ctx context.Context, target cluster.Target) (map[string]*cluster.Shot, error) {
	shots := make(map[string]*cluster.Shot, len(l.cluster.Nodes()))
	for _, id := range l.cluster.Nodes() {
		shot, err := l.cluster.Aim(ctx, id, target)
		if err != nil {
			return nil, err
		}
		shots[id] = shot
	}
	return shots, nil
}

// strikeAgain waits for the condition of the second kill and kills the standby. It does nothing when the answer ends
// before that.
func (k *killed) strikeAgain(ctx context.Context, how killing, victim *live, shots map[string]*cluster.Shot) error {
	tick := time.NewTicker(secondPoll)
	defer tick.Stop()
	for {
		record, err := how.cluster.Router().Session(ctx, victim.session)
		if err != nil {
			return fmt.Errorf("find the standby of session %s: %w", victim.session, err)
		}
		if shot := shots[how.second.standby(record, k.node)]; shot != nil {
			return k.fireAgain(ctx, how, victim, shot)
		}
		select {
		case <-tick.C:
		case <-victim.ended:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (k *killed) fireAgain(ctx context.Context, how killing, victim *live, shot *cluster.Shot) error {
	timer := time.NewTimer(how.second.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-victim.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	record, err := how.cluster.Router().Session(ctx, victim.session)
	if err != nil {
		return fmt.Errorf("look at session %s: %w", victim.session, err)
	}
	if record.Ended() {
		return nil
	}
	at, err := shot.Fire()
	if err != nil {
		return err
	}
	k.second = &secondKill{at: at, shot: shot, protected: record.Protected}
	return nil
}

// standby is the node to kill now, or empty while the condition doesn't hold.
func (d *SecondDraw) standby(s *cluster.Session, killed string) string {
	last := s.Attempts[len(s.Attempts)-1]
	switch {
	case s.Ended() || last.Kind != cluster.AttemptTakeover || last.Node == killed:
		return ""
	case d.When == SecondProtected && !s.Protected:
		return ""
	}
	return last.Node
}
