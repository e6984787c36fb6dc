// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/snapshot"
	"github.com/seguekv/segue/transfer"
)

const (
	modeOff   = seguev1.ProtectionMode_PROTECTION_MODE_OFF
	modeAsync = seguev1.ProtectionMode_PROTECTION_MODE_ASYNC
	modeSync  = seguev1.ProtectionMode_PROTECTION_MODE_SYNC
)

func request(max int) *seguev1.Request {
	return &seguev1.Request{
		Model:     "sim",
		Prompt:    &seguev1.Request_Text{Text: "the quick brown fox jumps over the lazy dog and goes on its way home"},
		Sampling:  &seguev1.Sampling{Temperature: 0.8, TopP: 0.95, TopK: 40, Seed: 7, RepetitionPenalty: 1.1},
		MaxTokens: uint32(max),
	}
}

func newID(t *testing.T) []byte {
	t.Helper()
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		t.Fatal(err)
	}
	return id
}

// stream yields a call's events.
type stream func() (*seguev1.Event, error)

// transcript is what a caller has received.
type transcript struct {
	seam        *seguev1.Seam
	prompt      *seguev1.Prompt
	protections []*seguev1.Protection
	tokens      []*seguev1.Token
	progress    *seguev1.Progress // the last
	finish      *seguev1.Finish
	err         error
}

func (x *transcript) ids() []int32 {
	out := make([]int32, len(x.tokens))
	for i, t := range x.tokens {
		out[i] = t.GetId()
	}
	return out
}

func (x *transcript) text() string {
	var s strings.Builder
	for _, t := range x.tokens {
		s.WriteString(string(t.GetText()))
	}
	return s.String()
}

// protected is the state last announced.
func (x *transcript) protected() bool {
	n := len(x.protections)
	return n > 0 && x.protections[n-1].GetProtected()
}

func (x *transcript) add(e *seguev1.Event) {
	switch v := e.GetEvent().(type) {
	case *seguev1.Event_Seam:
		x.seam = v.Seam
	case *seguev1.Event_Prompt:
		x.prompt = v.Prompt
	case *seguev1.Event_Protection:
		x.protections = append(x.protections, v.Protection)
	case *seguev1.Event_Token:
		x.tokens = append(x.tokens, v.Token)
	case *seguev1.Event_Progress:
		x.progress = v.Progress
	case *seguev1.Event_Finish:
		x.finish = v.Finish
	}
}

// read reads a stream to its end, or until until says so.
func (x *transcript) read(recv stream, until func(*transcript) bool) *transcript {
	for until == nil || !until(x) {
		e, err := recv()
		if err != nil {
			x.err = err
			return x
		}
		x.add(e)
		if x.finish != nil {
			return x
		}
	}
	return x
}

// equal checks that x is the reference run, whole.
func (x *transcript) equal(t *testing.T, ref *transcript) {
	t.Helper()
	if x.err != nil {
		t.Errorf("stream ended with %v", x.err)
	}
	if diff := cmp.Diff(ref.ids(), x.ids()); diff != "" {
		t.Errorf("ids differ (-reference +got):\n%s", diff)
	}
	if ref.text() != x.text() {
		t.Errorf("text %q, want %q", x.text(), ref.text())
	}
	if x.finish.GetReason() != ref.finish.GetReason() || x.finish.GetTokens() != ref.finish.GetTokens() || x.finish.GetPromptTokens() != ref.finish.GetPromptTokens() {
		t.Errorf("finish %v, want %v", x.finish, ref.finish)
	}
	for i, v := range x.tokens {
		if int(v.GetIndex()) != i {
			t.Fatalf("token %d has index %d", i, v.GetIndex())
		}
	}
}

func tokens(n int) func(*transcript) bool {
	return func(x *transcript) bool { return len(x.tokens) >= n }
}

func protection(n int) func(*transcript) bool {
	return func(x *transcript) bool { return len(x.protections) >= n }
}

func generate(t *testing.T, ctx context.Context, on *testNode, r *seguev1.GenerateRequest) stream {
	t.Helper()
	st, err := on.client.Generate(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return func() (*seguev1.Event, error) {
		m, err := st.Recv()
		return m.GetEvent(), err
	}
}

// order makes the takeover of what x has received.
func (x *transcript) order(id []byte, epoch uint64, r *seguev1.Request, mode seguev1.ProtectionMode) *seguev1.TakeoverRequest {
	d := snapshot.IDsDigest(x.ids())
	o := &seguev1.TakeoverRequest{Session: id, Epoch: epoch, Delivered: uint32(len(x.tokens)), OutputDigest: d[:], Request: r, Protection: mode}
	if x.prompt != nil {
		o.PromptDigest = x.prompt.GetDigest()
	}
	if n := len(x.tokens); n > 0 {
		o.TextEnd = x.tokens[n-1].GetTextEnd()
	}
	return o
}

func takeover(t *testing.T, ctx context.Context, on *testNode, r *seguev1.TakeoverRequest) stream {
	t.Helper()
	st, err := on.client.Takeover(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return func() (*seguev1.Event, error) {
		m, err := st.Recv()
		return m.GetEvent(), err
	}
}

func cancelRun(t *testing.T, on *testNode, id []byte, epoch uint64) {
	t.Helper()
	if _, err := on.client.Cancel(t.Context(), &seguev1.CancelRequest{Session: id, Epoch: epoch}); err != nil {
		t.Fatal(err)
	}
}

func wantReason(t *testing.T, err error, want seguev1.Reason) {
	t.Helper()
	r, ok := transfer.RefusalOf(err)
	if !ok || r.GetReason() != want {
		t.Fatalf("got %v (refusal %v), want reason %v", err, r, want)
	}
}

// reference is the run that nobody kills.
func reference(t *testing.T, on *testNode, r *seguev1.Request) *transcript {
	t.Helper()
	var x transcript
	x.read(generate(t, t.Context(), on, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: modeOff}), nil)
	if x.err != nil || x.finish == nil {
		t.Fatalf("reference: %v", x.err)
	}
	return &x
}
