// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of one journal. Labels: result is ok or failed.
type metrics struct {
	reg          prometheus.Registerer
	all          []prometheus.Collector
	commits      *prometheus.CounterVec // result
	seconds      prometheus.Histogram
	records      prometheus.Histogram
	waits        prometheus.Histogram
	unjournalled prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, j *Journal) (*metrics, error) {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "segue", Subsystem: "journal", Name: name, Help: help, Buckets: buckets})
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "segue", Subsystem: "journal", Name: name, Help: help}, f)
	}
	locked := func(f func() float64) func() float64 {
		return func() float64 {
			j.mu.Lock()
			defer j.mu.Unlock()
			return f()
		}
	}
	seconds := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
	m := &metrics{
		reg:     reg,
		commits: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "segue", Subsystem: "journal", Name: "commits_total", Help: "Commits to the storage, by result."}, []string{"result"}),
		seconds: histogram("commit_seconds", "Time of one commit.", seconds),
		records: histogram("batch_records", "Records in one commit.", []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096}),
		waits:   histogram("reserve_wait_seconds", "Time that a stream waited for a reservation of output tokens; covered tokens don't wait and don't count.", seconds),
		unjournalled: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "segue", Subsystem: "journal", Name: "unjournalled_reservations_total",
			Help: "Reservations of output tokens that failed: streams went on without.",
		}),
	}
	m.all = []prometheus.Collector{
		m.commits, m.seconds, m.records, m.waits, m.unjournalled,
		gauge("open_requests", "Requests that have not ended, or whose end isn't durable.", locked(func() float64 { return float64(j.live) })),
		gauge("kept_requests", "Finished requests that are kept.", locked(func() float64 { return float64(j.finished.len()) })),
		gauge("kept_keys", "Idempotency keys that are kept.", locked(func() float64 { return float64(len(j.keys)) })),
		gauge("kept_actions", "Actions in the ledger.", locked(func() float64 { return float64(len(j.actions)) })),
		gauge("bytes", "Size of the storage.", func() float64 { return float64(j.store.Size()) }),
		gauge("unhealthy", "1 while records don't become durable in time.", locked(func() float64 {
			if j.healthy() != nil {
				return 1
			}
			return 0
		})),
	}
	for _, result := range []string{"ok", "failed"} {
		m.commits.WithLabelValues(result)
	}
	if reg == nil {
		return m, nil
	}
	for i, c := range m.all {
		if err := reg.Register(c); err != nil {
			m.all = m.all[:i]
			m.unregister()
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) unregister() {
	if m.reg == nil {
		return
	}
	for _, c := range m.all {
		m.reg.Unregister(c)
	}
}

func (m *metrics) commit(records int, took time.Duration, err error) {
	m.seconds.Observe(took.Seconds())
	m.records.Observe(float64(records))
	if err != nil {
		m.commits.WithLabelValues("failed").Inc()
	} else {
		m.commits.WithLabelValues("ok").Inc()
	}
}
