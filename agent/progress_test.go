// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"testing"
	"time"

	"github.com/seguekv/segue/agent"
	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines/sim"
)

// Progress proves life: it comes while the engine computes, however long that takes within the step limit, and
// stops with an engine that hangs.
func TestProgress_ProvesLife(t *testing.T) {
	for name, c := range map[string]struct {
		engine func(*sim.Config)
		hang   bool
		until  time.Duration // when the last sign of life comes, within a second
	}{
		"a long prefill":     {engine: func(c *sim.Config) { c.Chunk, c.PrefillToken = 64, time.Second/10; c.ContextLength = 1024 }, until: 30 * time.Second},
		"steps of 4 seconds": {engine: func(c *sim.Config) { c.Step = 4 * time.Second }, until: 30 * time.Second},
		"a step over limit":  {engine: func(c *sim.Config) { c.Step = time.Hour }, until: 10 * time.Second},
		"a silent engine":    {engine: func(*sim.Config) {}, hang: true, until: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *memNet) {
				engine := tinySim()
				c.engine(&engine)
				a := n.start(t, "a", "127.0.0.1:1001", engine, func(c *agent.Config) { c.StepLimit = 10 * time.Second })
				if c.hang {
					defer a.host.hold("run")()
				}
				r := request(400)
				r.Prompt = ids(make([]int32, 500)...)
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				recv := generate(t, ctx, a, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: modeOff})
				began := time.Now()
				var last time.Duration
				gap := time.Duration(0)
				for {
					e, err := recv()
					if err != nil {
						break
					}
					if e.GetFinish() != nil {
						t.Fatal("the run is over")
					}
					gap = max(gap, time.Since(began)-last)
					last = time.Since(began)
				}
				if d := c.until - last; d < -time.Second || d > time.Second || gap > time.Second {
					t.Errorf("last sign of life after %v, longest gap before it %v; want the last after %v", last, gap, c.until)
				}
			})
		})
	}
}
