// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/seguekv/segue/router/fleet"
)

// No more wait than the queue has places for, however urgent; whoever leaves makes room.
func TestFleet_QueueIsBounded(t *testing.T) {
	const depth = 3
	f := fleet.New(fleet.Config{QueueDepth: depth})
	var waiting []*fleet.Ticket
	for range depth {
		ticket, err := f.Enqueue(fleet.Want{Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, ticket)
	}
	for _, urgent := range []bool{false, true} {
		if _, err := f.Enqueue(fleet.Want{Model: "m", Urgent: urgent}); !errors.Is(err, fleet.ErrQueueFull) {
			t.Errorf("urgent %v: got %v, want ErrQueueFull", urgent, err)
		}
	}
	waiting[1].Close()
	if _, err := f.Enqueue(fleet.Want{Model: "m"}); err != nil {
		t.Errorf("after one has left: %v", err)
	}
}

// Sessions that wait for one model, or kind, or while avoiding a node, don't hold up others, in whatever order they came.
func TestFleet_QueuesDontBlockOneAnother(t *testing.T) {
	bubble(t, "s:m t:n A:m", func(c *fleet.Config) {
		c.Servers[0].Contexts, c.Servers[1].Contexts = 1, 1
	}, func(t *testing.T, w *world) {
		pass(100 * time.Millisecond)
		wants := []fleet.Want{
			server(nil), server(func(x *fleet.Want) { x.Model = "n" }), {Model: "m"},
		}
		var held, rest []*fleet.Claim
		for i, want := range wants {
			held = append(held, w.claim(want))
			if want.Kind == fleet.KindAgent {
				rest = append(rest, w.claim(want)) // two contexts are free beyond the reserve
			}
			if i > 0 && held[i].Node == held[i-1].Node {
				t.Fatalf("%+v", held)
			}
		}
		for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
			// Two that nobody serves, urgent, are at the head of the queue.
			tickets := map[int]*fleet.Ticket{}
			blocked := []*fleet.Ticket{
				w.enqueue(fleet.Want{Model: "nobody's", Urgent: true}),
				w.enqueue(server(func(x *fleet.Want) { x.Avoid, x.Urgent = []string{"s"}, true })),
			}
			for _, i := range order {
				tickets[i] = w.enqueue(wants[i])
			}
			for _, i := range order {
				if received(tickets[i]) != nil {
					t.Fatalf("order %v: %d got a context that nobody gave back", order, i)
				}
				held[i].Release()
				if held[i] = received(tickets[i]); held[i] == nil {
					t.Fatalf("order %v: %d waits on", order, i)
				}
			}
			for _, b := range blocked {
				if received(b) != nil {
					t.Error("a claim for a session that nobody can take")
				}
				b.Close()
			}
		}
		for _, c := range rest {
			c.Release()
		}
		if got := w.Queued(); got != 0 {
			t.Errorf("%d wait", got)
		}
	})
}

// Nobody starves: sessions of one kind are served in the order they came, urgent ones first, whatever they weigh and
// whatever others do.
func TestFleet_QueueIsServedInOrder(t *testing.T) {
	bubble(t, "s:m", func(c *fleet.Config) { c.Servers[0].Contexts = 1 }, func(t *testing.T, w *world) {
		running := w.claim(server(nil))
		var tickets []*fleet.Ticket
		for i := range 6 {
			tickets = append(tickets, w.enqueue(server(func(x *fleet.Want) { x.Tokens = 1000 * (7 - i) })))
		}
		tickets = slices.Insert(tickets, 0, w.enqueue(server(func(x *fleet.Want) { x.Urgent = true })))
		for i := range tickets {
			// A newcomer never overtakes.
			late := w.enqueue(server(func(x *fleet.Want) { x.Tokens = 1 }))
			running.Release()
			if received(late) != nil {
				t.Fatal("a newcomer overtook")
			}
			late.Close()
			if running = received(tickets[i]); running == nil {
				t.Fatalf("%d isn't the next", i)
			}
		}
	})
}

// A claim that nobody received is given back.
func TestTicket_CloseGivesTheClaimBack(t *testing.T) {
	bubble(t, "s:m", func(c *fleet.Config) { c.Servers[0].Contexts = 1 }, func(t *testing.T, w *world) {
		w.enqueue(server(func(x *fleet.Want) { x.Tokens = 9 })).Close()
		if s := w.status("s"); s.ContextsUsed != 0 || s.OutstandingTokens != 0 {
			t.Errorf("%+v", s)
		}
		w.claim(server(nil))
	})
}
