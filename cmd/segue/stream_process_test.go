// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
	"github.com/seguekv/segue/router"
)

// stream is one request of a real HTTP client. Its seed is unique among the streams of a rig and is how its session
// is found before the response headers are in.
type stream struct {
	body       client.Body
	protection string
	// received gets the number of tokens after each chunk; its capacity holds every answer.
	received chan int
	tokens   atomic.Int64
	done     chan struct{}

	// got and err are valid once done is closed.
	got *client.Transcript
	err error
}

const answerLimit = 90 * time.Second

func (r *rig) stream(body client.Body, protection string) *stream {
	s := &stream{body: body, protection: protection, received: make(chan int, 2*body.MaxTokens+16), done: make(chan struct{})}
	r.mu.Lock()
	r.streams = append(r.streams, s)
	r.mu.Unlock()
	r.note("request with seed %d, protection %s", body.Seed, protection)
	go func() { // ends with the answer, at the latest after answerLimit
		defer close(s.done)
		defer close(s.received)
		ctx, cancel := context.WithTimeoutCause(r.t.Context(), answerLimit, errors.New("no end of the answer"))
		defer cancel()
		n := 0
		s.got, s.err = r.client.Stream(ctx, client.Call{Body: body, Protection: protection, OnChunk: func(c client.Chunk) {
			n += len(c.IDs)
			s.tokens.Store(int64(n))
			s.received <- n
		}})
	}()
	return s
}

// await returns once the client has n tokens or more.
func (s *stream) await(t *testing.T, n int) {
	t.Helper()
	for have := range s.received {
		if have >= n {
			return
		}
	}
	t.Fatalf("the answer ended before token %d: %s", n, s.wait(t).Failure())
}

// silent fails the test if the client has received anything so far.
func (s *stream) silent(t *testing.T) {
	t.Helper()
	select {
	case n, open := <-s.received:
		t.Fatalf("the client of seed %d has %d tokens already (stream open: %t)", s.body.Seed, n, open)
	default:
	}
}

// ended reports whether the answer is over.
func (s *stream) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// wait returns the whole answer.
func (s *stream) wait(t *testing.T) *client.Transcript {
	t.Helper()
	<-s.done
	if s.err != nil {
		t.Fatalf("stream with seed %d: %v", s.body.Seed, s.err)
	}
	return s.got
}

// chat is a request that any engine understands; about four bytes of text are a token.
func (r *rig) chat(text string, seed uint64, tokens int) client.Body {
	return client.Body{
		Model: r.model, Messages: []client.Message{{Role: "system", Content: "Go on."}, {Role: "user", Content: text}},
		MaxTokens: tokens, MinTokens: tokens, IgnoreEOS: true, Seed: seed, Temperature: 0.8, TopK: 40, TopP: 0.95,
	}
}

// longText is a prompt whose prefill takes half a second or more.
func longText() string {
	return strings.Repeat("The clocks were striking thirteen — 時計が鳴った 🕐 — and nobody on the stairs looked up. ", 5)
}

// reference is the undisturbed answer, once from each node; they must agree.
func (r *rig) reference(body client.Body) *client.Transcript {
	r.t.Helper()
	var first *client.Transcript
	nodes := map[string]bool{}
	for range 4 { // requests in a row, or at the same time, go to different nodes
		var pair []*stream
		for range r.ids {
			s := r.stream(body, strict)
			if r.engine == cluster.EngineLlamaCPP {
				s.wait(r.t) // two prefills at once take a small machine's cores from each other
			}
			pair = append(pair, s)
		}
		for _, s := range pair {
			got := s.wait(r.t)
			nodes[r.undisturbed(got)] = true
			if first == nil {
				first = got
			} else if why := client.Differences(got, first); len(why) > 0 {
				r.t.Fatalf("references differ: %v", why)
			}
		}
		if len(nodes) == len(r.ids) {
			return first
		}
	}
	r.t.Fatalf("references ran only on %v", nodes)
	return nil
}

// references are undisturbed answers, all at once and once each.
func (r *rig) references(bodies []client.Body) []*client.Transcript {
	r.t.Helper()
	var streams []*stream
	for _, b := range bodies {
		streams = append(streams, r.stream(b, strict))
	}
	var out []*client.Transcript
	for _, s := range streams {
		r.undisturbed(s.wait(r.t))
		out = append(out, s.got)
	}
	return out
}

// undisturbed checks that an answer is complete and of one attempt, and returns the attempt's node.
func (r *rig) undisturbed(got *client.Transcript) string {
	r.t.Helper()
	if !got.Complete() {
		r.t.Fatalf("reference: %s", got.Failure())
	}
	s, err := r.admin.EndedSession(r.t.Context(), got.Session)
	if err != nil || len(s.Attempts) != 1 {
		r.t.Fatalf("reference: attempts %+v, %v", s.Attempts, err)
	}
	return s.Attempts[0].Node
}

// record waits until f accepts the router's record of a stream, and returns it.
func (r *rig) record(s *stream, what string, f func(router.SessionInfo) bool) (info router.SessionInfo) {
	r.t.Helper()
	eventually(r.t, what, func() error {
		all, err := r.records()
		if err != nil {
			return err
		}
		if info = all[s.body.Seed]; !f(info) {
			return fmt.Errorf("phase %q, primary %q, holder %q", info.Phase, info.Primary, info.Holder)
		}
		return nil
	})
	return info
}

