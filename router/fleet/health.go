// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import (
	"context"
	"encoding/hex"
	"slices"
	"time"

	"google.golang.org/grpc"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/health"
)

const (
	// degradedShare is what is left of a degraded node's weight.
	degradedShare = 0.25
	// watchAgain is the pause before a broken report is asked for again.
	watchAgain = 500 * time.Millisecond
	// reportsWithin is how long an agent's reports may stay away, of which one comes every second, before the agent counts
	// as cut off and the call is made anew.
	reportsWithin = 3 * time.Second
)

// Health is the last verdict on a node's engine that says something: Unknown changes nothing.
type Health struct {
	Verdict health.Verdict  `json:"verdict"`
	Reasons []health.Reason `json:"reasons,omitempty"`
	Detail  string          `json:"detail,omitempty"`
	// Working: the engine still makes progress, although its device is given up.
	Working bool `json:"working,omitempty"`
	// Tainted: its device has lost data. Every run there ends by itself, and counts only as far as its own end says.
	Tainted bool `json:"tainted,omitempty"`
	// Engine is the engine's process life.
	Engine string `json:"engine,omitempty"`
	// GPU is what an agent knows of its devices: off, unavailable or read.
	GPU   string    `json:"gpu,omitempty"`
	Since time.Time `json:"since"`
}

// Lost reports whether what runs there is to be fenced at once.
func (h Health) Lost() bool { return h.Verdict.Lost() && !h.Working && !h.Tainted }

// Shunned reports whether nothing new should come.
func (h Health) Shunned() bool { return h.Tainted || h.Verdict.Lost() || h.Verdict == health.Evacuate }

// Leave reports whether what runs there is to be moved as planned.
func (h Health) Leave() bool { return h.Shunned() && !h.Lost() && !h.Tainted }

// Health is what was last known of the node's engine; zero before anything was.
func (n *Node) Health() Health {
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	return n.state.health
}

// judged takes in a verdict, and tells the fleet's owner when it is another one, or the same on another engine.
func (n *Node) judged(h Health) {
	if h.Verdict == health.Unknown {
		return
	}
	f := n.fleet
	f.mu.Lock()
	old := n.state.health
	fresh := old.Verdict != h.Verdict || old.Tainted != h.Tainted || old.Working != h.Working || old.Engine != h.Engine
	if h.Since = old.Since; fresh {
		h.Since = time.Now()
	}
	n.state.health = h
	if fresh && old.Shunned() && !h.Shunned() {
		f.dispatchLocked()
	}
	f.mu.Unlock()
	if !fresh {
		return
	}
	if old.Shunned() != h.Shunned() || old.Verdict == health.Degraded != (h.Verdict == health.Degraded) {
		f.log.Info("engine health changed", n.kind.String(), n.id, "verdict", h.Verdict, "was", old.Verdict, "reasons", h.Reasons, "detail", h.Detail)
	}
	if f.judged != nil {
		f.judged(n, h)
	}
}

// cutOff notes that an agent that had reported can't be reached. What runs there notices by itself.
func (n *Node) cutOff(why health.Reason) {
	was := n.Health()
	if was.Verdict == health.Unknown {
		return
	}
	n.judged(Health{Verdict: health.CutOff, Reasons: []health.Reason{why}, Tainted: was.Tainted})
}

// reached ends what cutOff noted: what the agent says of its engine is heard next.
func (n *Node) reached() {
	f := n.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.state.health.Verdict == health.CutOff {
		n.state.health = Health{Tainted: n.state.health.Tainted}
		f.dispatchLocked()
	}
}

// hearHealth takes in an agent's reports until ctx ends. A report that stays away says nothing.
func (n *Node) hearHealth(ctx context.Context, client seguev1.NodeServiceClient) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		n.hearReports(ctx, client)
		timer.Reset(watchAgain)
	}
}

// hearReports makes one call and returns when its reports end. Without a single one nothing is missed.
func (n *Node) hearReports(ctx context.Context, client seguev1.NodeServiceClient) {
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.WatchHealth(call, &seguev1.WatchHealthRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return
	}
	r, err := stream.Recv()
	silent := time.AfterFunc(reportsWithin, func() {
		n.cutOff(health.ReasonNoAnswer)
		cancel()
	})
	defer silent.Stop()
	for ; err == nil; r, err = stream.Recv() {
		silent.Reset(reportsWithin)
		n.judged(reported(r))
	}
}

// reported is what an agent says. A verdict that this version doesn't know is Unknown.
func reported(r *seguev1.WatchHealthResponse) Health {
	h := Health{Detail: r.GetDetail(), Working: r.GetWorking(), Tainted: r.GetTainted(), Engine: hex.EncodeToString(r.GetEngineBootId()), GPU: r.GetGpu()}
	if v := health.Verdict(r.GetVerdict()); slices.Contains(health.Verdicts(), v) {
		h.Verdict = v
	}
	for _, why := range r.GetReasons() {
		h.Reasons = append(h.Reasons, health.Reason(why))
	}
	return h
}

// Ours is what this router has on the node.
func (n *Node) Ours() health.Ours {
	n.fleet.mu.Lock()
	ours := n.state.ours
	n.fleet.mu.Unlock()
	// The counts are taken one after the other, while claims come and go.
	prefilling := min(max(ours-int(n.answering.Load()), 0), ours)
	return health.Ours{InFlight: ours, Prefilling: prefilling, Delivered: n.produced.Load()}
}

// Assess takes in a verdict on a server.
func (n *Node) Assess(a health.Assessment, engine string) {
	n.judged(Health{Verdict: a.Verdict, Reasons: a.Reasons, Detail: a.Detail, Working: a.Working, Engine: engine})
}
