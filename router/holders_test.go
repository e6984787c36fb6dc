// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
)

// trace lists takeovers in the order in which they came, as "node epoch".
type trace []string

func (tr *trace) on(id string, then func(*seguev1.TakeoverRequest, *events) error) func(*seguev1.TakeoverRequest, *events) error {
	return func(r *seguev1.TakeoverRequest, e *events) error {
		*tr = append(*tr, fmt.Sprintf("%s %d", id, r.GetEpoch()))
		return then(r, e)
	}
}

func refuses(reason seguev1.Reason) func(*seguev1.TakeoverRequest, *events) error {
	return func(*seguev1.TakeoverRequest, *events) error { return refusal(reason, "no") }
}

// switches makes a a primary that loses b as its holder after one token, is paired with c, says so if announced,
// and ends as end says at three tokens.
func (w *world) switches(announced bool, end func(*events) error) {
	a, b := w.agents["a"], w.agents["b"]
	paired := make(chan struct{}, 8)
	a.pair = func(r *seguev1.PairRequest) error {
		if id := r.GetHolder().GetId(); id != "c" {
			w.t.Errorf("paired with %s", id)
		}
		paired <- struct{}{}
		return nil
	}
	a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
		e.begin("b", 1)
		e.protection("b", "holder_lost")
		b.setDescribe(func(d *seguev1.DescribeResponse) { d.SnapshotBytesLimit = 1 << 20 })
		for len(paired) == 0 {
			time.Sleep(100 * time.Millisecond)
			if err := e.progress(1, 0, 0); err != nil {
				return err
			}
		}
		time.Sleep(50 * time.Millisecond)
		if announced {
			e.protection("c", "")
		}
		e.tokens(3)
		time.Sleep(time.Millisecond)
		return end(e)
	}
}

func engineLost(*events) error {
	return refusal(seguev1.Reason_REASON_ENGINE_LOST, "signal: killed")
}

// three makes a the primary and b the first holder of the first session.
func three(c *router.Config, agents map[string]*agent) {
	agents["b"].describe.SnapshotBytesLimit *= 2
}

func TestRouter_AsksHoldersInOrder(t *testing.T) {
	const notCovered, notReady = seguev1.Reason_REASON_NOT_COVERED, seguev1.Reason_REASON_NOT_READY
	for _, tt := range []struct {
		name      string
		announced bool
		b, c      func(*seguev1.TakeoverRequest, *events) error
		want      trace
	}{
		{"the standby first", true, continues(4), continues(4), trace{"c 2"}},
		{"a base on its way last", false, continues(4), continues(4), trace{"b 2"}},
		{"the former holder is left when the standby refuses", true, continues(4), refuses(notCovered), trace{"c 2", "b 3"}},
		{"the former holder comes before a repeat", true, continues(4), refuses(notReady), trace{"c 2", "b 3"}},
		{"the pending one is left when the former one refuses", false, refuses(notCovered), continues(4), trace{"b 2", "c 3"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			change := func(c *router.Config, agents map[string]*agent) {
				three(c, agents)
				c.MaxTakeovers = 1 // refusals are no continuations
			}
			bubble(t, "a b c", change, func(t *testing.T, w *world) {
				var got trace
				w.switches(tt.announced, engineLost)
				w.agents["b"].takeover = got.on("b", tt.b)
				w.agents["c"].takeover = got.on("c", tt.c)
				start := time.Now()
				tr := w.stream(w.post("/v1/chat/completions", chat(true, "")))
				if tr.text != words(0, total) || !tr.done {
					t.Errorf("%s", tr.raw)
				}
				if !slices.Equal(got, tt.want) {
					t.Errorf("asked %v, want %v", got, tt.want)
				}
				within(t, "the answer", time.Since(start), time.Second, 1300*time.Millisecond)
			})
		})
	}
}

