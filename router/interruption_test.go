// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
)

// Every end of a stream that isn't a finish is judged, fenced and mended.
func TestRouter_Interruptions(t *testing.T) {
	token := func(e *events, index int, text string, end int) error {
		return e.send(&seguev1.Event{Event: &seguev1.Event_Token{Token: &seguev1.Token{
			Index: uint32(index), Id: int32(100 + index), Text: []byte(text), TextEnd: uint64(end), RawEnd: uint64(end),
		}}})
	}
	three := len(words(0, 3))
	for _, tt := range []struct {
		name  string
		after func(*events) error // after three tokens
		cause router.Cause
	}{
		{"clean end without a finish", func(*events) error { return nil }, router.CauseEOFNoFinish},
		{"engine lost", func(*events) error { return refusal(seguev1.Reason_REASON_ENGINE_LOST, "signal: killed") }, router.CauseEngineAbort},
		{"engine error", func(*events) error { return refusal(seguev1.Reason_REASON_ENGINE_ERROR, "out of memory") }, router.CauseEngineAbort},
		{"plain error", func(*events) error { return errors.New("oops") }, router.CauseEngineAbort},
		{"fenced by another", func(*events) error { return refusal(seguev1.Reason_REASON_FENCED, "epoch 9 is known") }, router.CauseFenced},
		{"cancelled by another", func(*events) error { return refusal(seguev1.Reason_REASON_CANCELLED, "") }, router.CauseFenced},
		{"gap", func(e *events) error { token(e, 4, "x", three+1); return e.hang() }, router.CauseMalformedFrame},
		{"conflict", func(e *events) error { token(e, 2, "", three+9); return e.hang() }, router.CauseMalformedFrame},
		{"text end ahead", func(e *events) error { token(e, 3, "x", three+2); return e.hang() }, router.CauseMalformedFrame},
		{"text end behind", func(e *events) error { token(e, 3, "", three-1); return e.hang() }, router.CauseMalformedFrame},
		{"half a character", func(e *events) error { token(e, 3, "\xc3", three+1); return e.hang() }, router.CauseMalformedFrame},
		{"finish too early", func(e *events) error { e.next = 2; e.finish("stop"); return e.hang() }, router.CauseMalformedFrame},
		{"finish reason abort", func(e *events) error { e.finish("abort"); return e.hang() }, router.CauseMalformedFrame},
		{"seam in a fresh run", func(e *events) error { e.seam(3); return e.hang() }, router.CauseMalformedFrame},
		{"stall", func(e *events) error { return e.hang() }, router.CauseStall},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, "a b", nil, func(t *testing.T, w *world) {
				a, b := w.agents["a"], w.agents["b"]
				a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
					if err := e.begin("b", 3); err != nil {
						return err
					}
					return tt.after(e)
				}
				b.takeover = continues(4)
				resp := w.post("/v1/chat/completions", chat(true, ""))
				tr := w.stream(resp)
				if tr.text != words(0, total) || !tr.done || tr.roles != 1 {
					t.Errorf("%s", tr.raw)
				}
				if got := w.session(resp).Attempts[0].Cause; got != tt.cause {
					t.Errorf("cause %s, want %s", got, tt.cause)
				}
				w.settle()
				if c := a.calls(); len(c.cancels) != 1 || c.cancels[0].GetEpoch() != 1 || c.ended != 1 {
					t.Errorf("old run: %+v", c)
				}
			})
		})
	}
}

// Repeated tokens are no harm, and none is written twice.
func TestRouter_RepeatedTokens(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.begin("b", 3)
			again := &events{send: e.send}
			again.tokens(3)
			e.tokens(5)
			return e.finish("length")
		}
		tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
		if tr.text != words(0, 5) || !tr.done {
			t.Errorf("%s", tr.raw)
		}
	})
}

