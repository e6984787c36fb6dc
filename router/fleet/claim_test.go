// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet_test

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/seguekv/segue/router/fleet"
)

func TestClaim_OutstandingTokens(t *testing.T) {
	bubble(t, "s:m", nil, func(t *testing.T, w *world) {
		c := w.claim(server(func(x *fleet.Want) { x.Tokens = 100 }))
		other := w.claim(server(func(x *fleet.Want) { x.Tokens = -3 }))
		for _, step := range []struct {
			name string
			do   func()
			want int
		}{
			{"begun", func() {}, 100},
			{"progress", func() { c.Progress(30) }, 70},
			{"no progress", func() { c.Progress(0); c.Progress(-7) }, 70},
			{"expect", func() { c.Expect(500) }, 500},
			{"more than was expected", func() { c.Progress(math.MaxInt) }, 1},
			{"expect nothing", func() { c.Expect(-1) }, 1},
			{"expect the impossible", func() { c.Expect(math.MaxInt) }, 1 << 30},
			{"released", c.Release, 0},
			{"late calls", func() { c.Progress(1); c.Expect(9); c.Release() }, 0},
		} {
			step.do()
			if got := w.status("s").OutstandingTokens; c.Tokens() != step.want || got != int64(step.want+other.Tokens()) {
				t.Errorf("%s: the claim has %d, its node %d; want %d", step.name, c.Tokens(), got, step.want)
			}
		}
		if other.Tokens() != 1 {
			t.Errorf("a session of unknown size counts as %d", other.Tokens())
		}
		if s := w.status("s"); s.ContextsUsed != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// Progress decides where the next session goes.
func TestClaim_ProgressFreesItsNode(t *testing.T) {
	bubble(t, "a:m b:m", nil, func(t *testing.T, w *world) {
		large := w.claim(server(func(x *fleet.Want) { x.Tokens = 1000 }))
		small := w.claim(server(func(x *fleet.Want) { x.Tokens = 100 }))
		if large.Node == small.Node {
			t.Fatal("both on one node")
		}
		if c := w.claim(server(func(x *fleet.Want) { x.Tokens = 50 })); c.Node != small.Node {
			t.Error("the node with more tokens was chosen")
		}
		large.Progress(900)
		if c := w.claim(server(func(x *fleet.Want) { x.Tokens = 10 })); c.Node != large.Node {
			t.Error("the node with more tokens was chosen after the other's progress")
		}
	})
}

func TestClaim_ConcurrentProgressAddsUp(t *testing.T) {
	bubble(t, "s:m", nil, func(t *testing.T, w *world) {
		var claims []*fleet.Claim
		for range 4 {
			claims = append(claims, w.claim(server(func(x *fleet.Want) { x.Tokens = 1000 })))
		}
		var wg sync.WaitGroup
		for _, c := range claims {
			for range 3 {
				wg.Go(func() {
					for range 100 {
						c.Progress(2)
					}
				})
			}
			wg.Go(func() { c.Expect(5000) })
		}
		claims[0].Release()
		wg.Wait()
		sum := 0
		for _, c := range claims {
			sum += c.Tokens()
		}
		if got := w.status("s").OutstandingTokens; got != int64(sum) || claims[0].Tokens() != 0 || sum < 3*4400 {
			t.Errorf("the node has %d, its claims %d", got, sum)
		}
		for _, c := range claims {
			c.Release()
		}
		if got := w.status("s").OutstandingTokens; got != 0 {
			t.Errorf("%d are left of nothing", got)
		}
	})
}

// Progress is called for every piece of output.
func TestClaim_ProgressAllocatesNothing(t *testing.T) {
	bubble(t, "s:m", nil, func(t *testing.T, w *world) {
		c := w.claim(server(func(x *fleet.Want) { x.Tokens = 1 << 20 }))
		if got := testing.AllocsPerRun(100, func() { c.Progress(1) }); got != 0 {
			t.Errorf("%v allocations", got)
		}
	})
}

func BenchmarkClaim_Progress(b *testing.B) {
	f := fleet.New(fleet.Config{Servers: []fleet.Server{{ID: "s"}}})
	c := f.Occupy(f.Node("s"))
	c.Expect(1 << 30)
	for b.Loop() {
		c.Progress(1)
	}
}

// What an agent does for others counts, at the size of the session that is to be placed.
func TestAgent_ForeignSessionsCount(t *testing.T) {
	bubble(t, "A:m B:m", nil, func(t *testing.T, w *world) {
		pass(100 * time.Millisecond)
		a := w.agents["A"]
		a.mu.Lock()
		a.used = 1
		a.mu.Unlock()
		ours := w.claim(fleet.Want{Model: "m", Avoid: []string{"A"}, Tokens: 9})
		pass(time.Second)
		for _, tt := range []struct {
			tokens int
			want   string
		}{{10, "B"}, {8, "A"}} {
			c := w.claim(fleet.Want{Model: "m", Tokens: tt.tokens})
			if c.Node.ID() != tt.want {
				t.Errorf("%d tokens: on %s; 1 foreign session on A, %d tokens on B", tt.tokens, c.Node.ID(), ours.Tokens())
			}
			c.Release()
		}
	})
}
