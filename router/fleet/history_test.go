// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/seguekv/segue/router/fleet"
)

// history plays against a fleet of servers, and keeps its own books.
type history struct {
	*fleet.Fleet
	servers []fleet.Server
	waiting []waiting
	running []*fleet.Claim
	// up says which servers answer probes, served how many sessions each has had.
	up     map[string]*atomic.Bool
	served map[string]int
}

type waiting struct {
	want   fleet.Want
	ticket *fleet.Ticket
}

// collect takes the claims that are there.
func (h *history) collect() {
	h.waiting = slices.DeleteFunc(h.waiting, func(w waiting) bool {
		c := received(w.ticket)
		if c == nil {
			return false
		}
		w.ticket.Close()
		h.running = append(h.running, c)
		h.served[c.Node.ID()]++
		return true
	})
}

// check compares the fleet's books with the history's.
func (h *history) check(t *rapid.T) {
	for i, s := range h.Status() {
		used, tokens := 0, 0
		for _, c := range h.running {
			if c.Node.ID() == s.ID {
				used++
				tokens += c.Tokens()
			}
		}
		if s.ContextsUsed != used || s.OutstandingTokens != int64(tokens) || used > h.servers[i].Contexts {
			t.Fatalf("%d sessions with %d tokens run: %+v", used, tokens, s)
		}
		if s.Failures > 0 || !s.Ready || s.Full || used == h.servers[i].Contexts {
			continue
		}
		// It would take anything: so nobody who could go there waits.
		for _, w := range h.waiting {
			if slices.Contains(s.Models, w.want.Model) && !slices.Contains(w.want.Avoid, s.ID) {
				t.Fatalf("%+v waits although there is %+v", w.want, s)
			}
		}
	}
	if h.Queued() != len(h.waiting) {
		t.Fatalf("%d queued, want %d", h.Queued(), len(h.waiting))
	}
}

func (h *history) pick(t *rapid.T) *fleet.Claim {
	if len(h.running) == 0 {
		t.Skip("nothing runs")
	}
	return h.running[rapid.IntRange(0, len(h.running)-1).Draw(t, "running")]
}

// Whatever happens, no server gets more than it takes, nobody waits who needn't, and in the end everybody is served.
func TestFleet_AnyHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Without T's method Deadline, which may not be called in a bubble.
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) {
			h := &history{up: map[string]*atomic.Bool{}, served: map[string]int{}}
			for i := range rapid.IntRange(1, 3).Draw(t, "servers") {
				id := fmt.Sprint("s", i)
				up := new(atomic.Bool)
				up.Store(true)
				h.up[id] = up
				h.servers = append(h.servers, fleet.Server{
					ID: id, Contexts: rapid.IntRange(1, 3).Draw(t, "contexts"), Weight: rapid.Float64Range(0.1, 4).Draw(t, "weight"),
					Models: rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"m", "n"}), 1, 2, rapid.ID).Draw(t, "models"),
					Probe: func(context.Context) ([]string, error) {
						if !up.Load() {
							return nil, errRefused
						}
						return nil, nil
					},
				})
			}
			const depth = 8
			h.Fleet = fleet.New(fleet.Config{Servers: h.servers, QueueDepth: depth, Log: slog.New(slog.DiscardHandler)})
			ctx, stop := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- h.Run(ctx) }() // ends with stop
			defer func() { stop(); <-done }()
			pass(0)
			t.Repeat(map[string]func(*rapid.T){
				"": func(t *rapid.T) {
					pass(0)
					h.collect()
					h.check(t)
				},
				"enqueue": func(t *rapid.T) {
					want := server(func(x *fleet.Want) {
						x.Model = rapid.SampledFrom([]string{"m", "n", "nobody's"}).Draw(t, "model")
						x.Tokens = rapid.IntRange(-1, 500).Draw(t, "tokens")
						x.Urgent = rapid.Bool().Draw(t, "urgent")
						x.Avoid = rapid.SampledFrom([][]string{nil, {"s0"}, {"s1", "s2"}}).Draw(t, "avoid")
					})
					ticket, err := h.Enqueue(want)
					if err != nil {
						if len(h.waiting) < depth {
							t.Fatalf("%d wait: %v", len(h.waiting), err)
						}
						return
					}
					h.waiting = append(h.waiting, waiting{want, ticket})
				},
				"leave": func(t *rapid.T) {
					if len(h.waiting) == 0 {
						t.Skip("nobody waits")
					}
					i := rapid.IntRange(0, len(h.waiting)-1).Draw(t, "waiting")
					h.waiting[i].ticket.Close()
					h.waiting = slices.Delete(h.waiting, i, i+1)
				},
				"progress": func(t *rapid.T) { h.pick(t).Progress(rapid.IntRange(0, 400).Draw(t, "tokens")) },
				"release": func(t *rapid.T) {
					c := h.pick(t)
					c.Release()
					h.running = slices.DeleteFunc(h.running, func(x *fleet.Claim) bool { return x == c })
				},
				"fail":    func(t *rapid.T) { h.pick(t).Fail("502") },
				"succeed": func(t *rapid.T) { h.pick(t).Succeed() },
				"outage": func(t *rapid.T) {
					n := h.Node(rapid.SampledFrom(h.servers).Draw(t, "server").ID)
					up := h.up[n.ID()]
					up.Store(!up.Load())
					n.Suspect(rapid.Bool().Draw(t, "down"), "reset")
				},
				"time": func(t *rapid.T) { pass(time.Duration(rapid.IntRange(1, 40000).Draw(t, "ms")) * time.Millisecond) },
			})
			// All is well from now on: each session ends after a second.
			for _, up := range h.up {
				up.Store(true)
			}
			for range 64 {
				pass(time.Second)
				h.collect()
				for _, c := range h.running {
					c.Succeed()
					c.Release()
				}
				h.running = nil
			}
			for _, w := range h.waiting {
				if h.Candidates(w.want.Model, fleet.KindServer, w.want.Avoid) > 0 {
					t.Fatalf("%+v is never served: %+v", w.want, h.Status())
				}
				w.ticket.Close()
			}
		})
	})
}