// A run that wakes up after its fence publishes nothing.
func TestRouter_StaleRunIsSilent(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.begin("b", 3)
			time.Sleep(2500 * time.Millisecond) // past stall_timeout
			for range 20 {
				e.text("STALE ", 0)
				time.Sleep(50 * time.Millisecond)
			}
			return e.finish("length")
		}
		b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
			e.next, e.textEnd = int(r.GetDelivered()), int(r.GetTextEnd())
			e.seam(4)
			for i := 4; i <= total; i++ {
				e.tokens(i)
				time.Sleep(200 * time.Millisecond)
			}
			return e.finish("length")
		}
		start := time.Now()
		resp := w.post("/v1/chat/completions", chat(true, ""))
		tr := w.stream(resp)
		if tr.text != words(0, total) || !tr.done {
			t.Errorf("%s", tr.raw)
		}
		info := w.session(resp)
		fenced, err := time.Parse(time.RFC3339Nano, info.Seams[0].FencedAt)
		if err != nil || fenced.Sub(start) != 2*time.Second {
			t.Errorf("fenced after %v, want stall_timeout (%v)", fenced.Sub(start), err)
		}
	})
}

// Progress keeps a silent run alive.
func TestRouter_ProgressIsLife(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.begin("b", 1)
			for i := range 5 {
				time.Sleep(1900 * time.Millisecond)
				e.progress(i+3, i+2, i+1)
			}
			e.tokens(2)
			return e.finish("stop")
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if tr := w.stream(resp); !tr.done {
			t.Errorf("%s", tr.raw)
		}
		info := w.session(resp)
		if len(info.Attempts) != 1 || info.Watermarks != (router.Watermarks{Captured: 7, Sent: 6, Committed: 5}) {
			t.Errorf("session %+v", info)
		}
	})
}

// An agent that accepts the call and says nothing at all.
func TestRouter_SilentAgent(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error { return e.hang() }
		start := time.Now()
		tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
		if !tr.done || time.Since(start) != 2*time.Second {
			t.Errorf("after %v: %s", time.Since(start), tr.raw)
		}
	})
}

func TestRouter_StallBeforeContentIs504(t *testing.T) {
	bubble(t, "a", nil, func(t *testing.T, w *world) {
		w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error { return e.hang() }
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if e := w.failure(resp); resp.StatusCode != http.StatusGatewayTimeout || e.Cause != "stall" || !e.Retryable {
			t.Errorf("status %d: %+v", resp.StatusCode, e)
		}
	})
}

// Deterministic refusals are the client's error, and no other node is asked.
func TestRouter_DeterministicRefusals(t *testing.T) {
	for _, tt := range []struct {
		reason seguev1.Reason
		status int
		code   string
	}{
		{seguev1.Reason_REASON_INVALID_REQUEST, 400, "invalid_request"},
		{seguev1.Reason_REASON_PROMPT_TOO_LONG, 400, "context_length_exceeded"},
		{seguev1.Reason_REASON_UNKNOWN_MODEL, 404, "model_not_found"},
	} {
		t.Run(tt.code, func(t *testing.T) {
			bubble(t, "a b", nil, func(t *testing.T, w *world) {
				w.agents["a"].generate = func(*seguev1.GenerateRequest, *events) error { return refusal(tt.reason, "prompt has 9000 tokens") }
				resp := w.post("/v1/chat/completions", chat(true, ""))
				e := w.failure(resp)
				if resp.StatusCode != tt.status || e.Code != tt.code || e.Retryable || e.Message != "prompt has 9000 tokens" || e.Type != "invalid_request_error" {
					t.Errorf("status %d: %+v", resp.StatusCode, e)
				}
				if c := w.agents["b"].calls(); len(c.generates)+len(c.takeovers) != 0 {
					t.Errorf("b was asked: %+v", c)
				}
			})
		})
	}
}

