// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"slices"
	"sync"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/router/fleet"
	"github.com/seguekv/segue/router/journal"
	"github.com/seguekv/segue/router/openai"
	"github.com/seguekv/segue/snapshot"
)

const (
	keepAliveEvery = 15 * time.Second
	// postponeEvery is how much earlier a keep-alive may come than keepAliveEvery after the last write.
	postponeEvery = 100 * time.Millisecond
	// refusalPause is how long a node that refused a session is left alone by it.
	refusalPause = 250 * time.Millisecond
	// stallGrace is how late a stall timer may fire before it says more about this process than about the
	// agent's.
	stallGrace = 250 * time.Millisecond
)

// session is one client request. Its fields belong to the goroutine in run.
type session struct {
	r      *Router
	cfg    *Config
	id     snapshot.SessionID
	tenant string
	req    *openai.Request
	wire   *seguev1.Request
	wish   Protection
	// kind is what the session runs on.
	kind fleet.Kind
	gate *fence.Gate
	out  output
	// client is what out writes to.
	client *client
	// envelope is what out writes with; it is fixed once content was written.
	envelope *openai.Envelope
	rec      *record
	// entry is the session's part of the journal; unjournalled: the journal has failed it.
	entry        *journal.Entry
	unjournalled bool
	// keyed: the request has an idempotency key.
	keyed        bool
	reserveAgain int
	log          *slog.Logger

	arrived time.Time
	prompt  struct {
		tokens int
		digest []byte
	}
	delivery delivery
	pairing  pairing
	relayed  relayed
	// protected and unprotectedCause are the primary's last words about it.
	protected        bool
	unprotectedCause string

	starts, takeovers int
	// attempts counts everything that was asked of a node for the request.
	attempts int
	// sdkRetry is how often the client's library has repeated the request, as it says.
	sdkRetry int
	// promptEstimate stands for the prompt's length until an agent has told it. prefillTime is the longest that a run
	// of it took to its first token.
	promptEstimate int
	prefillTime    time.Duration
	// failedBy is the cause of the last failed run.
	failedBy Cause
	// tried lists nodes on which a run failed; refusers those that refused one a moment ago.
	tried, refusers []string
	// patience is when waiting for a context ends; zero before a wait.
	patience time.Time
	// lost is the interruption that isn't mended yet.
	lost *interruption
	// strays are fenced runs that this session waits for before another one begins.
	strays []stray
	// moving is the planned move that is under way, or nil.
	moving *moving
	// unconfirmed: the end of a run on an upstream, which the session would have to wait for, can't be known.
	unconfirmed bool
	// finishedOn is the node whose run finished the session, or nil.
	finishedOn *fleet.Node
	lastToken  time.Time
	// idle fires when the client needs a keep-alive; nil for answers in one piece.
	idle *time.Timer
	// postponed is when that was last put off.
	postponed time.Time
	readers   sync.WaitGroup
}

// outcome is what a step of the session leads to.
type outcome int

const (
	goOn outcome = iota
	ended
	finished
)

// run serves the request and returns when nothing of it is left but background calls. It reports whether the
// answer got the end it should have: one that lacks it must not look complete.
func (s *session) run(ctx context.Context) (whole bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer s.readers.Wait()
	defer cancel()
	defer s.unpair()
	defer s.refuseOrders()
	if s.out.streams() {
		s.idle = time.NewTimer(s.cfg.HeaderHold)
		defer s.idle.Stop()
	}
	s.pairing.results = make(chan pairResult, 1)
	a, failure := s.place(ctx, kindGenerate)
	for failure == nil {
		var end ending
		var what outcome
		if end, what = s.follow(ctx, a); what == finished {
			s.finishedOn = a.node
			return true
		}
		a, failure = s.recover(ctx, a, end)
	}
	return s.fail(*failure)
}

