// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"bufio"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/fence"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/snapshot"
)

// history is what a session's gate has been asked, with the calls that agents got in between.
type history struct {
	mu     sync.Mutex
	raised fence.Epoch // the gate's epoch
	calls  int
	wrong  []string
}

func (h *history) op(_ snapshot.SessionID, op fence.Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if op.Err == nil && (op.Kind == fence.OpRaise || op.Kind == fence.OpRestart) {
		h.raised = op.Epoch
	}
}

// call notes a call that starts a run after the first one.
func (h *history) call(what string, epoch uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	if fence.Epoch(epoch) > h.raised || epoch == 1 {
		h.wrong = append(h.wrong, what)
	}
}

// When an agent is asked to go on, or to begin again, the gate refuses everything of the run before.
func TestFence_PrecedesWhatFollows(t *testing.T) {
	for _, tt := range []struct {
		name     string
		accepted int // tokens before the first node dies
		covered  int // the holder's boundary; 0: it refuses
		calls    int
	}{
		{"takeover", 3, 4, 1},
		{"refused takeover, retry", 0, 0, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &history{raised: 1}
				w := observed(t, "a b", nil, h.op)
				defer w.close()
				a, b := w.agents["a"], w.agents["b"]
				a.generate = a.dies("b", tt.accepted)
				b.generate = func(r *seguev1.GenerateRequest, e *events) error {
					h.call("generate", r.GetEpoch())
					return e.whole(total)
				}
				b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
					h.call("takeover", r.GetEpoch())
					if tt.covered == 0 {
						return refusal(seguev1.Reason_REASON_NOT_COVERED, "nothing is held here")
					}
					return e.resume(r, tt.covered, total)
				}
				if tr := w.stream(w.post("/v1/chat/completions", chat(true, ""))); tr.text != words(0, total) || !tr.done {
					t.Errorf("%s", tr.raw)
				}
				h.mu.Lock()
				defer h.mu.Unlock()
				if len(h.wrong) > 0 || h.calls != tt.calls {
					t.Errorf("%d calls, want %d; before the gate was raised: %v", h.calls, tt.calls, h.wrong)
				}
			})
		})
	}
}

// The first content is marked before it is written: the record never counts delivered text without it, and a write
// with an unknown outcome counts as written.
func TestRetry_MarkPrecedesTheWrite(t *testing.T) {
	t.Run("written", func(t *testing.T) {
		bubble(t, "a", nil, func(t *testing.T, w *world) {
			w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error {
				e.begin("", 1)
				return e.hang()
			}
			resp := w.post("/v1/chat/completions", chat(true, ""))
			defer resp.Body.Close()
			lines := bufio.NewScanner(resp.Body)
			for lines.Scan() && !strings.Contains(lines.Text(), word(0)) {
			}
			w.settle()
			if info := w.session(resp); info.DeliveredTokens != 1 || !info.FirstDeltaSent {
				t.Errorf("delivered %d, first delta sent %v", info.DeliveredTokens, info.FirstDeltaSent)
			}
		})
	})
	t.Run("unknown outcome", func(t *testing.T) {
		bubble(t, "a b", nil, func(t *testing.T, w *world) {
			a, b := w.agents["a"], w.agents["b"]
			a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
				e.begin("", 1)
				return e.hang()
			}
			conn, err := w.client.dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			q := chat(true, "")
			fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\nX-Segue-Protection: off\r\nContent-Length: %d\r\n\r\n%s", len(q), q)
			synctest.Wait() // the write of the first content waits for its reader
			conn.Close()
			w.settle()
			var list []router.SessionInfo
			w.get("/v1/sessions", &list)
			if len(list) != 1 || !list[0].FirstDeltaSent || len(list[0].Attempts) != 1 {
				t.Errorf("sessions %+v, want one with its first delta and one attempt", list)
			}
			if n := len(b.calls().generates); n != 0 {
				t.Errorf("%d runs after the first content", n)
			}
		})
	})
}

// What a lost primary has said of its protection doesn't hold for the next one: that is given a holder, though it says
// nothing itself.
func TestProtection_EndsWithItsPrimary(t *testing.T) {
	bubble(t, "a b", nil, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = a.dies("b", 2)
		paired := make(chan string, 8)
		b.pair = func(r *seguev1.PairRequest) error {
			paired <- r.GetHolder().GetId()
			return nil
		}
		b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
			e.next, e.textEnd = int(r.GetDelivered()), int(r.GetTextEnd())
			e.seam(3)
			e.tokens(4)
			time.Sleep(500 * time.Millisecond) // virtual
			a.start()
			for range 200 {
				time.Sleep(100 * time.Millisecond)
				e.progress(4, 4, 4)
			}
			e.tokens(total)
			return e.finish("length")
		}
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if tr := w.stream(resp); tr.text != words(0, total) || !tr.done {
			t.Errorf("%s", tr.raw)
		}
		if len(paired) == 0 {
			t.Error("the next primary has no holder, and none was sought")
		}
		w.settle()
	})
}

// A token counts as delivered once its whole text was handed over, not while part of it is held back.
func TestRouter_DeliveredCountsWholeTexts(t *testing.T) {
	for _, tt := range []struct {
		held      []int // bytes held back after each token
		delivered int
	}{
		{[]int{0, 0, 0}, 3},
		{[]int{0, 0, 2}, 2},
		{[]int{0, 5, 2}, 1}, // the second token's last byte is still held after the third
		{[]int{0, 1, 0}, 3},
		{[]int{1}, 0},
	} {
		bubble(t, "a", nil, func(t *testing.T, w *world) {
			w.agents["a"].generate = func(_ *seguev1.GenerateRequest, e *events) error {
				e.begin("", 0)
				for _, held := range tt.held {
					e.text("abc", held)
				}
				return nil
			}
			tr := w.stream(w.post("/v1/chat/completions", chat(true, ""), "X-Segue-Protection", "off"))
			if tr.err == nil || tr.done || tr.err.Delivered != tt.delivered || tr.text != strings.Repeat("abc", len(tt.held)) {
				t.Errorf("held %v: %+v, want %d delivered\n%s", tt.held, tr.err, tt.delivered, tr.raw)
			}
		})
	}
}
