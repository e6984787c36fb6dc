// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

// errUneven means that the sessions of a group were not spread evenly over the nodes.
var errUneven = errors.New("bench: sessions are not spread evenly over the nodes")

// live is one stream of a group while it runs.
type live struct {
	ref *reference
	// decoding is closed at the first chunk, or at the end of a stream without any.
	decoding chan struct{}
	// indexes gets the highest index of each chunk; closed at the end. Its capacity holds a whole answer.
	indexes chan int
	// ended is closed when the answer has ended.
	ended chan struct{}

	session    string // valid once decoding is closed
	primary    string
	transcript *client.Transcript
	err        error
}

// killed is a group of concurrent streams with one kill in it, as it was observed.
type killed struct {
	streams []*live
	// fired tells whether the kill happened; without it at, node and index mean nothing.
	fired bool
	at    time.Time // just before the kill call
	node  string
	index int // output index whose arrival armed the kill
	shot  *cluster.Shot
	// second is the kill of the standby; nil when there was none.
	second *secondKill
	// lateRuns is how many runs ended on a hung engine after it was let go on.
	lateRuns int
}

// shots are the kills that happened.
func (k *killed) shots() []*cluster.Shot {
	shots := []*cluster.Shot{k.shot}
	if k.second != nil {
		shots = append(shots, k.second.shot)
	}
	return shots
}

// killing says how a group is run and killed.
type killing struct {
	*lab

	target cluster.Target
	// second, if set, kills the standby too.
	second *SecondDraw
	// prefer is the node to kill, if one of the streams has it as primary.
	prefer string
	// draw is the moment of the kill against a reference; equal arguments give equal draws.
	draw func(*reference) Draw
	// onChunk is called for each chunk, if set.
	onChunk func(client.Chunk)
}

