// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/internal/sim"
	"github.com/seguekv/segue/router/journal"
)

// keptScene is one cell about what is written down: a request with a key, one fault at one record, and what comes of both.
// In the ledger's cells a tool runner acts meanwhile.
type keptScene struct {
	scene
	// session is the request's, reserved its first reservation; nil until they are known.
	session  atomic.Pointer[string]
	reserved atomic.Pointer[[]byte]
	// preceded: the router has crashed, for its next process to recover.
	preceded atomic.Bool
	// refusals counts starts of the router that failed.
	refusals atomic.Int64
	// full ends a full disk; nil for any other fault. It is read when restored is closed.
	full func()
	// lost are nodes whose engines were crashed for the answer to fail; scene.mu guards it.
	lost []*sim.Node
	// runnerDies ends the tool runner.
	runnerDies context.CancelFunc
}

const (
	keptKey    = "key-1"
	keptAction = "kept:call-1"
	// answerLimit is more than the answer and the journal's patience take together.
	answerLimit = 4 * time.Second
)

func (s *keptScene) request() sim.Request {
	r := s.scene.request()
	r.MaxTokens = keptTokens
	return r
}

func (s *keptScene) run(t *testing.T) (observed string, err error) {
	synctest.Test(t, func(t *testing.T) { observed, err = s.play(t) })
	return observed, err
}

func (s *keptScene) play(t *testing.T) (observed string, err error) {
	r := s.request()
	ref, err := sim.Refer(sim.DefaultEngine(), r)
	if err != nil {
		return "", err
	}
	s.restored = make(chan struct{})
	w, err := sim.NewWorld(sim.Config{Seed: 1, Nodes: 3, Engine: sim.DefaultEngine(), Hook: s.at, Replay: true, Verbose: testing.Verbose()})
	defer func() {
		err = errors.Join(err, w.Close())
		s.trace(t, w, observed, err)
	}()
	if err != nil {
		return "", err
	}
	s.w = w
	c, runner := w.NewClient("client"), w.NewClient("runner")
	defer c.Close()
	defer runner.Close()
	observed, err = s.observe(t.Context(), c, runner, r, ref)
	s.mu.Lock()
	defer s.mu.Unlock()
	return observed, errors.Join(append(s.problems, err)...)
}

// observe asks, and then looks at everything that was written down: the record, the key, the action, and all of them again in
// another process of the router.
func (s *keptScene) observe(ctx context.Context, c, runner *sim.Client, r sim.Request, ref *sim.Reference) (string, error) {
	a := s.ask(ctx, c, runner, r)
	answer := s.answer(a, sim.Judge(a, ref, r))
	for range 50 { // an end is written down a little later, and another process comes after a while
		if s.struck.Load() {
			break
		}
		time.Sleep(100 * time.Millisecond) // virtual
	}
	if !s.struck.Load() {
		return answer, errors.New("the point wasn't reached")
	}
	s.revive()
	key := s.repeat(ctx, c, r, ref, len(a.IDs))
	<-s.restored
	if s.full != nil {
		s.full()
	}
	s.noticed(a)
	if err := s.w.Heal(); err != nil {
		return answer, err
	}
	if err := s.w.Rest(time.Minute); err != nil {
		return answer, err
	}
	before := s.w.Router.Record(*s.session.Load())
	for _, why := range sim.JudgeRecord(a, before, s.crashed(), s.fault != "crash" || s.target == "both") {
		s.fail("%s", why)
	}
	action := s.action(ctx)
	if err := s.w.Rest(time.Minute); err != nil {
		return answer, err
	}
	s.nextProcess(ctx, c, r, ref, key, before)
	out := strings.Join([]string{answer, recorded(before), key}, "+")
	if action != "" {
		out += "+" + action
	}
	return out, sim.CheckGate(s.w.Gates.History(*s.session.Load()))
}

// ask sends the request. In the ledger's cells a tool runner acts while the answer is read.
func (s *keptScene) ask(ctx context.Context, c, runner *sim.Client, r sim.Request) *sim.Answer {
	m := sim.Manner{Key: keptKey, RequestID: "kept"}
	runnerCtx, cancel := context.WithCancel(ctx)
	s.runnerDies = cancel
	defer cancel()
	var acting sync.WaitGroup
	defer acting.Wait() // before cancel
	if slices.Contains(ledgerPoints, s.point) {
		var once sync.Once
		m.Seen = func(ids int) {
			if ids >= actingToken {
				once.Do(func() { acting.Go(func() { runner.Act(runnerCtx, keptAction) }) })
			}
		}
	}
	return c.Ask(ctx, r, m)
}

// crashed reports whether the router crashed while the record was being written.
func (s *keptScene) crashed() bool {
	return s.fault == "crash" && s.target != "runner" || s.preceded.Load()
}

