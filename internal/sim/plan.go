// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/seguekv/segue/agent"
	enginesim "github.com/seguekv/segue/engines/sim"
	"github.com/seguekv/segue/router"
)

// Plan is everything that is decided before a run. It can be printed, and made smaller.
type Plan struct {
	Seed  uint64
	Nodes int
	// Tight worlds have too few contexts, SmallStore worlds rows too large for the snapshot memory.
	Tight, SmallStore bool
	// Wait is the router's uncertain_source: wait. Replay: it keeps answers for repeated keys.
	Wait, Replay bool
	// Temper is how soon its agents call an engine hung.
	Temper   Temper
	Sessions []SessionPlan
	Faults   []Fault
}

// SessionPlan is one client with its request.
type SessionPlan struct {
	// Number is its place in the plan that was drawn.
	Number  int
	Start   time.Duration
	Request Request
	Pace    time.Duration
	// The client leaves after so many tokens, after so long, or at the first takeover that begins after its start.
	LeaveAfter   int
	LeaveAt      time.Duration
	LeaveOnRaise bool
	// Retries is how often the client repeats a request that failed, as client libraries do. One with a Key repeats
	// also what broke off, under the same Idempotency-Key, with Again even what is whole; one with SDK says that it is
	// a repetition.
	Retries         int
	Key, Again, SDK bool
	// Tools is how many tool runners claim the same action when ToolAt ids have come, at each try.
	Tools, ToolAt int
}

// Draw makes the plan of a seed.
func Draw(seed uint64) Plan {
	p := drawFaults(seed)
	p.drawOrders(rand.New(rand.NewPCG(seed, 0x70ad)))
	p.drawIllness(rand.New(rand.NewPCG(seed, 0x111)))
	return p
}

// drawFaults draws the world, its sessions and what goes wrong.
func drawFaults(seed uint64) Plan {
	rng := rand.New(rand.NewPCG(seed, 0x5e6e))
	p := Plan{Seed: seed, Nodes: 3 + rng.IntN(3)}
	switch rng.IntN(10) {
	case 0:
		p.Tight = true
	case 1:
		p.SmallStore = true
	case 2:
		p.Wait = true
	}
	if rng.IntN(3) == 0 {
		p.storm(rng)
		return p
	}
	n := 5 + rng.IntN(12)
	for i := range n {
		p.Sessions = append(p.Sessions, drawSession(rng, seed, i))
	}
	faults := 0
	switch k := rng.IntN(20); {
	case k == 0:
	case k < 9:
		faults = 1
	default:
		faults = 2 + rng.IntN(5)
	}
	for i := range faults {
		p.Faults = append(p.Faults, drawFault(rng, faults, i))
	}
	return p
}

// drawOrders draws what clients and operators do beside that, and what the router's disk does.
func (p *Plan) drawOrders(rng *rand.Rand) {
	p.Replay = rng.IntN(2) == 0
	for i := range p.Sessions {
		s := &p.Sessions[i]
		if rng.IntN(3) == 0 {
			s.Key, s.Retries, s.Again, s.SDK = true, max(s.Retries, 1+rng.IntN(3)), rng.IntN(3) == 0, rng.IntN(4) == 0
		}
		if rng.IntN(3) == 0 {
			s.Tools, s.ToolAt = 1+rng.IntN(2), 1+rng.IntN(10)
		}
	}
	events := []int{0, 0, 1, 1, 1, 2, 3, 4}[rng.IntN(8)]
	for range events {
		p.Faults = append(p.Faults, drawOrder(rng, len(p.Faults)))
	}
}

// storm fills a plan with few long sessions and one fault after the other, most of them against whoever runs them.
func (p *Plan) storm(rng *rand.Rand) {
	for i := range 3 + rng.IntN(4) {
		s := drawSession(rng, p.Seed, i)
		s.Request.MaxTokens, s.Request.Stop, s.Request.IgnoreEOS = 100+rng.IntN(100), nil, true
		if rng.IntN(4) > 0 {
			s.Request.Protection = "sync"
		}
		p.Sessions = append(p.Sessions, s)
	}
	faults := 4 + rng.IntN(5)
	for i := range faults {
		f := drawFault(rng, faults, i)
		if rng.IntN(3) > 0 {
			f.Kind = []Kind{EngineCrash, AgentCrash, NodeCrash, Reset, Pause, FinishFence}[rng.IntN(6)]
			f.Role, f.Peer, f.On, f.Nth = "primary", "router", "", 0
			if f.Kind == Pause {
				f.For = 2500 * time.Millisecond
			} else {
				f.For = time.Duration(10+rng.IntN(200)) * time.Millisecond
			}
		}
		f.At = time.Duration(rng.IntN(1_000_000)) * time.Microsecond
		p.Faults = append(p.Faults, f)
	}
}

