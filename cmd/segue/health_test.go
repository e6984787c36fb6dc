// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/health"
)

// played is a server that isn't one: a source and prober by script.
type played struct {
	read   func(n int) health.Reading // n counts reads from 0
	answer func(ctx context.Context) health.Probe
	reads  int
	probes atomic.Int32
}

func (p *played) Read(context.Context) health.Reading {
	p.reads++
	return p.read(p.reads - 1)
}

func (p *played) Probe(ctx context.Context) health.Probe {
	p.probes.Add(1)
	if p.answer == nil {
		return health.ProbePassed
	}
	return p.answer(ctx)
}

// always is one that answers each read the same.
func always(r health.Reading) *played { return &played{read: func(int) health.Reading { return r }} }

// inFlight is one with work whose counter is at v(n).
func inFlight(v func(n int) float64) *played {
	return &played{read: func(n int) health.Reading {
		return health.Reading{Steps: true, InFlight: 2, Counters: []health.Counter{{Name: "steps", Value: v(n), Tokens: true}}}
	}}
}

func busy() *played  { return inFlight(func(n int) float64 { return float64(n) }) }
func stuck() *played { return inFlight(func(int) float64 { return 7 }) }

func mute(ctx context.Context) health.Probe {
	<-ctx.Done()
	if errors.Is(ctx.Err(), context.Canceled) {
		return health.ProbeDropped
	}
	return health.ProbeFailed
}

// healthRun is a run of the command against played servers, called http://s0:1, http://s1:1 …
func healthRun(ctx context.Context, servers []*played, args ...string) (stdout string, err error) {
	var urls []string
	for i := range servers {
		urls = append(urls, fmt.Sprintf("http://s%d:1", i))
	}
	f := &healthFlags{open: func(_ *healthFlags, target, _ string) (healthTarget, error) {
		s := servers[slices.Index(urls, target)]
		return healthTarget{url: target, source: s, prober: s, kind: func() string { return "played" }}, nil
	}}
	c := f.command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetArgs(append([]string{"--target", strings.Join(urls, ",")}, args...))
	err = c.ExecuteContext(ctx)
	return out.String(), err
}

func code(err error) int {
	if err == nil {
		return exitOK
	}
	return exitCode(context.Background(), err)
}

func TestHealth_OnceJudges(t *testing.T) {
	idle := health.Reading{Steps: true}
	silent := always(idle)
	silent.answer = mute
	blind := always(health.Reading{Outcome: health.Opaque})
	blind.answer = mute
	blind2 := always(health.Reading{Outcome: health.Opaque})
	blind2.answer = mute
	var moved atomic.Int64 // by the probe
	idling := &played{read: func(int) health.Reading {
		return health.Reading{Steps: true, Counters: []health.Counter{{Name: "steps", Value: float64(moved.Load()), Tokens: true}}}
	}}
	idling.answer = func(context.Context) health.Probe {
		moved.Add(1)
		return health.ProbePassed
	}
	full := always(idle)
	full.answer = func(context.Context) health.Probe { return health.ProbeDropped }
	for _, c := range []struct {
		name   string
		server *played
		args   []string
		want   string
		code   int
		within time.Duration
		probes int32
	}{
		{"busy", busy(), nil, "busy (progress)", 0, time.Second, 0},
		{"idle", always(idle), nil, "idle (nothing_runs, probe_passed)", 0, time.Second, 1},
		{"idle, and moves for the probe", idling, nil, "idle (nothing_runs, probe_passed)", 0, time.Second, 1},
		{"idle, not to be probed", always(idle), []string{"--no-probe"}, "idle (nothing_runs)", 0, time.Second, 0},
		{"idle, no room for a probe", full, nil, "idle (nothing_runs)", 0, time.Second, 1},
		{"idle, no answer", silent, nil, "hung (nothing_runs, probe_failed)", 4, 25 * time.Second, 2},
		{"nothing known, no answer", blind, []string{"--timeout", "15s"}, "unknown (no_metrics)", 3, 16 * time.Second, 2},
		{"nothing known, no answer for long", blind2, nil, "unknown (no_metrics, probe_failed)", 3, 41 * time.Second, 4},
		{"no metrics", always(health.Reading{Outcome: health.Opaque}), nil, "reachable (no_metrics, probe_passed)", 0, time.Second, 1},
		{"proxy", always(health.Reading{Outcome: health.Opaque, Proxy: true}), nil, "reachable (proxy)", 0, time.Second, 0},
		{"sleeping", always(health.Reading{Sleeping: true}), nil, "sleeping (sleeping)", 0, time.Second, 0},
		{"loading", always(health.Reading{Loading: true}), nil, "starting (loading)", 3, time.Second, 0},
		{"hung", stuck(), nil, "hung (no_progress)", 4, 12 * time.Second, 0},
		{"hung by a short limit", stuck(), []string{"--hang-after", "1s"}, "hung (no_progress)", 4, 2 * time.Second, 0},
		{"quiet when time is up", stuck(), []string{"--timeout", "5s"}, "unknown (quiet)", 3, 6 * time.Second, 0},
		{"refused", always(health.Reading{Outcome: health.Refused}), nil, "dead (refused)", 4, time.Second, 0},
		{"cut", always(health.Reading{Outcome: health.Cut}), nil, "cut_off (connection_lost)", 4, time.Second, 0},
		{"no answer", always(health.Reading{Outcome: health.TimedOut}), nil, "cut_off (no_answer)", 4, 12 * time.Second, 0},
		{"only errors", always(health.Reading{Outcome: health.Failed}), nil, "starting (loading, only_errors)", 3, 41 * time.Second, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				out, err := healthRun(t.Context(), []*played{c.server}, c.args...)
				if !strings.HasPrefix(out, "http://s0:1  "+c.want+"  kind=played") || strings.Count(out, "\n") != 1 {
					t.Errorf("it printed %q, want %q", out, c.want)
				}
				if got := code(err); got != c.code {
					t.Errorf("exit code %d (%v), want %d", got, err, c.code)
				}
				if took := time.Since(began); took > c.within {
					t.Errorf("it took %v, want at most %v", took, c.within)
				}
				if n := c.server.probes.Load(); n != c.probes {
					t.Errorf("%d probes, want %d", n, c.probes)
				}
			})
		})
	}
}

func TestHealth_OnceWorstOfTargetsInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, err := healthRun(t.Context(), []*played{stuck(), busy(), always(health.Reading{Loading: true})}, "--json")
		var lines []healthLine
		for l := range strings.SplitSeq(strings.TrimSpace(out), "\n") {
			var x healthLine
			if err := json.Unmarshal([]byte(l), &x); err != nil {
				t.Fatalf("%v: %s", err, l)
			}
			if x.Next == "" || x.Time.IsZero() || x.Kind != "played" || len(x.Reasons) == 0 {
				t.Errorf("not all is said: %s", l)
			}
			lines = append(lines, x)
		}
		for i, want := range []health.Verdict{health.Hung, health.Busy, health.Starting} {
			if len(lines) != 3 || lines[i].Verdict != want || lines[i].Target != fmt.Sprintf("http://s%d:1", i) || lines[i].ExitCode != healthCode(want) {
				t.Fatalf("line %d isn't that of %v:\n%s", i, want, out)
			}
		}
		if lines[0].Silence < lookFloor.Seconds() || lines[0].Limit != lookFloor.Seconds() || lines[0].InFlight != 2 {
			t.Errorf("got %+v", lines[0])
		}
		if code(err) != exitUnreachable || !strings.Contains(err.Error(), "2 of 3") {
			t.Errorf("got %v", err)
		}
	})
}

func TestHealth_OnceIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("received interrupt")
		time.AfterFunc(time.Second, func() { cancel(gone) })
		out, err := healthRun(ctx, []*played{stuck()})
		if !errors.Is(err, gone) || out != "" || exitCode(ctx, err) != exitInterrupted {
			t.Errorf("got %q, %v", out, err)
		}
	})
}

// The exit code of every verdict, as documented.
func TestHealth_ExitCodes(t *testing.T) {
	want := map[health.Verdict]int{
		health.Unknown: 3, health.Starting: 3, health.Degraded: 3, health.Evacuate: 3,
		health.CutOff: 4, health.Hung: 4, health.Dead: 4,
	}
	for _, v := range health.Verdicts() {
		if got := healthCode(v); got != want[v] {
			t.Errorf("%v: %d, want %d", v, got, want[v])
		}
		if !strings.Contains(healthHelp, v.String()) {
			t.Errorf("the help doesn't name %v", v)
		}
	}
}

