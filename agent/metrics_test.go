// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
)

// sample is one exposed value; a histogram's is its count.
type sample struct {
	name   string
	labels []string
	value  float64
}

func (b *testNode) gather(t *testing.T) []sample {
	t.Helper()
	families, err := b.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []sample
	for _, f := range families {
		for _, m := range f.GetMetric() {
			x := sample{name: f.GetName(), value: m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())}
			for _, l := range m.GetLabel() {
				x.labels = append(x.labels, l.GetValue())
			}
			out = append(out, x)
		}
	}
	return out
}

// value is the sum of the samples of a name that have all the label values.
func value(samples []sample, name string, labels ...string) float64 {
	sum := 0.0
	for _, x := range samples {
		if x.name == name && !slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(x.labels, l) }) {
			sum += x.value
		}
	}
	return sum
}

func TestMetrics_EachMovesAndIsWellFormed(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *memNet, a, b *testNode) {
		r, id := request(400), newID(t)
		ctx, cancel := context.WithCancel(t.Context())
		recv := generate(t, ctx, a, &seguev1.GenerateRequest{Session: id, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer})
		var x transcript
		x.read(recv, tokens(20))
		during, held := a.gather(t), b.gather(t)
		for name, want := range map[string]float64{
			"segue_engine_running": 1, "segue_agent_contexts_used": 1, "segue_agent_primary_sessions": 1, "segue_agent_held_sessions": 0,
			"segue_agent_captured_boundaries": 20, "segue_agent_sent_boundaries": 20, "segue_agent_committed_boundaries": 20,
			"segue_agent_snapshot_limit_bytes": 1 << 30,
		} {
			if got := value(during, name); got < want || got > max(want, 30) && want < 100 {
				t.Errorf("%s = %v, want about %v", name, got, want)
			}
		}
		if value(held, "segue_agent_held_sessions") != 1 || value(held, "segue_agent_snapshot_used_bytes") == 0 {
			t.Errorf("the holder counts %v sessions of %v bytes", value(held, "segue_agent_held_sessions"), value(held, "segue_agent_snapshot_used_bytes"))
		}
		cancel()
		cancelRun(t, a, id, 1)
		o := x.order(id, 2, r, modeSync)
		o.Holder = a.peer
		recv = takeover(t, t.Context(), b, o)
		x.protections = nil
		x.read(recv, (*transcript).protected)
		x.read(recv, nil)
		_, err := takeover(t, t.Context(), b, x.order(newID(t), 2, r, modeSync))()
		wantReason(t, err, seguev1.Reason_REASON_UNKNOWN_SESSION)
		brief := lease()
		brief.TtlMs, brief.MarginMs = 100, 50
		x = *new(transcript).read(generate(t, t.Context(), b, &seguev1.GenerateRequest{Session: newID(t), Epoch: 1, Request: r, Protection: modeOff, Lease: brief}), nil)
		wantReason(t, x.err, seguev1.Reason_REASON_LEASE_ENDED)
		// A move from a to b and back that is refused, one that is given up, and one that is too late.
		move := newID(t)
		x = transcript{}
		recv = generate(t, t.Context(), a, &seguev1.GenerateRequest{Session: move, Epoch: 1, Request: r, Protection: modeSync, Holder: b.peer})
		x.read(recv, tokens(5))
		mustPrepare(t, b, move, 1, 100)
		if got := value(b.gather(t), "segue_agent_prepared_contexts"); got != 1 {
			t.Errorf("%v contexts are prepared", got)
		}
		time.Sleep(200 * time.Millisecond) // virtual
		mustPrepare(t, b, move, 1, 0)
		mustPark(t, a, move, 1)
		if got := value(a.gather(t), "segue_agent_parked_sessions"); got != 1 || value(a.gather(t), "segue_agent_held_sessions") != 1 {
			t.Errorf("%v sessions are parked, %v held", got, value(a.gather(t), "segue_agent_held_sessions"))
		}
		_, err = takeover(t, t.Context(), b, x.order(move, 2, request(1), modeOff))()
		wantReason(t, err, seguev1.Reason_REASON_PROMPT_MISMATCH)
		mustPrepare(t, b, move, 2, 0)
		cancelRun(t, a, move, 3)
		cancelRun(t, b, move, 3)
		_, err = park(t, a, move, 1)
		wantReason(t, err, seguev1.Reason_REASON_CANCELLED)
		_, err = prepare(t, b, move, 4, 0)
		wantReason(t, err, seguev1.Reason_REASON_UNKNOWN_SESSION)
		synctest.Wait()

		nodes := [][]sample{a.gather(t), b.gather(t)}
		for _, x := range slices.Concat(nodes...) {
			name := x.name
			moved := value(nodes[0], name) + value(nodes[1], name)
			switch {
			case name == "segue_engine_replayed_decode_steps_total":
				if moved != 0 {
					t.Errorf("%s = %v", name, moved)
				}
			case strings.HasSuffix(name, "_total") || strings.HasSuffix(name, "_seconds"):
				if moved == 0 {
					t.Errorf("%s didn't move", name)
				}
			}
			if !strings.HasPrefix(name, "segue_agent_") && !strings.HasPrefix(name, "segue_engine_") {
				t.Errorf("metric %s", name)
			}
		}
		for _, c := range []struct {
			node   int
			name   string
			labels []string
			want   float64
		}{
			{1, "segue_agent_takeovers_total", []string{"", "ok"}, 1},
			{1, "segue_agent_takeovers_total", []string{"unknown_session", "refused"}, 1},
			{0, "segue_agent_parks_total", []string{"", "ok"}, 1},
			{0, "segue_agent_parks_total", []string{"cancelled", "refused"}, 1},
			{1, "segue_agent_prepares_total", []string{"", "ok"}, 3},
			{1, "segue_agent_prepares_total", []string{"unknown_session", "refused"}, 1},
			{1, "segue_agent_prepared_ended_total", []string{"expired"}, 1},
			{1, "segue_agent_prepared_ended_total", []string{"used"}, 1},
			{1, "segue_agent_prepared_ended_total", []string{"dropped"}, 1},
			{0, "segue_agent_runs_total", []string{"parked"}, 1},
			{0, "segue_agent_protection_changes_total", []string{"", "protected"}, 2},
			{1, "segue_agent_protection_changes_total", []string{"", "unprotected"}, 1},
			{1, "segue_agent_protection_changes_total", []string{"", "protected"}, 1},
			{0, "segue_agent_runs_total", []string{"failed"}, 1},
			{1, "segue_agent_runs_total", []string{"finished"}, 1},
			{1, "segue_agent_runs_total", []string{"failed"}, 1},
			{1, "segue_agent_leases_expired_total", nil, 1},
			{0, "segue_agent_run_seconds", nil, 2},
		} {
			if got := value(nodes[c.node], c.name, c.labels...); got != c.want {
				t.Errorf("%s%q = %v, want %v", c.name, c.labels, got, c.want)
			}
		}
		for _, x := range []*testNode{a, b} {
			families, err := x.metrics.Gather()
			if err != nil {
				t.Fatal(err)
			}
			problems, err := promlint.NewWithMetricFamilies(families).Lint()
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range problems {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
		a.host.kill(nil)
		if f := a.gather(t); value(f, "segue_engine_decode_steps_total") != 0 || value(f, "segue_engine_running") != 0 {
			t.Error("counters of an engine that is gone are still there")
		}
	})
}
