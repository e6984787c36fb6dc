// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
)

func waits(c *router.Config, _ map[string]*agent) { c.UncertainSource = router.SourceWait }

// hangs is a run to n tokens that falls silent.
func hangs(holder string, n int) func(*seguev1.GenerateRequest, *events) error {
	return func(_ *seguev1.GenerateRequest, e *events) error {
		if err := e.begin(holder, n); err != nil {
			return err
		}
		<-e.ctx.Done()
		return e.ctx.Err()
	}
}

// unreachable makes an agent that answers nothing any more, over connections that stay up.
func (a *agent) unreachable(until <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancel = func(*seguev1.CancelRequest) error { <-until; return nil }
	a.renew = func(*seguev1.RenewRequest) error { <-until; return nil }
}

// A session that waits goes on when the old run's agent has acknowledged its end, or when the lease is over; not sooner
// and not later.
func TestSource_WaitsForTheOldRun(t *testing.T) {
	const stall, over = 2 * time.Second, 6500 * time.Millisecond
	for name, c := range map[string]struct {
		source router.Source
		ack    time.Duration // after the fence; negative: never
		min    time.Duration // from the last token to the takeover
		max    time.Duration
		how    string
	}{
		"fence":                   {router.SourceFence, -1, stall, stall, ""},
		"acknowledged at once":    {router.SourceWait, 0, stall, stall, "acknowledged"},
		"acknowledged later":      {router.SourceWait, 1700 * time.Millisecond, stall + 1700*time.Millisecond, stall + 1700*time.Millisecond, "acknowledged"},
		"never acknowledged":      {router.SourceWait, -1, over - time.Second, over, "expired"},
		"acknowledged after that": {router.SourceWait, time.Minute, over - time.Second, over, "expired"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "a b", func(cfg *router.Config, _ map[string]*agent) { cfg.UncertainSource = c.source }, func(t *testing.T, w *world) {
				a, b := w.agents["a"], w.agents["b"]
				quiet, gone := time.Now(), make(chan struct{})
				a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
					e.begin("b", 3)
					quiet = time.Now()
					a.unreachable(gone)
					if c.ack >= 0 {
						time.AfterFunc(stall+c.ack, func() { close(gone) })
					}
					return e.hang()
				}
				resumed := time.Time{}
				b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
					resumed = time.Now()
					return e.resume(r, 3, total)
				}
				time.Sleep(5300 * time.Millisecond) // so that the fence falls between two renewals
				resp := w.post("/v1/chat/completions", chat(true, ""))
				tr := w.stream(resp)
				if tr.text != words(0, total) || !tr.done {
					t.Fatalf("%s", tr.raw)
				}
				if took := resumed.Sub(quiet); took < c.min || took > c.max {
					t.Errorf("asked the holder after %v, want %v to %v", took, c.min, c.max)
				}
				if last := a.lastGrant(); c.how == "expired" && resumed.Before(last.Add(6500*time.Millisecond)) {
					t.Errorf("asked the holder %v after the last lease began", resumed.Sub(last))
				}
				for _, how := range []string{"acknowledged", "expired"} {
					want := 0.0
					if how == c.how {
						want = 1
					}
					if got := w.counter("segue_router_source_waits_total", how); got != want {
						t.Errorf("%v waits ended as %s, want %v", got, how, want)
					}
				}
				if c.ack < 0 {
					close(gone)
				}
			})
		})
	}
}

// lastGrant is when the question was answered that the last grant quotes, a call's lease among them.
func (a *agent) lastGrant() time.Time {
	var number uint64
	for _, g := range a.calls().generates {
		number = max(number, g.GetLease().GetNumber())
	}
	list := a.renewed()
	for _, r := range list {
		if len(r.request.GetGrants()) > 0 {
			number = max(number, r.request.GetNumber())
		}
	}
	if number == 0 {
		return time.Time{}
	}
	return list[number-1].at
}

// A broken connection is as uncertain as silence: the agent may be cut off.
func TestSource_WaitsAfterALostConnection(t *testing.T) {
	bubble(t, "a b", waits, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = a.dies("b", 3)
		b.takeover = continues(3)
		start := time.Now()
		tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
		took := time.Since(start)
		if tr.text != words(0, total) || !tr.done || took < 5*time.Second || took > 6600*time.Millisecond {
			t.Errorf("after %v: %s", took, tr.raw)
		}
		// The node comes back and acknowledges: then nobody waits for the lease.
		a.start()
		time.Sleep(2 * time.Second)
		b.kill()
		b.start()
		time.Sleep(2 * time.Second)
		cut := func(e *events) error {
			e.begin("b", 3)
			time.Sleep(time.Millisecond)
			go a.cut()
			return e.hang()
		}
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error { return cut(e) }
		start = time.Now()
		tr = w.stream(w.post("/v1/chat/completions", chat(true, ""), "X-Segue-Protection", "sync"))
		if took := time.Since(start); took > time.Second {
			t.Errorf("waited %v for a node that could be asked: %s", took, tr.raw)
		}
	})
}