func drawSession(rng *rand.Rand, seed uint64, i int) SessionPlan {
	s := SessionPlan{Number: i, Start: time.Duration(rng.IntN(500_000)) * time.Microsecond}
	r := &s.Request
	r.Label = (seed&(1<<38-1))<<8 | uint64(i) + 1
	r.Chat, r.Stream = rng.IntN(2) == 0, rng.IntN(5) > 0
	r.PromptWords = 2 + rng.IntN(30)
	if rng.IntN(5) == 0 {
		r.PromptWords = 80 + rng.IntN(120)
	}
	r.MaxTokens = 1 + rng.IntN(80)
	if rng.IntN(5) == 0 {
		r.MaxTokens = 80 + rng.IntN(80)
	}
	r.IgnoreEOS = rng.IntN(2) == 0
	switch rng.IntN(3) {
	case 0: // greedy
	case 1:
		r.Temperature, r.TopK = 0.2+rng.Float64(), rng.IntN(50)
	case 2:
		r.Temperature, r.TopP = 0.5+rng.Float64(), 0.5+rng.Float64()/2
	}
	if rng.IntN(3) == 0 {
		r.Presence, r.Frequency, r.Repetition = rng.Float64(), rng.Float64(), 1+rng.Float64()/2
	}
	if rng.IntN(4) == 0 {
		r.Stop = [][]string{{"."}, {",", "\n"}, {" a", "é"}, {"never there"}}[rng.IntN(4)]
	}
	r.Protection = []string{"sync", "sync", "sync", "async", "off", ""}[rng.IntN(6)]
	switch rng.IntN(12) {
	case 0:
		s.Pace = time.Duration(1+rng.IntN(40)) * time.Millisecond
	case 1:
		s.LeaveAfter = 1 + rng.IntN(20)
	case 2:
		s.LeaveAt = time.Duration(1+rng.IntN(300)) * time.Millisecond
	case 3:
		s.LeaveOnRaise = true
	}
	if rng.IntN(2) == 0 {
		s.Retries = 1 + rng.IntN(2)
	}
	return s
}

// stays reports a client that reads its answer to the end.
func (s SessionPlan) stays() bool { return s.LeaveAfter == 0 && s.LeaveAt == 0 && !s.LeaveOnRaise }

// sync reports the mode under which a healthy holder continues everything.
func (s SessionPlan) sync() bool { return s.Request.Protection == "sync" || s.Request.Protection == "" }

// roomy reports a world in which nothing is in short supply but by a fault.
func (p Plan) roomy() bool { return !p.Tight && !p.SmallStore }

// Keep is the plan with only some of its faults and sessions, by number; nil keeps all.
func (p Plan) Keep(faults, sessions []int) Plan {
	if faults != nil {
		p.Faults = slices.DeleteFunc(slices.Clone(p.Faults), func(f Fault) bool { return !slices.Contains(faults, f.Number) })
	}
	if sessions != nil {
		p.Sessions = slices.DeleteFunc(slices.Clone(p.Sessions), func(s SessionPlan) bool { return !slices.Contains(sessions, s.Number) })
	}
	return p
}

// Numbers lists the plan's faults and sessions by number.
func (p Plan) Numbers() (faults, sessions []int) {
	faults, sessions = []int{}, []int{}
	for _, f := range p.Faults {
		faults = append(faults, f.Number)
	}
	for _, s := range p.Sessions {
		sessions = append(sessions, s.Number)
	}
	return faults, sessions
}

func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d nodes", p.Seed, p.Nodes)
	switch {
	case p.Tight:
		b.WriteString(", few contexts")
	case p.SmallStore:
		b.WriteString(", small stores")
	case p.Wait:
		b.WriteString(", uncertain_source: wait")
	}
	if p.Replay {
		b.WriteString(", replay")
	}
	if p.Temper != "" {
		fmt.Fprintf(&b, ", %s agents", p.Temper)
	}
	for _, f := range p.Faults {
		fmt.Fprintf(&b, "\n  fault %d: %v", f.Number, f)
	}
	for _, s := range p.Sessions {
		fmt.Fprintf(&b, "\n  session %d: %v", s.Number, s)
	}
	return b.String()
}

func (s SessionPlan) String() string {
	r := s.Request
	var b strings.Builder
	fmt.Fprintf(&b, "at %v, label %d, protection %q, chat %v, stream %v, %d words, %d tokens, temperature %.2f",
		s.Start, r.Label, r.Protection, r.Chat, r.Stream, r.PromptWords, r.MaxTokens, r.Temperature)
	if len(r.Stop) > 0 {
		fmt.Fprintf(&b, ", stop %q", r.Stop)
	}
	if s.Pace > 0 {
		fmt.Fprintf(&b, ", pace %v", s.Pace)
	}
	if !s.stays() {
		fmt.Fprintf(&b, ", leaves after %d tokens, at %v, on a takeover %v", s.LeaveAfter, s.LeaveAt, s.LeaveOnRaise)
	}
	if s.Retries > 0 {
		fmt.Fprintf(&b, ", %d retries", s.Retries)
	}
	if s.Key {
		fmt.Fprintf(&b, " with a key, again when whole %v, sdk %v", s.Again, s.SDK)
	}
	if s.Tools > 0 {
		fmt.Fprintf(&b, ", %d tool runners after %d ids", s.Tools, s.ToolAt)
	}
	return b.String()
}

// Engine is the shape of the plan's engines.
func (p Plan) Engine() enginesim.Config {
	c := DefaultEngine()
	c.EOGEvery = 60
	switch {
	case p.Tight:
		c.Contexts = 3
	case p.SmallStore:
		c.KVBytesPerToken = 4096
		c.Contexts = 16
	default:
		c.Contexts = 16
	}
	return c
}

// World is the configuration of the plan's world.
func (p Plan) World(verbose bool) Config {
	return Config{
		Seed: p.Seed, Nodes: p.Nodes, Engine: p.Engine(), Verbose: verbose, Replay: p.Replay,
		Agent: func(_ string, c *agent.Config) {
			p.Temper.Configure(c)
			if p.SmallStore {
				c.SnapshotMemory = 1 << 20
			}
			if p.Tight {
				c.ReservedForTakeover = 1
			}
		},
		Router: func(c *router.Config) {
			if p.Wait {
				c.UncertainSource = router.SourceWait
			}
		},
	}
}
