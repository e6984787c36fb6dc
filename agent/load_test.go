// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// Many sessions at once, half of them on each node with the other as holder. Some run to their end, some are
// cancelled, some lose their caller, and the rest are continued on the holder.
func TestSessions_ManyInBothDirections(t *testing.T) {
	const count = 40
	bubble(t, func(t *testing.T, n *memNet) {
		engine := tinySim()
		engine.Contexts = 2 * count
		config := func(c *agent.Config) { c.ReservedForTakeover = count }
		a := n.start(t, "a", "127.0.0.1:1001", engine, config)
		b := n.start(t, "b", "127.0.0.1:1002", engine, config)
		quiet := n.start(t, "c", "127.0.0.1:1003", engine, config)
		rng := rand.New(rand.NewPCG(1, 2))
		var work sync.WaitGroup
		for i := range count {
			r := request(20 + rng.IntN(80))
			r.Prompt = &seguev1.Request_Text{Text: fmt.Sprintf("session %d says that %s", i, r.GetText())}
			r.Sampling.Seed = rng.Uint64()
			primary, holder := a, b
			if i%2 == 1 {
				primary, holder = b, a
			}
			mode := []seguev1.ProtectionMode{modeSync, modeSync, modeAsync}[i%3]
			cut, id := 1+rng.IntN(int(r.MaxTokens)-5), newID(t)
			work.Go(func() {
				ref := reference(t, quiet, r)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				recv := generate(t, ctx, primary, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: mode, Holder: holder.peer})
				var x transcript
				switch i % 5 {
				case 0:
					x.read(recv, nil)
					x.equal(t, ref)
				case 1:
					x.read(recv, tokens(cut))
					cancelRun(t, primary, id, 1)
				case 2:
					x.read(recv, tokens(cut))
				default:
					x.read(recv, tokens(cut))
					time.Sleep(20 * time.Millisecond) // virtual: async catches up
					cancel()
					o := x.order(id, 2, r, mode)
					o.Holder = primary.peer
					x.read(takeover(t, t.Context(), holder, o), nil)
					x.equal(t, ref)
				}
			})
		}
		work.Wait()
		time.Sleep(5 * time.Second) // virtual: orphans end
		for _, x := range []*testNode{a, b} {
			if d := x.describe(t); d.GetContextsUsed() != 0 {
				t.Errorf("node %s: %d contexts in use", x.peer.GetId(), d.GetContextsUsed())
			}
			if f := x.host.facts(t); f.ReplayedDecodeSteps != 0 {
				t.Errorf("node %s replayed %d steps", x.peer.GetId(), f.ReplayedDecodeSteps)
			}
		}
	})
}