// answer names what the client saw.
func (s *keptScene) answer(a *sim.Answer, why []string) string {
	name := "failed" // before any content
	switch {
	case len(why) > 0:
		s.fail("wrong answer: %v", why)
		name = "WRONG"
	case a.Whole():
		name = "whole"
	case a.Broken != nil:
		name = "broken"
		if !s.crashed() && s.target != "client" {
			s.fail("the connection broke: %v", a.Broken)
		}
	case a.Err != nil && a.Err.Partial:
		name = "refused"
	}
	return name
}

// recorded names what the journal says.
func recorded(r *journal.Request) string {
	switch {
	case r == nil:
		return "unknown"
	case r.Phase == journal.PhaseDone:
		return "done"
	case r.UpperBound:
		return "bound"
	case r.FirstDeltaSent:
		return "count"
	}
	return "unsent"
}

// noticed sees that the fault has met more than the disk: a start, or a reservation, that failed. No disk may hold up an
// answer for longer than the journal's patience.
func (s *keptScene) noticed(a *sim.Answer) {
	fails := s.fault == "fail" || s.fault == "full"
	name, _ := s.record()
	if fails && s.preceded.Load() && s.refusals.Load() == 0 {
		s.fail("the router started on a failing disk")
	}
	if (fails || s.fault == "hang") && name == "reserve" && s.w.Router.Count("segue_journal_unjournalled_reservations_total") == 0 {
		s.fail("no reservation failed")
	}
	if took := a.Ended - a.Begun; took > answerLimit && name != "refusal" { // it waits for an engine
		s.fail("the answer took %v", took)
	}
}

// repeat sends the request with its key again, as client libraries do, and names what came of it at last. Nothing runs again
// after content was read. "later-" before it says that no key was taken for a while.
func (s *keptScene) repeat(ctx context.Context, c *sim.Client, r sim.Request, ref *sim.Reference, read int) string {
	later := ""
	for range 60 {
		a := c.Ask(ctx, r, sim.Manner{Key: keptKey, RequestID: "kept", Repeat: true})
		for _, why := range sim.Judge(a, ref, r) {
			s.fail("repetition: %s", why)
		}
		switch {
		case a.Whole() && a.Replayed:
			return later + "replayed"
		case a.Whole() && read > 0:
			s.fail("the key was run again after %d tokens", read)
			return later + "rerun"
		case a.Whole():
			return later + "run"
		case a.Status == http.StatusServiceUnavailable && a.Err != nil && a.Err.Retryable:
			later = "later-"
			if s.fault == "full" { // as soon as somebody has felt it
				<-s.restored
				if s.full != nil {
					s.full()
					s.full = nil
				}
			}
		case a.Status == http.StatusBadGateway && a.Err != nil && !a.Err.Retryable:
			return later + "interrupted"
		case a.Broken == nil:
			s.fail("repetition: status %d, %+v", a.Status, a.Err)
		}
		time.Sleep(500 * time.Millisecond) // virtual
	}
	s.fail("the repetition has no answer")
	return later + "nothing"
}

// action lets a second runner act, and names what became of the action; "" where there is none.
func (s *keptScene) action(ctx context.Context) string {
	if !slices.Contains(ledgerPoints, s.point) {
		return ""
	}
	first := s.w.Tools.Done()
	second := s.w.NewClient("second")
	defer second.Close()
	second.Act(ctx, keptAction)
	done := s.w.Tools.Done()
	state, result := second.Look(ctx, keptAction)
	if state == journal.ActionDone && result != sim.Result(1, keptAction) {
		s.fail("the ledger has the result %s", result)
	}
	switch {
	case first == 1 && state == journal.ActionDone:
		return "acted"
	case first == 1 && state == journal.ActionClaimed:
		return "unsure"
	case first == 0 && done == 1 && state == journal.ActionDone:
		return "acted-later"
	case done == 0 && state == journal.ActionClaimed:
		return "forgone"
	}
	return fmt.Sprintf("%d-%d-%s", first, done, state)
}

// nextProcess sees that all that is written down reads the same in another process of the router.
func (s *keptScene) nextProcess(ctx context.Context, c *sim.Client, r sim.Request, ref *sim.Reference, key string, before *journal.Request) {
	time.Sleep(time.Second) // virtual: ends are written within milliseconds
	s.happened(s.w.Router.Crash())
	if err := s.w.Heal(); err != nil {
		s.fail("the next process: %v", err)
		return
	}
	if is, was := text(s.w.Router.Record(*s.session.Load())), text(before); is != was {
		s.fail("the record reads differently after a restart: %s, then %s", was, is)
	}
	want := "replayed"
	if strings.HasSuffix(key, "interrupted") {
		want = "interrupted"
	}
	if again := s.repeat(ctx, c, r, ref, 0); again != want {
		s.fail("after a restart the key's repetition is %s, want %s", again, want)
	}
	c.Audit(ctx)
	for _, p := range s.w.Tools.Problems() {
		s.fail("%s", p)
	}
	if err := s.w.Rest(time.Minute); err != nil {
		s.fail("%v", err)
	}
}

// text is a record as it is read.
func text(r *journal.Request) string {
	b, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
