// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/snapshot"
)

const total = 8

// dies returns a script that runs to n tokens and then is killed with its node; n < 0 dies before the prompt.
func (a *agent) dies(holder string, n int) func(*seguev1.GenerateRequest, *events) error {
	return func(_ *seguev1.GenerateRequest, e *events) error {
		if n >= 0 {
			if err := e.begin(holder, n); err != nil {
				return err
			}
		}
		time.Sleep(time.Millisecond) // virtual: what was sent arrives
		go a.kill()
		return e.hang()
	}
}

// continues returns a script that takes over from a record of c boundaries.
func continues(c int) func(*seguev1.TakeoverRequest, *events) error {
	return func(r *seguev1.TakeoverRequest, e *events) error { return e.resume(r, c, total) }
}

// attempts is the record's attempts without times and details.
func attempts(info router.SessionInfo) []router.AttemptInfo {
	list := []router.AttemptInfo{}
	for _, a := range info.Attempts {
		a.StartedAt, a.EndedAt, a.Detail, a.Accepted = "", "", "", 0
		list = append(list, a)
	}
	return list
}

func TestRouter_NodeDies(t *testing.T) {
	lost := func(n int) []router.AttemptInfo {
		return []router.AttemptInfo{{Node: "a", Epoch: 1, Kind: "generate", Cause: "reset"}, {Node: "b", Epoch: 2, Kind: "takeover", FromIndex: n}}
	}
	retried := []router.AttemptInfo{
		{Node: "a", Epoch: 1, Kind: "generate", Cause: "reset"}, {Node: "b", Epoch: 2, Kind: "takeover", Cause: "not_covered"},
		{Node: "b", Epoch: 4, Kind: "retry"},
	}
	for _, tt := range []struct {
		name     string
		at       int // tokens before the death; -1: before the prompt
		covered  int // c of the holder; 0: nothing
		attempts []router.AttemptInfo
	}{
		{"before the prompt", -1, 0, retried},
		{"after the prompt", 0, 0, retried},
		{"after the first boundary, nothing delivered", 0, 1, lost(0)},
		{"after the first token", 1, 1, lost(1)},
		{"mid-stream, holder just covers", 3, 3, lost(3)},
		{"mid-stream, holder is ahead", 3, 6, lost(3)},
		{"before the finish", total, total, lost(total)},
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, stream=%v", tt.name, stream), func(t *testing.T) {
				bubble(t, "a b", nil, func(t *testing.T, w *world) {
					a, b := w.agents["a"], w.agents["b"]
					a.generate = a.dies("b", tt.at)
					b.generate = func(_ *seguev1.GenerateRequest, e *events) error { return e.whole(total) }
					if tt.covered > 0 {
						b.takeover = continues(tt.covered)
					}
					resp := w.post("/v1/chat/completions", chat(stream, `"return_token_ids":true`))
					if stream {
						tr := w.stream(resp)
						if tr.text != words(0, total) || tr.finish != "length" || !tr.done || tr.roles != 1 {
							t.Errorf("%s", tr.raw)
						}
						if diff := cmp.Diff(tokenIDs(total), tr.ids); diff != "" {
							t.Errorf("ids (-want +got):\n%s", diff)
						}
					} else if got := body(t, resp); !strings.Contains(got, words(0, total)) || !strings.Contains(got, `"completion_tokens":8`) {
						t.Errorf("%d: %s", resp.StatusCode, got)
					}
					info := w.session(resp)
					if diff := cmp.Diff(tt.attempts, attempts(info)); diff != "" {
						t.Errorf("attempts (-want +got):\n%s", diff)
					}
					r := b.calls().takeovers[0]
					digest := snapshot.IDsDigest(tokenIDs(max(tt.at, 0)))
					if int(r.GetDelivered()) != max(tt.at, 0) || int(r.GetTextEnd()) != len(words(0, tt.at)) || r.GetEpoch() != 2 || !bytes.Equal(r.GetOutputDigest(), digest[:]) {
						t.Errorf("takeover %v", r)
					}
					if known := tt.at >= 0; known != bytes.Equal(r.GetPromptDigest(), promptDigest) {
						t.Errorf("prompt digest %x", r.GetPromptDigest())
					}
					if r.GetRequest().GetSampling().GetSeed() != info.Seed || r.GetHolder() != nil {
						t.Errorf("takeover %v", r)
					}
				})
			})
		}
	}
}

