// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"slices"
	"strings"
	"time"

	"github.com/seguekv/segue/internal/sim"
)

// verdictPoints are one for each part of a session's life: prefill, decode, a takeover, a planned one, the finish.
var verdictPoints = []string{"between-chunks", "after-capture", "takeover-reemitted", "takeover-new", "planned-prepared", "planned-resumed", "after-last-token"}

// verdictFaults are what an agent is made to hold of its engine, at once or, of a hang, after 300 ms. The last two change
// nothing.
var verdictFaults = []cell{
	{fault: "hang", target: "engine"}, {fault: "evacuate", target: "device"}, {fault: "condemn", target: "device"},
	{fault: "taint", target: "device"}, {fault: "degrade", target: "device"}, {fault: "silence", target: "device"},
}

// sickFor is how long a device is ill, at least until the answer's end.
const sickFor = 4 * time.Second

func verdictCells() []cell {
	var out []cell
	for _, point := range verdictPoints {
		for _, protection := range []string{"off", "async", "sync"} {
			for _, c := range verdictFaults {
				out = append(out, cell{point, c.fault, protection, c.target})
			}
		}
	}
	return out
}

// temper is how soon the scene's agents call an engine hung.
func (s *scene) temper() sim.Temper {
	if s.ofVerdict() {
		return sim.Quick
	}
	return ""
}

func (s *scene) ofVerdict() bool {
	return slices.ContainsFunc(verdictFaults, func(c cell) bool { return c.fault == s.fault && c.target == s.target })
}

// sicken begins what an engine or device is to be ill with, and returns how it ends.
func (s *scene) sicken(n *sim.Node) (begin func() bool, end func() error) {
	mend := func() error { n.Device.Mend(); return nil }
	switch s.fault {
	case "hang":
		return n.Engine.Freeze, func() error { n.Engine.Resume(); return nil }
	case "evacuate":
		return func() bool { return n.Device.Pend(true) }, mend
	case "condemn":
		return n.Device.Condemn, mend
	case "taint":
		return func() bool {
				told := n.Device.Lose()
				return n.Engine.Spoil(s.request().Label) && told
			}, func() error {
				s.happened(n.Engine.Crash())
				n.Device.Mend()
				return n.Engine.Start()
			}
	case "degrade":
		return func() bool {
			for range 6 {
				n.Device.Heat(true)
			}
			v, _ := s.w.Router.Verdict(n.ID)
			for range 500 {
				if v == "degraded" {
					break
				}
				time.Sleep(100 * time.Microsecond) // virtual: the report is on its way
				v, _ = s.w.Router.Verdict(n.ID)
			}
			return v == "degraded"
		}, mend
	case "silence":
		return func() bool { n.Device.Silence(true); return n.Device.Look() }, mend
	}
	return nil, nil
}

// causes names why attempts ended, of an answer in a verdict's cell.
func (s *scene) causes(a *sim.Answer) string {
	info := s.w.Router.Session(a.Session)
	if !s.ofVerdict() || info == nil {
		return ""
	}
	var b strings.Builder
	for _, x := range info.Attempts {
		if x.Cause != "" {
			b.WriteString("+" + string(x.Cause))
		}
	}
	return b.String()
}
