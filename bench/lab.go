// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

// lab disturbs requests in one way on one cluster, and judges what came out.
type lab struct {
	client     *client.Client
	cluster    *cluster.Cluster
	protection string
	// counting compares the work of the standby's engine with what was needed; it takes the time of letting counters
	// settle, twice, and needs a cluster of two nodes.
	counting bool
	logf     func(format string, args ...any)
}

// examined is a group of streams with a kill in it, judged.
type examined struct {
	*killed
	// redraw means that the kill met nothing: every answer is whole and nobody took over.
	redraw   bool
	outcomes []outcome   // in the order of streams
	takeover *recomputed // nil where the counters can't tell
	// recovery is how long the restart of the killed part took, until the whole cluster was ready.
	recovery time.Duration
}

// outcome is the judgement of one stream.
type outcome struct {
	verdict            client.Verdict
	hit                bool // its primary was on the killed node
	continued, retried bool
	seam               *cluster.Seam
	measured           bool // pause is known: the client got a token that the standby decoded
	pause              Pause
	session            *cluster.Session
}

// counts reports whether something happened to the answer. An answer that the primary had already finished proves
// nothing about kills; everything that is not identical, was started over or was decoded on by a standby does.
func (o outcome) counts() bool {
	return o.verdict.Outcome != client.Identical || o.retried || o.measured
}

// disturb streams a group with one kill, restores the cluster, and judges every answer. Of how, the lab itself is
// filled in.
func (l *lab) disturb(ctx context.Context, group []*reference, how killing) (examined, error) {
	var before map[string]cluster.Counters
	if l.counting {
		var err error
		if before, err = settledCounters(ctx, l.cluster, l.cluster.Nodes()); err != nil {
			return examined{}, err
		}
	}
	how.lab = l
	got, err := killGroup(ctx, how, group)
	if err != nil {
		return examined{}, err
	}
	seen := examined{killed: got}
	if got.fired {
		begun := time.Now()
		if err := l.cluster.Recover(ctx, got.shots()...); err != nil {
			return examined{}, err
		}
		seen.recovery = time.Since(begun)
	}
	seen.redraw = true
	for _, s := range got.streams {
		o, err := l.judge(ctx, got, s)
		if err != nil {
			return examined{}, err
		}
		seen.redraw = seen.redraw && !o.counts()
		seen.outcomes = append(seen.outcomes, o)
	}
	if l.counting && got.fired && !seen.redraw {
		seen.takeover, err = l.recomputed(ctx, seen, before)
	}
	return seen, err
}

// judge compares one answer with its reference and finds out from the router what happened to the session.
func (l *lab) judge(ctx context.Context, got *killed, s *live) (outcome, error) {
	o := outcome{verdict: client.Judge(s.transcript, s.ref.transcript), session: &cluster.Session{}}
	if s.session != "" {
		var err error
		if o.session, err = l.cluster.Router().EndedSession(ctx, s.session); err != nil {
			return o, err
		}
	}
	if o.hit = got.fired && s.primary == got.node; !o.hit {
		return o, nil
	}
	o.seam, o.retried = stateOf(o.session, got.node)
	if o.seam != nil && o.seam.FencedAt.Before(got.at) {
		o.seam = nil // the router had given that node up before it was killed
	}
	if o.seam != nil {
		o.continued = o.verdict.Outcome == client.Identical && !o.retried
		o.pause, o.measured = pauseOf(s.transcript.Chunks, got.at, *o.seam)
	}
	return o, nil
}

// describe is one line about stream i.
func (e examined) describe(i int) string {
	s, o := e.streams[i], e.outcomes[i]
	var line strings.Builder
	line.WriteString(fmt.Sprintf("%-9s %s, %d prompt tokens", o.verdict.Outcome, s.ref.prompt.kind, s.ref.transcript.Usage.PromptTokens))
	switch {
	case !e.fired:
		line.WriteString(", ended before the kill")
	case !o.hit:
		line.WriteString(fmt.Sprintf(", on node %s, not killed", s.primary))
	default:
		line.WriteString(fmt.Sprintf(", %s %s killed at index %d of %d", e.shot.Target, e.node,
			progressAt(s.transcript.Chunks, e.at), s.ref.tokens()))
	}
	if k := e.second; k != nil && o.hit {
		line.WriteString(fmt.Sprintf(", %s %s %.0f ms later", k.shot.Target, k.shot.Node, milliseconds(k.at.Sub(e.at))))
	}
	if o.retried {
		line.WriteString(", retried")
	}
	if o.measured {
		for _, seam := range o.session.Seams {
			line.WriteString(fmt.Sprintf(", %s goes on at %d", seam.To, seam.Index))
		}
		line.WriteString(fmt.Sprintf(": pause %.0f ms, gap %.0f ms, detected in %.1f ms",
			milliseconds(o.pause.Pause), milliseconds(o.pause.Gap), milliseconds(o.pause.Detect)))
	}
	if len(o.verdict.Reasons) > 0 {
		line.WriteString(fmt.Sprintf(" [session %s, protection %q", s.session, s.transcript.Granted))
		for _, change := range o.session.ProtectionLog {
			if !change.Protected {
				line.WriteString(fmt.Sprintf(", unprotected from token %d on: %s", change.FromIndex, change.Cause))
			}
		}
		line.WriteString(": " + strings.Join(o.verdict.Reasons, "; ") + "]")
	}
	return line.String()
}
