// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"fmt"
	"time"

	"github.com/seguekv/segue/agent"
	"github.com/seguekv/segue/engines"
	enginesim "github.com/seguekv/segue/engines/sim"
	"github.com/seguekv/segue/internal/faultnet"
	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/fleet"
)

// Config describes a world.
type Config struct {
	// Seed decides session ids and the network's jitter.
	Seed  uint64
	Nodes int
	// Engine is every node's; DefaultEngine is small and quick.
	Engine enginesim.Config
	// Agent and Router change the defaults of each agent and of the router; nil for neither.
	Agent  func(node string, c *agent.Config)
	Router func(c *router.Config)
	// Replay makes the router keep the answers of requests with an Idempotency-Key.
	Replay bool
	// Deaf engines don't answer those who look after them: nothing is known of them.
	Deaf bool
	// Wrap decorates each new engine; nil for none. The node's name tells the engines apart.
	Wrap func(node string, e engines.Engine) engines.Engine
	// Hook is called at every Moment, on the goroutine that passes it, which waits: Hook may block and call World's
	// methods, but nothing of the router in a gate's Moment. Nil for none.
	Hook func(Moment)
	// Verbose puts logs and moments into the trace.
	Verbose bool
}

// DefaultEngine has rows of 256 bytes, 5 ms a token and prompt chunks of 16.
func DefaultEngine() enginesim.Config {
	c := enginesim.DefaultConfig()
	c.KVBytesPerToken, c.Layers, c.ContextLength = 256, 2, 1024
	c.Step, c.PrefillToken, c.Chunk = 5*time.Millisecond, 200*time.Microsecond, 16
	c.Contexts = 8
	return c
}

func (w *World) agentConfig(n *Node) agent.Config {
	c := agent.DefaultConfig()
	c.ID, c.Listen, c.InsecurePlaintext = n.ID, n.Addr, true
	c.SnapshotMemory = 64 << 20
	// What a dead router leaves is swept within the world's patience.
	c.HoldTimeout = 10 * time.Second
	// So does an engine get another chance that hung, lost its work and shows no life.
	c.Health.IdleLimit = 10 * time.Second
	if w.cfg.Agent != nil {
		w.cfg.Agent(n.ID, &c)
	}
	return c
}

func (w *World) routerConfig() router.Config {
	c := router.DefaultConfig()
	c.InsecurePlaintext = true // the addresses are of a network of its own
	c.Listen = RouterAddr
	c.Journal.Replay = w.cfg.Replay
	for _, n := range w.Nodes {
		c.Agents = append(c.Agents, fleet.Member{ID: n.ID, Addr: n.Addr})
	}
	if w.cfg.Router != nil {
		w.cfg.Router(&c)
	}
	return c
}

// nodeName is a, b, c, …
func nodeName(i int) string { return string(rune('a' + i)) }

// link is the ordinary link between two hosts: quick, and as slow as no other.
func link(from, to string) faultnet.Link {
	h := uint64(14695981039346656037)
	for _, c := range fmt.Append(nil, from, ">", to) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return faultnet.Link{Latency: 100*time.Microsecond + time.Duration(h%9973)*10*time.Nanosecond}
}