// A retry waits as a takeover does.
func TestSource_RetryWaits(t *testing.T) {
	bubble(t, "a b", waits, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		gone := make(chan struct{})
		defer close(gone)
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			a.unreachable(gone)
			return e.hang()
		}
		began := time.Time{}
		b.generate = func(_ *seguev1.GenerateRequest, e *events) error { began = time.Now(); return e.whole(5) }
		start := time.Now()
		tr := w.stream(w.post("/v1/chat/completions", chat(true, ""), "X-Segue-Protection", "off"))
		if took := began.Sub(start); !tr.done || took < 5*time.Second || took > 6500*time.Millisecond {
			t.Errorf("retried after %v: %s", took, tr.raw)
		}
	})
}

// A call that quoted nothing and was never answered may have arrived at any time until it was given up.
func TestSource_UnansweredCallCountsFromTheFence(t *testing.T) {
	bubble(t, "a b", func(c *router.Config, agents map[string]*agent) {
		waits(c, agents)
		agents["a"].renew = func(*seguev1.RenewRequest) error { return status.Error(codes.Unavailable, "never") }
		agents["a"].cancel = func(*seguev1.CancelRequest) error { return status.Error(codes.Unavailable, "never") }
	}, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error { return e.hang() }
		began := time.Time{}
		b.generate = func(_ *seguev1.GenerateRequest, e *events) error { began = time.Now(); return e.whole(5) }
		start := time.Now()
		tr := w.stream(w.post("/v1/chat/completions", chat(true, ""), "X-Segue-Protection", "off"))
		if took := began.Sub(start); !tr.done || took != 2*time.Second+6500*time.Millisecond {
			t.Errorf("retried after %v: %s", took, tr.raw)
		}
	})
}

// While the session waits its client is kept, and noticed when it leaves.
func TestSource_ClientOfAWaitingSession(t *testing.T) {
	long := func(c *router.Config, agents map[string]*agent) {
		waits(c, agents)
		c.Lease.TTL = time.Minute
	}
	for _, leaves := range []bool{false, true} {
		bubble(t, "a b", long, func(t *testing.T, w *world) {
			a, b := w.agents["a"], w.agents["b"]
			gone := make(chan struct{})
			defer close(gone)
			a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
				e.begin("b", 3)
				a.unreachable(gone)
				return e.hang()
			}
			b.takeover = continues(3)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			resp, err := w.tryPost(ctx, "/v1/chat/completions", chat(true, ""))
			if err != nil {
				t.Fatal(err)
			}
			if leaves {
				time.AfterFunc(20*time.Second, leave)
				buf := make([]byte, 1<<16)
				for err == nil {
					_, err = resp.Body.Read(buf)
				}
				w.settle()
				if n := w.counter("segue_router_active_sessions"); n != 0 || len(b.calls().takeovers) != 0 {
					t.Errorf("%v sessions live, %d takeovers after the client left", n, len(b.calls().takeovers))
				}
				return
			}
			tr := w.stream(resp)
			if tr.text != words(0, total) || !tr.done || strings.Count(tr.raw, ": keep-alive") < 3 {
				t.Errorf("%s", tr.raw)
			}
		})
	}
}

// A holder that didn't answer a takeover is asked again without a wait: its agent ends what runs there itself. Another
// one is asked only when that run has certainly ended.
func TestSource_AsksTheSameHolderAtOnce(t *testing.T) {
	bubble(t, "a b", waits, func(t *testing.T, w *world) {
		a, b := w.agents["a"], w.agents["b"]
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.begin("b", 3)
			return refusal(seguev1.Reason_REASON_ENGINE_LOST, "the engine died")
		}
		calls := 0
		b.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
			if calls++; calls <= 2 { // the call and its repetition
				time.Sleep(time.Millisecond)
				go b.cut()
				return e.hang()
			}
			return e.resume(r, 3, total)
		}
		start := time.Now()
		tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
		if took := time.Since(start); tr.text != words(0, total) || !tr.done || calls < 3 || took > 2*time.Second {
			t.Errorf("after %v and %d calls: %s", took, calls, tr.raw)
		}
	})
}
