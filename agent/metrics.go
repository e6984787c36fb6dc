// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/transfer"
)

// metrics are the agent's counters. Labels: state is protected or unprotected; result is ok or refused, of renewals
// granted or ignored; end is used, expired or dropped; cause and reason are from fixed lists.
type metrics struct {
	receivedBytes prometheus.Counter
	takeovers     *prometheus.CounterVec
	prepares      *prometheus.CounterVec
	reservations  *prometheus.CounterVec
	parks         *prometheus.CounterVec
	protections   *prometheus.CounterVec
	runs          *prometheus.CounterVec
	runSeconds    prometheus.Histogram
	renewals      *prometheus.CounterVec
	expired       prometheus.Counter
	verdicts      *prometheus.CounterVec
	xids          *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, a *Agent) (*metrics, error) {
	m := &metrics{
		receivedBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "segue_agent_received_bytes_total", Help: "Bytes of snapshot records received as a holder.",
		}),
		takeovers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "segue_agent_takeovers_total", Help: "Takeovers ordered here, by result and reason of refusal.",
		}, []string{"result", "reason"}),
		prepares: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "segue_agent_prepares_total", Help: "Planned takeovers prepared here, repeats included, by result and reason of refusal.",
		}, []string{"result", "reason"}),
		reservations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "segue_agent_prepared_ended_total", Help: "Contexts that were kept for a planned takeover and aren't any more, by how that ended.",
		}, []string{"end"}),
		parks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "segue_agent_parks_total", Help: "Runs ordered to be parked here, repeats included, by result and reason of refusal.",
		}, []string{"result", "reason"}),
		protections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "segue_agent_protection_changes_total", Help: "Changes of a session's protection state, by new state and cause.",
		}, []string{"state", "cause"}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "segue_agent_runs_total", Help: "Ended attempts, by result.",
		}, []string{"result"}),
		runSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "segue_agent_run_seconds", Help: "Length of attempts.", Buckets: prometheus.ExponentialBuckets(0.05, 2, 14),
		}),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "segue_agent_lease_renewals_total", Help: "Renewals of runs' leases that came, by result.",
		}, []string{"result"}),
		expired: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "segue_agent_leases_expired_total", Help: "Runs that ended because their lease was over.",
		}),
	}
	m.verdicts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "segue_agent_engine_verdicts_total", Help: "Changes of what is held of the engine, by the new verdict.",
	}, []string{"verdict"})
	m.xids = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "segue_agent_gpu_errors_total", Help: "Errors (XIDs) of the engine's devices that the driver reported, by class.",
	}, []string{"class"})
	for _, c := range []prometheus.Collector{m.verdicts, m.xids, m.receivedBytes, m.takeovers, m.prepares, m.reservations, m.parks, m.protections, m.runs, m.runSeconds, m.renewals, m.expired, &collector{a: a}} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) received(bytes int) { m.receivedBytes.Add(float64(bytes)) }

func (m *metrics) takeover(err error) { count(m.takeovers, err) }
func (m *metrics) prepare(err error)  { count(m.prepares, err) }
func (m *metrics) park(err error)     { count(m.parks, err) }

func count(by *prometheus.CounterVec, err error) {
	if err == nil {
		by.WithLabelValues("ok", "").Inc()
		return
	}
	r, _ := transfer.RefusalOf(statusError(err))
	by.WithLabelValues("refused", reasonName(r.GetReason())).Inc()
}

func (m *metrics) reservation(end string) { m.reservations.WithLabelValues(end).Inc() }

func (m *metrics) protection(p *seguev1.Protection) {
	state := "unprotected"
	if p.GetProtected() {
		state = "protected"
	}
	m.protections.WithLabelValues(state, p.GetCause()).Inc()
}

// renewal counts one that came: granted, or ignored because the run is unknown or over, or the grant too old.
func (m *metrics) renewal(granted bool) {
	result := "ignored"
	if granted {
		result = "granted"
	}
	m.renewals.WithLabelValues(result).Inc()
}

func (m *metrics) lapsed() { m.expired.Inc() }

func (m *metrics) ended(s *session) {
	s.mu.Lock()
	result := s.stateName()
	s.mu.Unlock()
	m.runs.WithLabelValues(result).Inc()
	m.runSeconds.Observe(time.Since(s.began).Seconds())
}

