// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/seguekv/segue/health"
)

// TestDetector_Transcripts runs the scripts of testdata, one file for each row of the progress table and some for what
// the rows have in common. The commands are
//
//	engine [KEY=VALUE ...]            changes what the next reads find, until it is changed again:
//	    is=answered|timed_out|refused|gone|cut|failed|opaque, inc=NAME, alive, proxy, loading, sleeping, steps = true|false,
//	    flight=N (requests on the engine), ours=N, wait=N, prefill=N, steps_at=N, gen_at=N
//	read [times=N] [step=N] [emit=N] [deliver=N] [probe=passed|failed|dropped] [took=T] [after=T]
//	    reads; before each of the reads the engine makes steps, emits tokens, delivers tokens to us
//	demand                            a sign that the process may have lost its device
//
// A read prints its time and assessment, unless the same was printed for the read before. Use -rewrite to update the files.
func TestDetector_Transcripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		p := &play{scene: newScene(t)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "engine":
				p.change(t, d)
				return "ok"
			case "read":
				return p.reads(t, d)
			case "demand":
				p.d.Demand(p.now)
				return "ok"
			}
			d.Fatalf(t, "unknown command %q", d.Cmd)
			return ""
		})
	})
}

type play struct{ *scene }

func (p *play) change(t *testing.T, d *datadriven.TestData) {
	r := &p.next
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "is":
			r.Outcome = outcome(t, d, arg.Vals[0])
		case "inc":
			r.Incarnation = ""
			if len(arg.Vals) > 0 {
				r.Incarnation = arg.Vals[0]
			}
		case "alive":
			arg.Scan(t, 0, &r.Alive)
		case "proxy":
			arg.Scan(t, 0, &r.Proxy)
		case "loading":
			arg.Scan(t, 0, &r.Loading)
		case "sleeping":
			arg.Scan(t, 0, &r.Sleeping)
		case "steps":
			arg.Scan(t, 0, &r.Steps)
		case "flight":
			arg.Scan(t, 0, &r.InFlight)
		case "ours":
			arg.Scan(t, 0, &r.Ours.InFlight)
		case "wait":
			arg.Scan(t, 0, &r.Ours.Waiting)
		case "prefill":
			arg.Scan(t, 0, &r.Ours.Prefilling)
		case "steps_at", "gen_at":
			var n int
			arg.Scan(t, 0, &n)
			if arg.Key == "gen_at" {
				p.gen = float64(n)
			} else {
				p.steps = float64(n)
			}
		default:
			d.Fatalf(t, "unknown key %q", arg.Key)
		}
	}
}

func (p *play) reads(t *testing.T, d *datadriven.TestData) string {
	times, step, emit, deliver := 1, 0, 0, 0
	var took, after, probe string
	for key, to := range map[string]any{"times": &times, "step": &step, "emit": &emit, "deliver": &deliver, "took": &took, "after": &after, "probe": &probe} {
		d.MaybeScanArgs(t, key, to)
	}
	if took != "" {
		defer func(was time.Duration) { p.took = was }(p.took)
		p.took = duration(t, d, took)
	}
	if after != "" {
		p.now = p.now.Add(duration(t, d, after) - p.cfg.Interval)
	}
	switch probe {
	case "passed":
		p.next.Probe = health.ProbePassed
	case "failed":
		p.next.Probe = health.ProbeFailed
	case "dropped":
		p.next.Probe = health.ProbeDropped
	}
	var out strings.Builder
	last := ""
	for range times {
		p.steps += float64(step)
		p.gen += float64(emit)
		p.next.Ours.Delivered += uint64(deliver)
		if text := line(p.read()); text != last {
			fmt.Fprintf(&out, "%8.3fs %s\n", p.now.Sub(epoch).Seconds(), text)
			last = text
		}
	}
	return out.String()
}

func line(a health.Assessment) string {
	words := []string{a.Verdict.String()}
	for _, r := range a.Reasons {
		words = append(words, string(r))
	}
	if a.InFlight > 0 {
		words = append(words, fmt.Sprintf("in_flight=%d", a.InFlight))
	}
	for _, flag := range []struct {
		set  bool
		word string
	}{{a.NewEngine, "NEW_ENGINE"}, {a.CountersStuck, "COUNTERS_STUCK"}, {a.Probe, "PROBE"}, {a.DropProbe, "DROP_PROBE"}} {
		if flag.set {
			words = append(words, flag.word)
		}
	}
	if a.Verdict == health.Hung && a.InFlight > 0 && a.Limit > 0 {
		words = append(words, fmt.Sprintf("limit=%v", a.Limit))
	}
	return strings.Join(words, " ")
}

func outcome(t *testing.T, d *datadriven.TestData, name string) health.Outcome {
	for o := health.Answered; o <= health.Opaque; o++ {
		if o.String() == name {
			return o
		}
	}
	d.Fatalf(t, "unknown outcome %q", name)
	return 0
}

func duration(t *testing.T, d *datadriven.TestData, text string) time.Duration {
	v, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}