// preparedC is nil, and so never ready, while nobody is asked to prepare.
func (s *session) preparedC() <-chan prepared {
	if s.moving == nil || s.moving.from != nil {
		return nil
	}
	return s.moving.prepared
}

// idleC is nil, and so never ready, for answers in one piece.
func (s *session) idleC() <-chan time.Time {
	if s.idle == nil {
		return nil
	}
	return s.idle.C
}

// wrote postpones the next keep-alive.
func (s *session) wrote() {
	if now := time.Now(); s.idle != nil && now.Sub(s.postponed) >= postponeEvery {
		s.postponed = now
		s.idle.Reset(keepAliveEvery)
	}
}

func (s *session) keepAlive() error {
	s.wrote()
	return s.out.keepAlive()
}

// mustProtect reports whether the session may run only while protected.
func (s *session) mustProtect() bool {
	return s.wish != ProtectionOff && s.cfg.OnUnprotected == UnprotectedFail
}

// granted is the X-Segue-Protection header: the wish, or why it isn't met.
func (s *session) granted() string {
	switch {
	case s.wish == ProtectionOff || s.protected:
		return string(s.wish)
	case s.kind == fleet.KindServer:
		return "none; reason=" + s.relayed.reason
	case s.unprotectedCause != "":
		return "none; reason=" + s.unprotectedCause
	case len(s.pairing.holders) == 0:
		return "none; reason=no_holder"
	}
	return string(s.wish)
}

// unprotectable is why the session can't be protected.
func (s *session) unprotectable() string {
	if s.kind == fleet.KindServer {
		return s.relayed.reason
	}
	return "no_holder"
}

// place waits for a context and starts a run from the prompt on it.
func (s *session) place(ctx context.Context, kind string) (*attempt, *ending) {
	if s.patience.IsZero() {
		s.patience = time.Now().Add(s.cfg.Queue.Wait)
	}
	claim, failure := s.wait(ctx, kind)
	if failure != nil {
		return nil, failure
	}
	node := claim.Node
	var avoid []string
	if s.lost != nil && !s.lost.end.refused {
		avoid = append(avoid, s.lost.from)
	}
	var h *holder
	if s.kind == fleet.KindAgent {
		h = s.chooseHolder(node, avoid...)
	}
	if h == nil && s.mustProtect() {
		claim.Release()
		return nil, &ending{cause: CauseUnprotected, reason: seguev1.Reason_REASON_UNPROTECTED, detail: s.unprotectable()}
	}
	s.starts++
	if kind == kindGenerate {
		s.r.budget.fresh(s.prefillTokens())
	}
	if s.kind == fleet.KindServer {
		return s.relay(ctx, kind, claim), nil
	}
	s.assign(h)
	s.envelope.Fingerprint = systemFingerprint(node.Fingerprint())
	return s.generate(ctx, kind, claim, h), nil
}

// wait is the queue.
func (s *session) wait(ctx context.Context, kind string) (*fleet.Claim, *ending) {
	if len(s.refusers) > 0 && !time.Now().Before(s.patience) {
		return nil, s.noContext("every agent with a free context refused")
	}
	deadline := time.NewTimer(time.Until(s.patience))
	defer deadline.Stop()
	for {
		ticket, err := s.r.fleet.Enqueue(fleet.Want{
			Kind: s.kind, Model: s.req.Engine.Model, Tokens: s.outstanding(), Avoid: slices.Concat(s.tried, s.refusers), Urgent: kind != kindGenerate || len(s.refusers) > 0,
		})
		if err != nil {
			return nil, s.noContext("the queue is full")
		}
		claim, failure := s.waitFor(ctx, ticket, deadline.C)
		ticket.Close()
		if claim != nil || failure != nil {
			return claim, failure
		}
		s.refusers = nil
	}
}

