// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/seguekv/segue/health"
)

const (
	// healthPoll is the pause between two looks at a router's view.
	healthPoll = 5 * time.Millisecond
	// healthPatience is how long a verdict may take; healthRecovery how long an agent may take to be well again.
	healthPatience = 15 * time.Second
	healthRecovery = time.Minute
	// maxAgentsPage bounds a router's list of agents.
	maxAgentsPage = 1 << 20
)

// errNoVerdict: the router's view stayed as it was for as long as it may.
var errNoVerdict = errors.New("bench: no verdict")

// agentView is how a router sees an agent.
type agentView struct {
	ID          string     `json:"id"`
	Addr        string     `json:"addr"`
	Ready       bool       `json:"ready"`
	Reason      string     `json:"reason"`
	ExcludedFor float64    `json:"excluded_for"`
	Health      agentState `json:"health"`
}

// agentState is the router's verdict on an agent's engine.
type agentState struct {
	Verdict health.Verdict  `json:"verdict"`
	Reasons []health.Reason `json:"reasons"`
	Detail  string          `json:"detail"`
}

// well reports whether the agent takes work.
func (v agentView) well() bool { return v.Ready && v.ExcludedFor == 0 && v.Health.Verdict.Healthy() }

func (v agentView) String() string {
	return fmt.Sprintf("agent %s ready=%t (%s) excluded for %.1f s, engine %s %v %s", v.ID, v.Ready, v.Reason, v.ExcludedFor, v.Health.Verdict, v.Health.Reasons, v.Health.Detail)
}

// routerView looks at a router's agents, over one connection that is kept.
type routerView struct {
	url  string
	http *http.Client
}

func newRouterView(admin string) *routerView {
	const timeout = 5 * time.Second
	return &routerView{url: admin + "/v1/agents", http: &http.Client{Timeout: timeout, Transport: &http.Transport{}}}
}

func (v *routerView) close() { v.http.CloseIdleConnections() }

func (v *routerView) agents(ctx context.Context) ([]agentView, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.url, nil)
	if err != nil {
		return nil, fmt.Errorf("ask for agents: %w", err)
	}
	res, err := v.http.Do(req)
	if err != nil {
		return nil, err // names method and address already
	}
	defer res.Body.Close()
	var list []agentView
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAgentsPage)).Decode(&list); err != nil {
		return nil, fmt.Errorf("read %s: %s: %w", v.url, res.Status, err)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxAgentsPage)) // to the end, so that the connection is kept
	return list, nil
}

func (v *routerView) agent(ctx context.Context, id string) (agentView, error) {
	list, err := v.agents(ctx)
	if err != nil {
		return agentView{}, err
	}
	for _, a := range list {
		if a.ID == id {
			return a, nil
		}
	}
	return agentView{}, fmt.Errorf("%s lists no agent %q", v.url, id)
}

// await returns the first view of the agent that is as wanted, and when it was had. It is errNoVerdict with what was seen last
// after limit.
func (v *routerView) await(ctx context.Context, id string, limit time.Duration, wanted func(agentView) bool) (agentView, time.Time, error) {
	begun := time.Now()
	for {
		a, err := v.agent(ctx, id)
		now := time.Now()
		switch {
		case err != nil:
			return a, now, err
		case wanted(a):
			return a, now, nil
		case now.Sub(begun) > limit:
			return a, now, fmt.Errorf("%w within %v: %v", errNoVerdict, limit, a)
		}
		if err := rest(ctx, healthPoll); err != nil {
			return a, now, err
		}
	}
}

// recovered waits until the agent takes work again.
func (v *routerView) recovered(ctx context.Context, id string) error {
	_, _, err := v.await(ctx, id, healthRecovery, agentView.well)
	return err
}
