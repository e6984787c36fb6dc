// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seguekv/segue/router/fleet"
)

// Results of sessions.
const (
	resultOK          = "ok"
	resultInterrupted = "interrupted" // error event after content
	resultFailed      = "failed"      // error before content
	resultRejected    = "rejected"    // the request was wrong, or nothing had room for it
	resultClientGone  = "client_gone"
)

// Results of takeovers.
const (
	takeoverOK      = "ok"
	takeoverRefused = "refused" // the holder said no
	takeoverFailed  = "failed"  // the holder was asked and nothing came back
	takeoverNone    = "none"    // a protected session had no holder to ask
)

// Results of renewals.
const (
	renewalOK     = "ok"
	renewalFailed = "failed"
)

// metrics of one router. Labels: result as above; reason is a Cause; node is an agent id of the configuration.
type metrics struct {
	sessions  *prometheus.CounterVec // result
	takeovers *prometheus.CounterVec // result, reason
	retries   *prometheus.CounterVec // reason
	failures  *prometheus.CounterVec // class
	unretried *prometheus.CounterVec // why
	moves     *prometheus.CounterVec // result
	verdicts  *prometheus.CounterVec // kind, verdict
	pairings  *prometheus.CounterVec // result: ok or failed
	changes   *prometheus.CounterVec // state: protected or unprotected
	renewals  *prometheus.CounterVec // result: ok or failed
	waits     *prometheus.CounterVec // result: acknowledged or expired
	delivered prometheus.Counter
	pause     prometheus.Histogram
	detection prometheus.Histogram
	firstText prometheus.Histogram
}

// seconds covers a step of a fast engine to a client's patience.
var seconds = []float64{.005, .01, .025, .05, .1, .15, .2, .25, .35, .5, .75, 1, 1.5, 2, 3, 5, 10, 30}

func newMetrics(reg prometheus.Registerer, f *fleet.Fleet, g *registry) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "segue", Subsystem: "router", Name: name, Help: help}, labels)
	}
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "segue", Subsystem: "router", Name: name, Help: help, Buckets: seconds})
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "segue", Subsystem: "router", Name: name, Help: help}, f)
	}
	m := &metrics{
		sessions:  counter("sessions_total", "Sessions that ended, by result.", "result"),
		takeovers: counter("takeovers_total", "Takeovers asked for, by result. The reason is the interruption's cause, for refused ones the refusal's.", "result", "reason"),
		retries:   counter("retries_total", "Runs from the prompt after a failed attempt, by the cause of its end.", "reason"),
		failures:  counter("failures_total", "Attempts that ended without a finish, by the class of failure.", "class"),
		unretried: counter("retries_refused_total", "Failed attempts that were neither continued nor repeated, by what forbade it.", "why"),
		moves:     counter("moves_total", "Planned moves of sessions, by result.", "result"),
		verdicts:  counter("engine_verdicts_total", "Changes of what is held of replicas' engines, by the new verdict.", "kind", "verdict"),
		pairings:  counter("pairings_total", "New holders asked for while a session runs, by result.", "result"),
		changes:   counter("protection_changes_total", "Changes of sessions' protection state, as announced by their primaries.", "state"),
		renewals:  counter("lease_renewals_total", "Calls that renew the leases of one agent's runs, by result.", "result"),
		waits:     counter("source_waits_total", "Old runs that were waited for, by what told their end (uncertain_source: wait).", "result"),
		delivered: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "segue", Subsystem: "router", Name: "delivered_tokens_total", Help: "Output tokens whose whole text was handed to a client's connection."}),
		pause:     histogram("takeover_pause_seconds", "From the last token of the old node to the first token of the new one, for takeovers that resumed."),
		detection: histogram("detection_seconds", "From the last sign of life of a failed attempt to the decision to fence it."),
		firstText: histogram("first_text_seconds", "From the arrival of a request to its first text."),
	}
	all := []prometheus.Collector{
		m.sessions, m.takeovers, m.retries, m.failures, m.unretried, m.moves, m.verdicts, m.pairings, m.changes, m.renewals, m.waits, m.delivered, m.pause, m.detection, m.firstText,
		gauge("active_sessions", "Sessions that have not ended.", func() float64 { return float64(g.live()) }),
		gauge("queued_sessions", "Sessions that wait for a context.", func() float64 { return float64(f.Queued()) }),
		gauge("leases", "Leases that are being renewed.", func() float64 { return float64(f.Leased()) }),
		gauge("ready_agents", "Agents that are ready.", func() float64 { return float64(f.Ready()) }),
		newWatermarks(g),
	}
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) renewed(err error) {
	result := renewalOK
	if err != nil {
		result = renewalFailed
	}
	m.renewals.WithLabelValues(result).Inc()
}

func (m *metrics) observe(h prometheus.Histogram, from, to time.Time) {
	if !from.IsZero() && !to.Before(from) {
		h.Observe(to.Sub(from).Seconds())
	}
}

// watermarks sums the watermarks of live sessions that want protection per pair of nodes, so that lags are
// subtractions.
type watermarks struct {
	registry                             *registry
	captured, sent, committed, delivered *prometheus.Desc
}

// pair labels a sum; both are ids of configured agents, holder is empty for sessions without one.
type pair struct{ primary, holder string }

func newWatermarks(g *registry) *watermarks {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("segue_router_"+name, help+" Sum over live sessions that want protection.", []string{"primary", "holder"}, nil)
	}
	return &watermarks{
		registry:  g,
		captured:  desc("captured_boundaries", "Boundaries captured from the engine, as last reported by the primary."),
		sent:      desc("sent_boundaries", "Boundaries put on the wire to the holder, as last reported by the primary."),
		committed: desc("committed_boundaries", "Boundaries complete on the holder, as last reported by the primary."),
		delivered: desc("delivered_boundaries", "Boundaries whose token the gates have accepted for delivery."),
	}
}

func (w *watermarks) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{w.captured, w.sent, w.committed, w.delivered} {
		ch <- d
	}
}

func (w *watermarks) Collect(ch chan<- prometheus.Metric) {
	type sums struct{ captured, sent, committed, delivered int }
	pairs := map[pair]*sums{}
	for _, i := range w.registry.list() {
		if i.EndedAt != "" || i.Primary == "" || i.Protection == ProtectionOff {
			continue
		}
		p := pair{i.Primary, i.Holder}
		s := pairs[p]
		if s == nil {
			s = &sums{}
			pairs[p] = s
		}
		s.captured += i.Watermarks.Captured
		s.sent += i.Watermarks.Sent
		s.committed += i.Watermarks.Committed
		s.delivered += i.AcceptedTokens
	}
	for p, s := range pairs {
		send := func(d *prometheus.Desc, v int) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), p.primary, p.holder)
		}
		send(w.captured, s.captured)
		send(w.sent, s.sent)
		send(w.committed, s.committed)
		send(w.delivered, s.delivered)
	}
}