// Watching prints changes only, sends nothing while the server is busy, and ends without an error.
func TestHealth_WatchPrintsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A minute of work, a hang of 20 s that ends, then nothing to do.
		s := &played{}
		began := time.Now()
		s.read = func(n int) health.Reading {
			r := health.Reading{Steps: true, InFlight: 1, Counters: []health.Counter{{Name: "steps", Value: float64(n)}}}
			switch now := time.Since(began); {
			case now > 100*time.Second:
				r.InFlight, r.Counters[0].Value = 0, 1e6
			case now > time.Minute && now <= 80*time.Second:
				r.Counters[0].Value = 500
			case now > 80*time.Second:
				r.Counters[0].Value += 1000
			}
			return r
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		out, err := healthRun(ctx, []*played{s}, "--watch")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for l := range strings.Lines(out) {
			fields := strings.Fields(l)
			if _, err := time.Parse(time.RFC3339, fields[0]); err != nil {
				t.Errorf("no time: %s", l)
			}
			got = append(got, fields[2])
		}
		if want := []string{"unknown", "busy", "hung", "busy", "idle"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v:\n%s", got, want, out)
		}
		if n := s.probes.Load(); n != 1 {
			t.Errorf("%d probes, want one, a minute after the last token", n)
		}
	})
}

// A probe of its own doesn't make a server busy, nor a line.
func TestHealth_WatchIsSilentAboutItsProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var moved atomic.Int64
		late := 0 // its gauge: the probe is counted for one more read
		s := &played{}
		s.read = func(int) health.Reading {
			r := health.Reading{Steps: true, Counters: []health.Counter{{Name: "steps", Value: float64(moved.Load()), Tokens: true}}}
			if n := int(s.probes.Load()); n > late && int(moved.Load()) == n {
				late, r.InFlight = n, 1
			}
			return r
		}
		s.answer = func(context.Context) health.Probe {
			time.Sleep(400 * time.Millisecond)
			moved.Add(1)
			return health.ProbePassed
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		out, err := healthRun(ctx, []*played{s}, "--watch")
		if err != nil || strings.Count(out, "\n") != 1 || !strings.Contains(out, "  idle (") {
			t.Errorf("got %q, %v", out, err)
		}
		if n := s.probes.Load(); n < 50 || n > 60 {
			t.Errorf("%d probes in an hour, want about one a minute", n)
		}
	})
}

func TestHealth_Usage(t *testing.T) {
	for args, want := range map[string]string{
		"":                                                                          "--target is missing",
		"--target 127.0.0.1:8000":                                                   "isn't a URL",
		"--target ftp://h:1":                                                        "isn't a URL",
		"--target http://:1":                                                        "isn't a URL",
		"--target http://u:secret@h:1":                                              "--api-key-file",
		"--target http://h:1?key=secret":                                            "--api-key-file",
		"--target http://h:1,http://h:1":                                            "twice",
		"--target http://h:1 --kind tgi":                                            "no kind is called",
		"--target http://h:1 --once --watch":                                        "exclude",
		"--target http://h:1 --once --listen x":                                     "--once ends",
		"--target http://h:1 --once --on-hung x":                                    "--once ends",
		"--target http://h:1 --on-dead":                                             "--on-dead needs",
		"--target http://h:1,http://h:2 --on-hung x":                                "one server",
		"--target http://h:1 --kind proxy --on-hung x":                              "proxy",
		"--target http://h:1 --kind openai --on-hung x":                             "without metrics",
		"--target http://h:1 --timeout 0":                                           "--timeout",
		"--target http://h:1 --probe-timeout -1s":                                   "--probe-timeout",
		"--target http://h:1 --interval 1us":                                        "interval",
		"--target http://h:1 --hang-after 100ms":                                    "--hang-after",
		"--target http://h:1 --listen nowhere:port":                                 "--listen",
		"--target http://h:1 --api-key-file testdata/none":                          "--api-key-file",
		"--target http://h:1 --on-hung x --restart-max 0 --state-dir /dev/null":     "maximum",
		"--target http://h:1 --on-hung x --restart-window 1m --state-dir /dev/null": "window",
		"--target http://h:1 --on-hung x --start-budget 10h --state-dir /dev/null":  "never reached",
		"--target http://h:1 --no-such":                                             "no-such",
		"--target http://h:1 surplus":                                               "surplus",
		"--target http://h:1" + strings.Repeat(",http://h:1", mostTargets):          "more than 64",
	} {
		root := newRootCommand()
		root.SetArgs(append([]string{"health"}, strings.Fields(args)...))
		root.SetOut(new(bytes.Buffer))
		root.SetErr(new(bytes.Buffer))
		err := root.ExecuteContext(t.Context())
		if code(err) != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %d, %v, want %q", args, code(err), err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q repeats the secret", err)
		}
	}
}

func TestHealth_KeyFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	for content, want := range map[string]string{"s3cret\n": "s3cret", "": "", "a b": "", "a\nb": "", "\x00": "", strings.Repeat("x", mostKey+1): ""} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := (&healthFlags{keyFile: file}).key()
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%.20q: got %q, %v", content, got, err)
		}
	}
}
