// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/restart"
	"github.com/seguekv/segue/health/watch"
)

// series are a registry's values, by "name" or "name{value of the label that isn't target}".
func series(t *testing.T, m *healthMetrics) map[string]float64 {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, x := range f.GetMetric() {
			name, label := strings.TrimPrefix(f.GetName(), "segue_health_"), ""
			for _, l := range x.GetLabel() {
				if l.GetName() != "target" {
					label = "{" + l.GetValue() + "}"
				}
			}
			out[name+label] = x.GetGauge().GetValue() + x.GetCounter().GetValue()
		}
	}
	return out
}

func TestHealthMetrics_AreCleanAndWhole(t *testing.T) {
	m, err := newHealthMetrics([]string{"http://a:1", "http://b:1"}, true)
	if err != nil {
		t.Fatal(err)
	}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("got %v, %v", problems, err)
	}
	// Every series is there from the beginning.
	want := map[string]int{
		"verdict": len(health.Verdicts()), "reads_total": 7, "silence_seconds": 1, "silence_limit_seconds": 1, "in_flight_requests": 1,
		"probes_total": 1, "new_engines_total": 1, "restarts_total": 1, "restart_owner": 1, "restart_stopped": 1,
	}
	for _, f := range families {
		name := strings.TrimPrefix(f.GetName(), "segue_health_")
		if got := len(f.GetMetric()); got != 2*want[name] {
			t.Errorf("%s: %d series, want %d", name, got, 2*want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

// The exporter says what the watcher saw.
func TestHealthMetrics_Values(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const url = "http://s0:1"
		m, err := newHealthMetrics([]string{url}, false)
		if err != nil {
			t.Fatal(err)
		}
		s := stuck()
		s.read = func(n int) health.Reading {
			if n < 4 {
				return health.Reading{Steps: true}
			}
			return stuck().read(n)
		}
		f := &healthFlags{watch: true, interval: time.Second, hangAfter: 2 * time.Second, readTimeout: time.Second, idleLimit: 1500 * time.Millisecond, startBudget: time.Minute, probeTimeout: time.Second}
		w, err := watch.New(f.watcher(m.count(healthTarget{url: url, source: s, prober: s}), func(a health.Assessment) { m.assessed(url, a) }))
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = w.Run(t.Context()) }() // ends with the test
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		got := series(t, m)
		for name, want := range map[string]float64{
			"in_flight_requests": 2, "probes_total": 1, "silence_seconds": 6, "silence_limit_seconds": 2, "reads_total{answered}": 11, "reads_total{refused}": 0,
		} {
			if v, ok := got[name]; !ok || v != want {
				t.Errorf("%s is %v, want %v", name, v, want)
			}
		}
		for _, v := range health.Verdicts() {
			want := map[bool]float64{true: 1}[v == health.Hung]
			if x, ok := got["verdict{"+v.String()+"}"]; !ok || x != want {
				t.Errorf("%v is %v, want %v", v, x, want)
			}
		}
	})
}

func TestHealthMetrics_Restarts(t *testing.T) {
	m, err := newHealthMetrics([]string{"http://a:1"}, true)
	if err != nil {
		t.Fatal(err)
	}
	m.standing("http://a:1", restart.Status{Owner: true, Stopped: true})
	if got := series(t, m); got["restart_owner"] != 1 || got["restart_stopped"] != 1 {
		t.Errorf("got %v", got)
	}
	m.standing("http://a:1", restart.Status{})
	if got := series(t, m); got["restart_owner"] != 0 || got["restart_stopped"] != 0 {
		t.Errorf("got %v", got)
	}
}

func TestHealthOutput_ServersTextCantControlTheTerminal(t *testing.T) {
	var b bytes.Buffer
	out := &healthOutput{w: &b}
	l := newHealthLine(healthTarget{url: "http://a:1", kind: func() string { return "openai" }}, health.Assessment{Detail: "a\x1b[2Jb\nc"})
	if err := out.verdict(l, false); err != nil {
		t.Fatal(err)
	}
	if strings.Count(b.String(), "\n") != 1 || strings.Contains(b.String(), "\x1b") {
		t.Errorf("got %q", b.String())
	}
}
