// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/restart"
	"github.com/seguekv/segue/health/watch"
)

// healthMetrics are the exporter's. The label target is a URL of --target.
type healthMetrics struct {
	registry *prometheus.Registry
	verdict  *prometheus.GaugeVec   // target, verdict
	silence  *prometheus.GaugeVec   // target
	limit    *prometheus.GaugeVec   // target
	inFlight *prometheus.GaugeVec   // target
	probes   *prometheus.CounterVec // target
	reads    *prometheus.CounterVec // target, outcome
	engines  *prometheus.CounterVec // target
	restarts *prometheus.CounterVec // target
	owner    *prometheus.GaugeVec   // target
	stopped  *prometheus.GaugeVec   // target
}

func newHealthMetrics(targets []string, restarts bool) (*healthMetrics, error) {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "segue", Subsystem: "health", Name: name, Help: help}, append([]string{"target"}, labels...))
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "segue", Subsystem: "health", Name: name, Help: help}, append([]string{"target"}, labels...))
	}
	m := &healthMetrics{
		registry: prometheus.NewRegistry(),
		verdict:  gauge("verdict", "1 for the verdict that holds, 0 for the others.", "verdict"),
		silence:  gauge("silence_seconds", "How long nothing has moved while something was in flight."),
		limit:    gauge("silence_limit_seconds", "How long nothing may move before the server counts as hung; 0 while that isn't judged."),
		inFlight: gauge("in_flight_requests", "Requests that the server has, running and waiting."),
		probes:   counter("probes_total", "Requests for one token that were sent."),
		reads:    counter("reads_total", "Reads of the server, by outcome.", "outcome"),
		engines:  counter("new_engines_total", "Times that another process than before answered."),
		restarts: counter("restarts_total", "Times that the command of --on-hung was run by this process."),
		owner:    gauge("restart_owner", "1 if this process restarts the server, 0 if another does."),
		stopped:  gauge("restart_stopped", "1 after the maximum of restarts: there are none any more."),
	}
	all := []prometheus.Collector{m.verdict, m.silence, m.limit, m.inFlight, m.probes, m.reads, m.engines, m.restarts}
	if restarts {
		all = append(all, m.owner, m.stopped)
	}
	for _, c := range all {
		if err := m.registry.Register(c); err != nil {
			return nil, err
		}
	}
	for _, t := range targets {
		m.assessed(t, health.Assessment{})
		m.probes.WithLabelValues(t)
		m.engines.WithLabelValues(t)
		m.restarts.WithLabelValues(t)
		for o := health.Answered; o <= health.Opaque; o++ {
			m.reads.WithLabelValues(t, o.String())
		}
		m.owner.WithLabelValues(t)
		m.stopped.WithLabelValues(t)
	}
	return m, nil
}

// assessed takes in a verdict.
func (m *healthMetrics) assessed(target string, a health.Assessment) {
	for _, v := range health.Verdicts() {
		is := 0.0
		if v == a.Verdict {
			is = 1
		}
		m.verdict.WithLabelValues(target, v.String()).Set(is)
	}
	m.silence.WithLabelValues(target).Set(a.Silence.Seconds())
	m.limit.WithLabelValues(target).Set(a.Limit.Seconds())
	m.inFlight.WithLabelValues(target).Set(float64(a.InFlight))
	if a.NewEngine {
		m.engines.WithLabelValues(target).Inc()
	}
}

// standing takes in where restarts stand.
func (m *healthMetrics) standing(target string, s restart.Status) {
	number := map[bool]float64{true: 1}
	m.owner.WithLabelValues(target).Set(number[s.Owner])
	m.stopped.WithLabelValues(target).Set(number[s.Stopped])
}

// count returns a target whose reads and probes are counted.
func (m *healthMetrics) count(t healthTarget) healthTarget {
	t.source = countedSource{t.source, t.url, m}
	if t.prober != nil {
		t.prober = countedProber{t.prober, m.probes.WithLabelValues(t.url)}
	}
	return t
}

type countedSource struct {
	watch.Source
	target string
	m      *healthMetrics
}

func (s countedSource) Read(ctx context.Context) health.Reading {
	r := s.Source.Read(ctx)
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		s.m.reads.WithLabelValues(s.target, r.Outcome.String()).Inc()
	}
	return r
}

type countedProber struct {
	watch.Prober
	sent prometheus.Counter
}

func (p countedProber) Probe(ctx context.Context) health.Probe {
	p.sent.Inc()
	return p.Prober.Probe(ctx)
}

// serve answers scrapes until ctx ends.
func (m *healthMetrics) serve(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
