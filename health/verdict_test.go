// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/health"
)

func TestVerdict_Text(t *testing.T) {
	list := health.Verdicts()
	if list[0] != health.Unknown || len(list) != int(health.Dead)+1 {
		t.Fatalf("%v", list)
	}
	for _, v := range list {
		text, err := v.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var back health.Verdict
		if err := back.UnmarshalText(text); err != nil || back != v {
			t.Errorf("%s: %v, %v", text, back, err)
		}
		if v.Lost() && v.Healthy() {
			t.Errorf("%v is lost and healthy", v)
		}
	}
	var v health.Verdict
	if err := v.UnmarshalText([]byte("fine")); err == nil || !strings.Contains(err.Error(), `"fine"`) {
		t.Errorf("%v", err)
	}
	if health.Verdict(99).String() != "Verdict(99)" || health.Outcome(99).String() != "invalid" {
		t.Error("unknown values have no name")
	}
	if health.Unknown.Healthy() || health.Unknown.Lost() {
		t.Error("unknown means something")
	}
}

// The worse verdict of engine and device counts; a device that is well or unknown changes nothing.
func TestCombine_Verdicts(t *testing.T) {
	for _, c := range []struct {
		engine, device, want health.Verdict
		working              bool
	}{
		{health.Busy, health.Unknown, health.Busy, false},
		{health.Unknown, health.Unknown, health.Unknown, false},
		{health.Busy, health.Watch, health.Watch, true},
		{health.Unknown, health.Watch, health.Unknown, false},
		{health.Starting, health.Watch, health.Starting, false},
		{health.Degraded, health.Watch, health.Degraded, false},
		{health.Busy, health.Degraded, health.Degraded, true},
		{health.Busy, health.Evacuate, health.Evacuate, true},
		{health.Idle, health.Dead, health.Dead, false},
		{health.Busy, health.Dead, health.Dead, true},
		{health.Unknown, health.Dead, health.Dead, false},
		{health.Hung, health.Evacuate, health.Hung, false},
		{health.Dead, health.Evacuate, health.Dead, false},
		{health.CutOff, health.Dead, health.Dead, false},
	} {
		engine := health.Assessment{Verdict: c.engine, Reasons: []health.Reason{"engine"}, Probe: true}
		device := health.Assessment{Verdict: c.device, Reasons: []health.Reason{"device"}, Detail: "gpu 0"}
		got := health.Combine(engine, device)
		if got.Verdict != c.want || got.Working != c.working || !got.Probe {
			t.Errorf("%v on %v: %v, working %t", c.engine, c.device, got.Verdict, got.Working)
		}
	}
	engine := health.Assessment{Verdict: health.Dead, Reasons: make([]health.Reason, 1, 5)}
	got := health.Combine(engine, health.Assessment{Verdict: health.Dead, Reasons: []health.Reason{"device"}})
	if !slices.Equal(got.Reasons, []health.Reason{"", "device"}) || engine.Reasons[:2][1] != "" {
		t.Errorf("%q, and %q", got.Reasons, engine.Reasons[:2])
	}
}

func TestConfig_NamesWhatCannotWork(t *testing.T) {
	if err := health.Defaults().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*health.Config){
		"interval":      func(c *health.Config) { c.Interval = 0 },
		"read_timeout":  func(c *health.Config) { c.ReadTimeout = -time.Second },
		"slack":         func(c *health.Config) { c.Slack = 0 },
		"blind_prefill": func(c *health.Config) { c.BlindPrefill = 25 * time.Hour },
		"one pause":     func(c *health.Config) { c.Pauses = 1 },
		"failed probe":  func(c *health.Config) { c.Probes = 1 },
		"factor":        func(c *health.Config) { c.Factor = 0.5 },
		"ceiling":       func(c *health.Config) { c.Ceiling = time.Second },
		"below":         func(c *health.Config) { c.Interval = 3 * time.Second },
	} {
		c := health.Defaults()
		change(&c)
		if _, err := health.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
