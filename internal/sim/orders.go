// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/seguekv/segue/router"
	"github.com/seguekv/segue/router/fleet"
	"github.com/seguekv/segue/router/journal"
)

var errRouterDown = errors.New("sim: the router is down")

// Migrate orders a session to its holder and returns what became of it.
func (g *Gateway) Migrate(ctx context.Context, session string) (router.Move, error) {
	var m router.Move
	err := g.order(ctx, http.MethodPost, "/v1/sessions/"+session+"/migrate", &m)
	return m, err
}

// Drain keeps new work off a node and moves its sessions.
func (g *Gateway) Drain(ctx context.Context, node string) (router.Drained, error) {
	var d router.Drained
	err := g.order(ctx, http.MethodPost, "/v1/agents/"+node+"/drain", &d)
	return d, err
}

// Undrain ends a Drain.
func (g *Gateway) Undrain(ctx context.Context, node string) error {
	var answer struct {
		Draining bool `json:"draining"`
	}
	return g.order(ctx, http.MethodDelete, "/v1/agents/"+node+"/drain", &answer)
}

// order calls the operators' listener.
func (g *Gateway) order(ctx context.Context, method, path string, into any) error {
	l := g.present()
	if l == nil {
		return errRouterDown
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://control"+path, nil)
	if err != nil {
		return err
	}
	resp, err := l.admin.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusConflict {
		return fmt.Errorf("%s %s: status %d", method, path, resp.StatusCode)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// Verdict is what the router holds of a node's engine, and whether that still works; empty when nothing is known.
func (g *Gateway) Verdict(node string) (verdict string, working bool) {
	l := g.present()
	if l == nil {
		return "", false
	}
	var list []struct {
		ID     string        `json:"id"`
		Health *fleet.Health `json:"health"`
	}
	if get(l.admin, "/v1/agents", &list) != nil {
		return "", false
	}
	for _, n := range list {
		if n.ID == node && n.Health != nil {
			return n.Health.Verdict.String(), n.Health.Working
		}
	}
	return "", false
}

// Record is what the journal knows of a session; nil when it knows nothing, or the router is down.
func (g *Gateway) Record(session string) *journal.Request {
	l := g.present()
	if l == nil {
		return nil
	}
	var r journal.Request
	if get(l.admin, "/v1/requests/"+url.PathEscape(session), &r) != nil {
		return nil
	}
	return &r
}

// Count is the sum of a metric of the present process: of a histogram, how many observations.
func (g *Gateway) Count(family string) float64 {
	l := g.present()
	if l == nil {
		return 0
	}
	families, err := l.metrics.Gather()
	if err != nil {
		return 0
	}
	n := 0.0
	for _, f := range families {
		if f.GetName() != family {
			continue
		}
		for _, m := range f.GetMetric() {
			n += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return n
}