// A holder that the primary has announced is one, whether or not the call that named it has come back.
func TestRouter_AnnouncedHolderIsAsked(t *testing.T) {
	bubble(t, "a b c", three, func(t *testing.T, w *world) {
		a, b, c := w.agents["a"], w.agents["b"], w.agents["c"]
		calls := make(chan struct{}, 1)
		a.pair = func(*seguev1.PairRequest) error {
			calls <- struct{}{}
			time.Sleep(time.Second)
			return nil
		}
		a.generate = func(_ *seguev1.GenerateRequest, e *events) error {
			e.begin("b", 1)
			e.protection("b", "holder_lost")
			<-calls
			e.protection("c", "")
			e.tokens(3)
			time.Sleep(time.Millisecond)
			go a.kill()
			return e.hang()
		}
		b.takeover = refuses(seguev1.Reason_REASON_NOT_COVERED)
		c.takeover = continues(4)
		resp := w.post("/v1/chat/completions", chat(true, ""))
		if tr := w.stream(resp); tr.text != words(0, total) || !tr.done {
			t.Errorf("%s", tr.raw)
		}
		w.settle()
		if got := c.calls(); len(got.takeovers) != 1 || len(got.releases) != 0 {
			t.Errorf("c: %+v", got)
		}
	})
}

// At a session's end every node that was ever told to hold it hears so, with the last epoch; a run that finished
// ends by itself.
func TestRouter_EveryHolderHearsOfTheEnd(t *testing.T) {
	type heard map[string][]uint64
	for _, tt := range []struct {
		name string
		end  func(*events) error
		want heard
	}{
		{"finished", func(e *events) error { return e.finish("stop") }, heard{"a": nil, "b": {1}, "c": {1}}},
		{"taken over", engineLost, heard{"a": {1}, "b": {2}, "c": nil}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, "a b c", three, func(t *testing.T, w *world) {
				w.switches(true, tt.end)
				w.agents["c"].takeover = continues(4)
				w.stream(w.post("/v1/chat/completions", chat(true, "")))
				w.settle()
				for id, want := range tt.want {
					var got []uint64
					for _, c := range w.agents[id].calls().cancels {
						got = append(got, c.GetEpoch())
					}
					if !slices.Equal(got, want) {
						t.Errorf("%s: cancelled epochs %v, want %v", id, got, want)
					}
				}
			})
		})
	}
}

// What a node holds of an earlier run is released when it is to hold another, as soon as that run has begun.
func TestRouter_ReassignedHolderReleasesOldBase(t *testing.T) {
	bubble(t, "a b c", three, func(t *testing.T, w *world) {
		b, c := w.agents["b"], w.agents["c"]
		w.switches(true, engineLost)
		released := 0
		c.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
			if r.GetHolder().GetId() != "b" {
				t.Errorf("next holder %v", r.GetHolder())
			}
			if n := len(b.calls().releases); n != 0 {
				t.Errorf("%d releases before the run has begun", n)
			}
			e.next, e.textEnd = int(r.GetDelivered()), int(r.GetTextEnd())
			e.seam(4)
			time.Sleep(10 * time.Millisecond)
			released = len(b.calls().releases)
			e.tokens(total)
			return e.finish("length")
		}
		w.stream(w.post("/v1/chat/completions", chat(true, "")))
		if released != 1 || b.calls().releases[0].GetEpoch() != 1 {
			t.Errorf("%d releases: %v", released, b.calls().releases)
		}
	})
}

// A retry gives up what was held of the first run.
func TestRouter_RetryReleasesHolders(t *testing.T) {
	bubble(t, "a b c", three, func(t *testing.T, w *world) {
		a, b, c := w.agents["a"], w.agents["b"], w.agents["c"]
		a.generate = a.dies("b", 0)
		c.generate = runs(nil) // b would be least loaded, but isn't asked twice
		b.generate = c.generate
		ctx, cancel := newTestContext(t)
		defer cancel()
		resp, err := w.tryPost(ctx, "/v1/chat/completions", chat(true, ""))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		w.settle()
		if got := b.calls().releases; len(got) != 1 || got[0].GetEpoch() != 1 {
			t.Errorf("releases %v", got)
		}
	})
}