// killGroup streams the group and kills once, at the drawn moment. It returns when every stream has ended.
func killGroup(ctx context.Context, how killing, group []*reference) (*killed, error) {
	parent := ctx
	shots, err := how.aim(ctx, how.target)
	if err != nil {
		return nil, err
	}
	var seconds map[string]*cluster.Shot
	if how.second != nil {
		if seconds, err = how.aim(ctx, how.second.Target); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, errors.New("answer takes too long"))
	defer cancel()
	k := &killed{}
	var running sync.WaitGroup
	defer running.Wait()
	for _, ref := range group {
		s := &live{ref: ref, decoding: make(chan struct{}), ended: make(chan struct{}), indexes: make(chan int, 2*ref.prompt.body.MaxTokens)}
		k.streams = append(k.streams, s)
		running.Go(func() { s.run(ctx, how) })
	}
	victim, err := k.strike(ctx, how, shots)
	if err == nil && victim != nil && how.second != nil {
		err = k.strikeAgain(ctx, how, victim, seconds)
	}
	if err == nil && victim != nil && how.target == cluster.TargetHang {
		err = k.thaw(ctx, how)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	running.Wait()
	for _, s := range k.streams {
		if s.transcript == nil {
			return nil, fmt.Errorf("stream: %w", s.err)
		}
	}
	if parent.Err() != nil {
		return nil, context.Cause(parent)
	}
	return k, nil // an answer that never ended is in its transcript, as a transport problem
}

// run streams one request; its hooks never block.
func (s *live) run(ctx context.Context, how killing) {
	defer close(s.ended)
	defer close(s.indexes)
	decodes := sync.OnceFunc(func() { close(s.decoding) })
	defer decodes()
	s.transcript, s.err = how.client.Stream(ctx, client.Call{
		Body:       s.ref.prompt.body,
		Protection: how.protection,
		OnStart:    func(session string) { s.session = session },
		OnChunk: func(chunk client.Chunk) {
			decodes()
			select {
			case s.indexes <- chunk.Last():
			default: // more chunks than an answer may have: the judge will say so
			}
			if how.onChunk != nil {
				how.onChunk(chunk)
			}
		},
	})
}

// strike waits until all streams decode, picks the victim and kills its primary at the drawn moment. It does nothing
// and returns nil when the victim's stream ends before that.
func (k *killed) strike(ctx context.Context, how killing, shots map[string]*cluster.Shot) (*live, error) {
	for _, s := range k.streams {
		<-s.decoding
		if s.session == "" {
			continue // refused, or broken: judged later
		}
		record, err := how.cluster.Router().Session(ctx, s.session)
		if err != nil {
			return nil, fmt.Errorf("find the primary of session %s: %w", s.session, err)
		}
		s.primary = record.Primary
	}
	if !k.even(shots) {
		return nil, errUneven
	}
	candidates := slices.DeleteFunc(slices.Clone(k.streams), func(s *live) bool { return s.primary != how.prefer })
	if len(candidates) == 0 {
		candidates = k.streams
	}
	d := how.draw(k.streams[0].ref)
	victim := candidates[int(d.Victim*float64(len(candidates)))]
	d = how.draw(victim.ref)
	shot := shots[victim.primary]
	if shot == nil {
		return nil, nil
	}
	reached := -1
	for reached < d.Index {
		last, open := <-victim.indexes
		if !open {
			return nil, nil
		}
		reached = max(reached, last)
	}
	for drained := false; !drained; { // where waiting for other streams took longer than the drawn index
		select {
		case last, open := <-victim.indexes:
			if !open {
				return nil, nil
			}
			reached = max(reached, last)
		default:
			drained = true
		}
	}
	timer := time.NewTimer(d.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	at, err := shot.Fire()
	if err != nil {
		return nil, err
	}
	k.fired, k.at, k.node, k.index, k.shot = true, at, victim.primary, reached, shot
	return victim, nil
}

// thaw lets a hung engine go on once every stream that it served goes on elsewhere, or has ended.
func (k *killed) thaw(ctx context.Context, how killing) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, s := range k.streams {
		for moved := s.primary != k.node; !moved; {
			record, err := how.cluster.Router().Session(ctx, s.session)
			if err != nil {
				return fmt.Errorf("watch session %s: %w", s.session, err)
			}
			seam, retried := stateOf(record, k.node)
			if moved = record.Ended() || retried || seam != nil && seam.ResumedAt != ""; moved {
				continue
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	var err error
	k.lateRuns, err = how.cluster.Thaw(ctx, k.shot)
	return err
}

// afterFence is how many tokens of an attempt the gate let through after the next one had begun.
func afterFence(s *cluster.Session) int {
	n := 0
	if s == nil {
		return 0 // it was never known to a router
	}
	for i, a := range s.Attempts[:max(len(s.Attempts)-1, 0)] {
		if next := s.Attempts[i+1]; next.Kind != cluster.AttemptRetry {
			n += max(a.FromIndex+a.Accepted-next.FromIndex, 0)
		}
	}
	return n
}

// even reports whether each node is primary of the same number of streams; a single stream always is.
func (k *killed) even(shots map[string]*cluster.Shot) bool {
	if len(k.streams) == 1 {
		return true
	}
	count := make(map[string]int)
	for _, s := range k.streams {
		count[s.primary]++
	}
	for id := range shots {
		if count[id]*len(shots) != len(k.streams) {
			return false
		}
	}
	return true
}

// Pause is how a client saw one takeover.
type Pause struct {
	// Pause is from the kill to the first token decoded by the standby, Gap the largest gap between chunks around the
	// kill, Detect from the kill to the router's decision to fence.
	Pause, Gap, Detect time.Duration
}

// pauseOf measures a takeover: at is the instant of the kill, seam where the standby went on. It is false when no
// chunk holds a token that the standby decoded.
func pauseOf(chunks []client.Chunk, at time.Time, seam cluster.Seam) (Pause, bool) {
	p := Pause{Detect: seam.FencedAt.Sub(at)}
	var before time.Time
	for _, c := range chunks {
		if !before.IsZero() && c.At.After(at) {
			p.Gap = max(p.Gap, c.At.Sub(before))
		}
		before = c.At
		if c.Last() >= seam.Index {
			p.Pause = c.At.Sub(at)
			return p, true
		}
	}
	return Pause{}, false
}

// progressAt is the highest output index the client had at an instant, or -1.
func progressAt(chunks []client.Chunk, at time.Time) int {
	last := -1
	for _, c := range chunks {
		if !c.At.After(at) {
			last = max(last, c.Last())
		}
	}
	return last
}

// stateOf finds what became of a session: the seam behind the killed node, and whether it was started over.
func stateOf(s *cluster.Session, node string) (seam *cluster.Seam, retried bool) {
	for i := range s.Seams {
		if s.Seams[i].From == node && seam == nil {
			seam = &s.Seams[i]
		}
	}
	for _, a := range s.Attempts {
		retried = retried || a.Kind == cluster.AttemptRetry
	}
	return seam, retried
}