func TestRouter_RecordsSeam(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = a.dies("b", 3)
		b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
			time.Sleep(70 * time.Millisecond)
			return e.resume(r, 5, total)
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		w.stream(resp)
		info := w.session(resp)
		want := []router.SeamInfo{{
			Index: 5, Delivered: 3, From: "a", To: "b", Epoch: 2, Cause: "reset", RestoredRows: 7, RestoredBytes: 448,
			FencedAt: "2000-01-01T00:00:00.001Z", ResumedAt: "2000-01-01T00:00:00.071Z",
		}}
		if diff := cmp.Diff(want, info.Seams); diff != "" {
			t.Errorf("seams (-want +got):\n%s", diff)
		}
		log := []router.ProtectionInfo{{Protected: true, Holder: "b"}, {FromIndex: 3, Cause: "no_holder"}}
		if diff := cmp.Diff(log, info.ProtectionLog); diff != "" {
			t.Errorf("protection log (-want +got):\n%s", diff)
		}
		if info.Primary != "b" || info.Epoch != 2 || info.Protected || info.PromptTokens != 3 {
			t.Errorf("session %+v", info)
		}
		if n := w.counter("segue_router_takeovers_total", "ok", "reset"); n != 1 {
			t.Errorf("takeovers: %v", n)
		}
		if n := w.counter("segue_router_takeover_pause_seconds"); n != 1 {
			t.Errorf("pauses: %v", n)
		}
		var line strings.Builder
		for l := range strings.Lines(w.log.String()) {
			if strings.Contains(l, "msg=takeover ") {
				line.WriteString(l)
			}
		}
		for _, part := range []string{"session=" + info.Session, "from=a", "to=b", "epoch=2", "cause=reset", "d=3", "c=5", "detect=1ms", "resume=70ms"} {
			if !strings.Contains(line.String(), part) {
				t.Errorf("story lacks %s: %q", part, line.String())
			}
		}
		if strings.Count(line.String(), "\n") != 1 {
			t.Errorf("one line tells the story: %q", line.String())
		}
	})
}

func TestRouter_TakeoverRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		reason seguev1.Reason
		detail string
		want   string
	}{
		{"not covered", seguev1.Reason_REASON_NOT_COVERED, "boundary 2, want 3", "not_covered: boundary 2, want 3"},
		{"fingerprint", seguev1.Reason_REASON_FINGERPRINT_MISMATCH, "threads 1 != 2", "fingerprint_mismatch: threads 1 != 2"},
		{"digest", seguev1.Reason_REASON_DIGEST_MISMATCH, "block 0", "digest_mismatch: block 0"},
		{"unknown session", seguev1.Reason_REASON_UNKNOWN_SESSION, "never heard of it", "not_covered: never heard of it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, "a b", nil, func(t *testing.T, w *world) {
				a, b := w.agents["a"], w.agents["b"]
				a.generate = a.dies("b", 3)
				b.takeover = func(*seguev1.TakeoverRequest, *events) error { return refusal(tt.reason, tt.detail) }
				resp := w.post("/v1/chat/completions", chat(true, `"return_token_ids":true`), "X-Request-Id", "r-7")
				tr := w.stream(resp)
				if tr.text != words(0, 3) || tr.done || tr.finish != "" {
					t.Errorf("%s", tr.raw)
				}
				want := &errorObject{
					Code: "upstream_decode_interrupted", Type: "server_error", RequestID: "r-7", Partial: true, Delivered: 3, Cause: "reset", Detail: tt.want,
					Message: "generation interrupted after 3 output tokens (cause: reset, " + tt.want +
						") in request r-7; the answer is incomplete, and a repeat of the request gives a new answer, not the rest of this one",
				}
				if diff := cmp.Diff(want, tr.err); diff != "" {
					t.Errorf("error (-want +got):\n%s", diff)
				}
				w.settle()
				if calls := b.calls(); len(calls.generates) != 0 || len(calls.cancels) != 1 || calls.cancels[0].GetEpoch() != 3 {
					t.Errorf("b: %+v", calls)
				}
				info := w.session(resp)
				if info.Phase != "failed" || info.Error == nil || info.DeliveredTokens != 3 || len(info.Attempts) != 2 || info.Attempts[1].Cause == "" {
					t.Errorf("session %+v", info)
				}
				cause, _, _ := strings.Cut(tt.want, ":")
				if n := w.counter("segue_router_takeovers_total", "refused", cause); n != 1 {
					t.Errorf("refused takeovers: %v", n)
				}
				if n := w.counter("segue_router_sessions_total", "interrupted"); n != 1 {
					t.Errorf("interrupted sessions: %v", n)
				}
			})
		})
	}
}