// primary is the node that works on a stream.
func (r *rig) primary(s *stream) string {
	r.t.Helper()
	return r.record(s, "the session has a primary", func(i router.SessionInfo) bool { return i.EndedAt == "" && i.Primary != "" }).Primary
}

// expected is what must have become of a stream.
type expected struct {
	outcome client.Outcome
	// kinds are the histories of attempts that may be.
	kinds []string
}

// Histories of attempts.
const (
	undisturbed = "generate"
	retried     = "generate retry"
	takenOver   = "generate takeover"
	// A holder without a boundary refuses, and the session starts over.
	refusedRetried = "generate takeover retry"
)

// check judges a stream after its end: the answer against the reference, chunk by chunk, and the router's record. It
// returns the record.
func (r *rig) check(s *stream, reference *client.Transcript, want expected) router.SessionInfo {
	t := r.t
	t.Helper()
	got := s.wait(t)
	info := r.record(s, "the record is final", func(i router.SessionInfo) bool { return i.EndedAt != "" })
	verdict := client.Judge(got, reference)
	if verdict.Outcome != want.outcome {
		t.Errorf("seed %d: %s, want %s: %s", s.body.Seed, verdict.Outcome, want.outcome, strings.Join(verdict.Reasons, "; "))
	}
	if verdict.Outcome == client.Refused && (got.Err.Retryable == nil || *got.Err.Retryable) {
		t.Errorf("seed %d: the error invites a retry: %+v", s.body.Seed, got.Err)
	}
	var kinds []string
	for _, a := range info.Attempts {
		kinds = append(kinds, a.Kind)
	}
	if !slices.Contains(want.kinds, strings.Join(kinds, " ")) {
		t.Errorf("seed %d: attempts %v, want one of %q: %+v", s.body.Seed, kinds, want.kinds, info.Attempts)
	}
	if err := onePublisher(info, len(got.Tokens())); err != nil {
		t.Errorf("seed %d: %v\nattempts %+v\nseams %+v", s.body.Seed, err, info.Attempts, info.Seams)
	}
	next := 0
	for _, c := range got.Chunks {
		if len(c.IDs) > 0 && c.First != next {
			t.Errorf("seed %d: a chunk begins at %d, want %d", s.body.Seed, c.First, next)
		}
		next += len(c.IDs)
	}
	return info
}

// onePublisher checks the record for the epoch of each delivered index: there is exactly one, and it never falls.
func onePublisher(i router.SessionInfo, delivered int) error {
	epochs := []uint64{} // by index
	last := uint64(0)
	for _, a := range i.Attempts {
		if a.Epoch <= last {
			return fmt.Errorf("epoch %d after %d", a.Epoch, last)
		}
		last = a.Epoch
		switch a.Kind {
		case "takeover":
			seam := slices.IndexFunc(i.Seams, func(s router.SeamInfo) bool { return s.Epoch == a.Epoch })
			if seam >= 0 && (i.Seams[seam].Delivered != a.FromIndex || i.Seams[seam].Index < a.FromIndex) {
				return fmt.Errorf("attempt from index %d, its seam says delivered %d, decoded from %d", a.FromIndex, i.Seams[seam].Delivered, i.Seams[seam].Index)
			}
		default:
			if a.FromIndex != 0 {
				return fmt.Errorf("a run from the prompt begins at index %d", a.FromIndex)
			}
		}
		if a.FromIndex > delivered {
			return fmt.Errorf("the attempt of epoch %d begins at index %d of %d", a.Epoch, a.FromIndex, delivered)
		}
		// What an attempt publishes replaces nothing: it begins where the gate stood.
		for len(epochs) < delivered {
			epochs = append(epochs, a.Epoch)
		}
		for k := a.FromIndex; k < delivered; k++ {
			epochs[k] = a.Epoch
		}
	}
	if i.DeliveredTokens != delivered {
		return fmt.Errorf("the record counts %d delivered tokens, the client has %d", i.DeliveredTokens, delivered)
	}
	if !slices.IsSorted(epochs) {
		return fmt.Errorf("epochs of the indexes: %v", epochs)
	}
	return nil
}

// keep writes down everything that repeats a failure: inputs, seeds, chunks, records and the trace.
func (r *rig) keep() {
	type kept struct {
		Body       client.Body
		Protection string
		Transcript *client.Transcript
		Tokens     []int32
		Error      string
	}
	records, _ := r.records()
	state := map[string]any{"engine": r.engine, "router": records}
	for _, id := range r.ids {
		var sessions json.RawMessage
		_ = r.nodes[id].get("/v1/sessions", &sessions)
		state["agent "+id] = sessions
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []kept
	for _, s := range r.streams {
		k := kept{Body: s.body, Protection: s.protection}
		if s.ended() && s.got != nil {
			k.Transcript, k.Tokens = s.got, s.got.Tokens()
		}
		list = append(list, k)
	}
	state["streams"], state["trace"] = list, r.trace
	data, err := json.MarshalIndent(state, "", " ")
	if err != nil {
		r.t.Logf("evidence: %v", err)
		return
	}
	path := filepath.Join(r.t.ArtifactDir(), "evidence.json")
	r.t.Logf("trace:\n%s\nevidence: %s (%v); go test -artifacts keeps it", strings.Join(r.trace, "\n"), path, os.WriteFile(path, data, 0o600))
}