// collector reads gauges and the engine's counters when scraped.
type collector struct{ a *Agent }

// gauge is one value that is read on scrape.
type gauge struct {
	name, help string
	kind       prometheus.ValueType
	read       func(engines.Facts, *Agent) float64
}

func gauges() []gauge {
	const c, g = prometheus.CounterValue, prometheus.GaugeValue
	sum := func(f func(view) float64) func(engines.Facts, *Agent) float64 {
		return func(_ engines.Facts, a *Agent) float64 {
			t := 0.0
			for _, v := range a.views() {
				t += f(v)
			}
			return t
		}
	}
	role := func(r string, f func(view) float64) func(engines.Facts, *Agent) float64 {
		return sum(func(v view) float64 {
			if v.Role != r {
				return 0
			}
			return f(v)
		})
	}
	one := func(view) float64 { return 1 }
	return []gauge{
		{"segue_engine_prefill_tokens_total", "Prompt tokens computed by the engine's present process.", c, func(f engines.Facts, _ *Agent) float64 { return float64(f.PrefillTokens) }},
		{"segue_engine_decode_steps_total", "One-token passes computed by the engine's present process.", c, func(f engines.Facts, _ *Agent) float64 { return float64(f.DecodeSteps) }},
		{"segue_engine_replayed_decode_steps_total", "Passes that recomputed a restored position.", c, func(f engines.Facts, _ *Agent) float64 { return float64(f.ReplayedDecodeSteps) }},
		{"segue_engine_restored_rows_total", "Token rows loaded from snapshots.", c, func(f engines.Facts, _ *Agent) float64 { return float64(f.RestoredRows) }},
		{"segue_engine_restored_bytes_total", "Bytes of rows loaded from snapshots.", c, func(f engines.Facts, _ *Agent) float64 { return float64(f.RestoredBytes) }},
		{"segue_engine_captured_rows_total", "Token rows captured.", c, func(f engines.Facts, _ *Agent) float64 { return float64(f.CapturedRows) }},
		{"segue_engine_running", "Runs active on the engine.", g, func(f engines.Facts, _ *Agent) float64 { return float64(f.Running) }},
		{"segue_agent_contexts_used", "Engine contexts in use.", g, func(_ engines.Facts, a *Agent) float64 { return float64(a.slots.inUse()) }},
		{"segue_agent_snapshot_used_bytes", "Snapshot memory reserved.", g, func(_ engines.Facts, a *Agent) float64 { u, _ := a.budget.Used(); return float64(u) }},
		{"segue_agent_snapshot_limit_bytes", "Snapshot memory configured.", g, func(_ engines.Facts, a *Agent) float64 { _, l := a.budget.Used(); return float64(l) }},
		{"segue_agent_sent_bytes_total", "Bytes of snapshot records sent to holders.", c, func(_ engines.Facts, a *Agent) float64 { return float64(a.pool.SentBytes()) }},
		{"segue_agent_primary_sessions", "Sessions of which this node is the primary.", g, role("primary", one)},
		{"segue_agent_held_sessions", "Sessions held for other nodes.", g, role("holder", one)},
		{"segue_agent_parked_sessions", "Sessions whose state is parked here.", g, role("parked", one)},
		{"segue_agent_prepared_contexts", "Engine contexts kept for planned takeovers; part of segue_agent_contexts_used.", g, func(_ engines.Facts, a *Agent) float64 { return float64(a.prepared.count()) }},
		{"segue_agent_captured_boundaries", "Watermark: boundaries captured, over the live sessions.", g, role("primary", func(v view) float64 { return float64(v.Captured) })},
		{"segue_agent_sent_boundaries", "Watermark: boundaries sent, over the live sessions.", g, role("primary", func(v view) float64 { return float64(v.Sent) })},
		{"segue_agent_committed_boundaries", "Watermark: boundaries committed by holders, over the live sessions.", g, role("primary", func(v view) float64 { return float64(v.Committed) })},
	}
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, g := range gauges() {
		ch <- prometheus.NewDesc(g.name, g.help, nil, nil)
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	var f engines.Facts
	if e, err := c.a.host.Current(); err == nil {
		f, _ = e.Observe(context.Background())
	}
	for _, g := range gauges() {
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(g.name, g.help, nil, nil), g.kind, g.read(f, c.a))
	}
}