func TestRouter_ErrorEventGolden(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a := w.agents["a"]
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.begin("b", 2)
			e.text("", 3) // held: accepted, not delivered
			time.Sleep(time.Millisecond)
			go a.kill()
			return e.hang()
		}
		resp := w.post("/v1/chat/completions", chat(true, `"return_token_ids":true,"stream_options":{"include_usage":true}`))
		golden(t, "error.sse", body(t, resp))
		if r := w.agents["b"].calls().takeovers[0]; r.GetDelivered() != 3 {
			t.Errorf("d = %d, want accepted tokens, not delivered ones", r.GetDelivered())
		}
	})
}

// A second run after content would splice two answers.
func TestRouter_NoRetryAfterContent(t *testing.T) {
	bubble(t, "a b c", nil, func(t *testing.T, w *world) {
		a := w.agents["a"]
		a.generate = a.dies("", 1)
		tr := w.stream(w.post("/v1/chat/completions", chat(true, ""), "X-Segue-Protection", "off"))
		if tr.err == nil || tr.err.Delivered != 1 || tr.text != word(0) {
			t.Errorf("%s", tr.raw)
		}
		for _, id := range []string{"b", "c"} {
			if c := w.agents[id].calls(); len(c.generates)+len(c.takeovers) != 0 {
				t.Errorf("%s was asked: %+v", id, c)
			}
		}
	})
}

// Tokens whose text is held back are no content: a retry starts over.
func TestRouter_RetryDiscardsHeldTokens(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.prompt()
			e.text("", 1)
			e.text("", 2)
			time.Sleep(time.Millisecond)
			go a.kill()
			return e.hang()
		}
		b.generate = func(_ *seguev1.GenerateRequest, e *events) error { return e.whole(2) }
		resp := w.post("/v1/chat/completions", chat(true, `"return_token_ids":true`))
		tr := w.stream(resp)
		if tr.text != words(0, 2) || !tr.done || len(tr.ids) != 2 {
			t.Errorf("%s", tr.raw)
		}
		if n := w.counter("segue_router_retries_total", "reset"); n != 1 {
			t.Errorf("retries: %v", n)
		}
		if r := b.calls().takeovers; len(r) != 1 || r[0].GetDelivered() != 2 {
			t.Errorf("a takeover comes first: %v", r)
		}
	})
}

func TestRouter_RetriesEndBeforeContent(t *testing.T) {
	bubble(t, "a b c", nil, func(t *testing.T, w *world) {
		for _, a := range w.agents {
			a.generate = a.dies("", 0)
		}
		resp := w.post("/v1/chat/completions", chat(true, ""), "X-Segue-Protection", "off")
		e := w.failure(resp)
		want := errorObject{Code: "upstream_unavailable", Type: "server_error", Retryable: true, Cause: "reset"}
		if diff := cmp.Diff(want, e, cmpopts.IgnoreFields(errorObject{}, "Message", "RequestID")); diff != "" || resp.StatusCode != http.StatusBadGateway {
			t.Errorf("status %d, (-want +got):\n%s", resp.StatusCode, diff)
		}
		if resp.Header.Get("Retry-After") != "1" || resp.Header.Get("X-Should-Retry") != "true" {
			t.Errorf("headers %v", resp.Header)
		}
		starts := 0
		for _, a := range w.agents {
			starts += len(a.calls().generates)
		}
		if starts != 2 {
			t.Errorf("%d runs, want max_attempts", starts)
		}
	})
}

// Once 200 is out without content a retry is still allowed, and an error is an event.
func TestRouter_FailsAfterHeadersWithoutContent(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		for _, a := range w.agents {
			a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
				for range 12 {
					e.progress(0, 0, 0)
					time.Sleep(time.Second)
				}
				go a.kill()
				return e.hang()
			}
		}
		tr := w.stream(w.post("/v1/chat/completions", chat(true, ""), "X-Segue-Protection", "off"))
		if tr.err == nil || tr.err.Partial || tr.err.Delivered != 0 || !tr.err.Retryable || tr.err.Code != "upstream_unavailable" || tr.roles != 0 || tr.comments == 0 {
			t.Errorf("%s", tr.raw)
		}
	})
}