// waitFor returns a claim, or why there is none, or neither when refusers may be asked again.
func (s *session) waitFor(ctx context.Context, ticket *fleet.Ticket, deadline <-chan time.Time) (*fleet.Claim, *ending) {
	var again <-chan time.Time
	if len(s.refusers) > 0 {
		t := time.NewTimer(refusalPause)
		defer t.Stop()
		again = t.C
	}
	for {
		select {
		case claim := <-ticket.C:
			return claim, nil
		case <-again:
			return nil, nil
		case <-deadline:
			// A claim that came at the same moment is better than an error.
			select {
			case claim := <-ticket.C:
				return claim, nil
			default:
			}
			return nil, s.noContext("no context became free within " + s.cfg.Queue.Wait.String())
		case <-s.idleC():
			if err := s.keepAlive(); err != nil {
				return nil, &ending{cause: CauseClientGone}
			}
		case <-ctx.Done():
			end := contextEnding(ctx)
			return nil, &end
		}
	}
}

// noContext is the end of a session that found no room: the interruption it was to mend, if there is one.
func (s *session) noContext(detail string) *ending {
	if s.lost != nil {
		end := s.lost.end
		end.detail, end.private = "no retry: "+detail, false
		return &end
	}
	if s.r.fleet.Ready(s.kind) == 0 {
		return &ending{cause: CauseNotReady, detail: "no " + s.kind.String() + " is ready"}
	}
	return &ending{cause: CauseNoCapacity, detail: detail}
}

// follow takes in what an attempt yields until it finishes the session or ends without doing so.
func (s *session) follow(ctx context.Context, a *attempt) (ending, outcome) {
	bound := s.cfg.StallTimeout
	if a.reply != nil {
		bound = a.reply.allowed()
	}
	stall, due := time.NewTimer(bound), time.Now().Add(bound)
	defer stall.Stop()
	repair := time.NewTicker(pairEvery)
	defer repair.Stop()
	for {
		select {
		case m := <-a.messages:
			end, what := s.take(a, m)
			allowed := bound
			if what == ended {
				if ctx.Err() != nil {
					return contextEnding(ctx), ended // the agent's call ends with ctx: its failure tells nothing of the agent
				}
				var again bool
				if allowed, again = s.repeat(a, end, bound); !again {
					return a.judge(end), ended
				}
			} else if what == finished {
				return end, what
			}
			if a.reply != nil {
				allowed = a.reply.allowed()
			}
			// Counted from here: while a write to the client blocked, nobody listened.
			stall.Reset(allowed)
			due = time.Now().Add(allowed)
		case <-stall.C:
			if len(a.messages) > 0 || time.Since(due) > stallGrace {
				if a.reply != nil {
					bound = max(a.reply.allowed(), stallGrace)
				}
				stall.Reset(bound)
				due = time.Now().Add(bound)
				continue
			}
			if a.reply != nil {
				return ending{cause: CauseStall, detail: "no content in time"}, ended
			}
			return a.judge(ending{cause: CauseStall, detail: "no sign of life for " + bound.String()}), ended
		case <-s.idleC():
			if err := s.keepAlive(); err != nil {
				return ending{cause: CauseClientGone}, ended
			}
		case <-repair.C:
			s.repair(a)
		case r := <-s.pairing.results:
			s.onPaired(a, r)
		case o := <-s.rec.orders:
			if end, ends := s.obey(a, o); ends {
				return end, ended
			}
		case p := <-s.preparedC():
			if end, ends := s.onPrepared(a, p); ends {
				return end, ended
			}
		case <-ctx.Done():
			return contextEnding(ctx), ended
		}
	}
}

// contextEnding says whether the client left or the router stops.
func contextEnding(ctx context.Context) ending {
	if stopped(ctx) {
		return ending{cause: CauseRouterShutdown, detail: "the router is stopping"}
	}
	return ending{cause: CauseClientGone}
}

// systemFingerprint names a fingerprint in the API's style: equal exactly for equal ones, in practice.
func systemFingerprint(fingerprint []byte) string {
	sum := sha256.Sum256(fingerprint)
	return "fp_" + hex.EncodeToString(sum[:5])
}
