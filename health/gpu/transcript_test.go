// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package gpu_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/seguekv/segue/health/gpu"
)

// A transcript is the lines of the program as they come, a second apart, and what they mean for an engine.
func TestJudge_Transcripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		var j *gpu.Judge
		start := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
		now := start
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "engine":
				cfg := gpu.Config{Table: gpu.DefaultTable()}
				for _, arg := range d.CmdArgs {
					cfg.Devices = append(cfg.Devices, arg.Key)
				}
				var err error
				if j, err = gpu.NewJudge(cfg); err != nil {
					return err.Error()
				}
				return "ok"
			case "lines":
				var out strings.Builder
				for text := range strings.SplitSeq(d.Input, "\n") {
					now = now.Add(time.Second)
					r := gpu.Report{At: now}
					if why, ok := strings.CutPrefix(text, "nothing: "); ok {
						r.Unavailable = why
					} else {
						l, err := gpu.Parse([]byte(text))
						if err != nil {
							fmt.Fprintln(&out, err)
							continue
						}
						if l.Sample != nil {
							if err := l.Sample.Rebase(now, now.Sub(start).Nanoseconds()); err != nil {
								fmt.Fprintln(&out, err)
								continue
							}
						}
						r.Hello, r.Sample = l.Hello, l.Sample
					}
					fmt.Fprintln(&out, tell(j.Take(r), start))
				}
				return out.String()
			case "started":
				j.Started(now)
				return "ok"
			case "clear":
				return fmt.Sprint(j.Clear(""))
			}
			return "what is " + d.Cmd + "?"
		})
	})
}

// tell writes a result, with times since the start.
func tell(r gpu.Result, start time.Time) string {
	var reasons []string
	for _, why := range r.Reasons {
		reasons = append(reasons, string(why))
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%v %s", r.Verdict, strings.Join(reasons, ","))
	if r.Detail != "" {
		fmt.Fprintf(&out, " (%s)", r.Detail)
	}
	for _, taint := range r.Taints {
		fmt.Fprintf(&out, " tainted after %v, seen at %v", taint.Clean.Sub(start), taint.Seen.Sub(start))
	}
	if !r.Demand.IsZero() {
		fmt.Fprintf(&out, " progress demanded at %v", r.Demand.Sub(start))
	}
	if len(r.Cleared) > 0 {
		fmt.Fprintf(&out, " cleared %v", r.Cleared)
	}
	return out.String()
}
