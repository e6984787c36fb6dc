// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/health"
)

// healthCut is a second router, which reaches the cluster's agents through cables.
type healthCut struct {
	b      *healthBench
	router *routerProcess
	view   *routerView
	client *client.Client
	cables map[string]*cable
}

// cuts measures what a router makes of connections that are cut.
func (b *healthBench) cuts(ctx context.Context, out *HealthVerdicts) error {
	c := &healthCut{b: b, cables: make(map[string]*cable)}
	defer c.close()
	if err := c.start(ctx); err != nil {
		return fmt.Errorf("a router behind cables: %w", err)
	}
	for _, part := range []struct {
		name  string
		to    *HealthDelays
		state linkState
	}{{"connection_cut", &out.ConnectionCut, linkReset}, {"connection_silent", &out.ConnectionSilent, linkSilent}} {
		var err error
		*part.to, err = b.rounds(ctx, part.name, func(ctx context.Context) (time.Duration, error) { return c.cut(ctx, part.state) })
		if err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// close ends the router before its cables.
func (c *healthCut) close() {
	if c.view != nil {
		c.view.close()
		c.client.Close()
	}
	if c.router != nil {
		c.router.stop()
	}
	for _, cable := range c.cables {
		cable.close()
	}
}

func (c *healthCut) start(ctx context.Context) error {
	agents, err := c.b.view.agents(ctx)
	if err != nil {
		return err
	}
	args := []string{"router", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
	for _, a := range agents {
		if c.cables[a.ID], err = lay(a.Addr); err != nil {
			delete(c.cables, a.ID)
			return err
		}
		args = append(args, "--agent", a.ID+"="+c.cables[a.ID].addr())
	}
	if c.router, err = startRouter(c.b.cfg.Binary, filepath.Join(c.b.cl.Dir(), "router-cables.log"), args); err != nil {
		return err
	}
	c.view, c.client = newRouterView("http://"+c.router.adminAddr), client.New("http://"+c.router.listen)
	if err := c.router.awaitReady(ctx); err != nil {
		return err
	}
	for id := range c.cables {
		if err := c.view.recovered(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// cut cuts the cable that a stream comes through, and returns how long it took until the router had the verdict.
func (c *healthCut) cut(ctx context.Context, state linkState) (time.Duration, error) {
	s := c.b.stream(ctx, c.client, c.b.body(1, c.b.cfg.outputTokens()))
	defer s.stop()
	node, err := s.primary(ctx, c.router.admin)
	if err != nil {
		return 0, err
	}
	if err := rest(ctx, healthBrief); err != nil {
		return 0, err
	}
	a, err := c.view.agent(ctx, node)
	if err != nil {
		return 0, err
	}
	if a.Health.Verdict != health.Busy {
		return 0, fmt.Errorf("%w: %v", errMissedWork, a)
	}
	at := c.cables[node].set(state)
	_, seen, missed := c.view.await(ctx, node, healthPatience, func(a agentView) bool { return a.Health.Verdict == health.CutOff })
	if missed != nil && !errors.Is(missed, errNoVerdict) {
		return 0, missed
	}
	s.stop()
	c.cables[node].set(linkUp)
	if err := c.view.recovered(ctx, node); err != nil {
		return 0, fmt.Errorf("after the cut: %w", err)
	}
	return seen.Sub(at), missed
}