// One node after another: each takeover has the next node as its holder.
func TestRouter_TakeoverAfterTakeover(t *testing.T) {
	bubble(t, "a b c", nil, func(t *testing.T, w *world) {
		a, b, c := w.agents["a"], w.agents["b"], w.agents["c"]
		a.generate = a.dies("b", 2)
		b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
			e.next, e.textEnd = int(r.GetDelivered()), int(r.GetTextEnd())
			e.seam(3)
			e.protection(r.GetHolder().GetId(), "")
			e.tokens(5)
			time.Sleep(time.Millisecond)
			go b.kill()
			return e.hang()
		}
		c.takeover = continues(5)
		resp := w.post("/v1/chat/completions", chat(true, ""))
		tr := w.stream(resp)
		if tr.text != words(0, total) || !tr.done {
			t.Errorf("%s", tr.raw)
		}
		info := w.session(resp)
		if len(info.Seams) != 2 || info.Seams[1].To != "c" || info.Epoch != 3 {
			t.Errorf("session %+v", info)
		}
		if got := b.calls().takeovers[0].GetHolder().GetId(); got != "c" {
			t.Errorf("holder of the new run: %q", got)
		}
	})
}

// A holder that dies during the takeover leaves nothing but the honest end.
func TestRouter_HolderDiesDuringTakeover(t *testing.T) {
	for _, stage := range []string{"before the seam", "after the seam"} {
		t.Run(stage, func(t *testing.T) {
			bubble(t, "a b", nil, func(t *testing.T, w *world) {
				a, b := w.agents["a"], w.agents["b"]
				a.generate = a.dies("b", 2)
				b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
					if stage == "after the seam" {
						e.seam(3)
					}
					time.Sleep(time.Millisecond)
					go b.kill()
					return e.hang()
				}
				tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
				if tr.err == nil || tr.err.Delivered != 2 || tr.err.Cause != "reset" || tr.text != words(0, 2) {
					t.Errorf("%s", tr.raw)
				}
				if n := w.counter("segue_router_takeovers_total", "failed", "reset"); n != 1 {
					t.Errorf("failed takeovers: %v", n)
				}
			})
		})
	}
}

// A seam below d would lose tokens.
func TestRouter_SeamMustCover(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = a.dies("b", 4)
		b.takeover = continues(3)
		tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
		if tr.err == nil || tr.err.Delivered != 4 || tr.text != words(0, 4) {
			t.Errorf("%s", tr.raw)
		}
	})
}

// A takeover may show life before its seam, but nothing is taken from it.
func TestRouter_SeamComesBeforeTokens(t *testing.T) {
	for _, seam := range []bool{true, false} {
		bubble(t, "a b", nil, func(t *testing.T, w *world) {
			a, b := w.agents["a"], w.agents["b"]
			a.generate = a.dies("b", 2)
			b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
				for range 4 { // a long load
					e.progress(0, 0, 0)
					time.Sleep(time.Second)
				}
				if seam {
					return e.resume(r, 3, total)
				}
				e.next, e.textEnd = int(r.GetDelivered()), int(r.GetTextEnd())
				e.tokens(total)
				return e.finish("length")
			}
			tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
			if tr.done != seam || !seam && (tr.err.Delivered != 2 || tr.text != words(0, 2)) {
				t.Errorf("%s", tr.raw)
			}
		})
	}
}

// The compatibility switch: the terminator follows the error, in the same write.
func TestRouter_DoneAfterError(t *testing.T) {
	bubble(t, "a", func(c *router.Config, _ map[string]*agent) { c.Stream.DoneAfterError = true }, func(t *testing.T, w *world) {
		w.agents["a"].generate = w.agents["a"].dies("", 3)
		raw := body(t, w.post("/v1/chat/completions", chat(true, "")))
		if _, after, found := strings.Cut(raw, `"upstream_decode_interrupted"`); !found || !strings.HasSuffix(after, "\n\ndata: [DONE]\n\n") {
			t.Errorf("%s", raw)
		}
	})
}
