// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/seguekv/segue/bench/cluster"
	"github.com/seguekv/segue/health"
)

// Targets of the health bench: the 99th percentile of the time to a verdict, with the detector's default settings.
const (
	HealthDeathTarget = 300 * time.Millisecond
	HealthHangTarget  = 3 * time.Second
)

const (
	// healthPrefillToken makes a piece of a prompt, 64 tokens, as long as a decode step may be.
	healthPrefillToken = 750 * time.Microsecond
	// healthRowBytes is small: long prompts are kept for their time.
	healthRowBytes = 1 << 10
	// healthSpare is how long a request goes on, at least, after its engine is warm.
	healthSpare = 8 * time.Second
)

// HealthConfig says how the health bench measures.
type HealthConfig struct {
	// Rounds is how many faults of each kind there are.
	Rounds int
	// Hours is how much work is simulated.
	Hours float64
	// Warm is how long an engine works before it is made to hang: its detector needs to have seen its usual gaps.
	Warm time.Duration
	// Step is the time of one decode step, of the engines that are processes.
	Step time.Duration
	// Seed is that of the simulated work.
	Seed uint64
	// Detector is the simulated watchers' configuration.
	Detector health.Config
	// Binary is the segue program.
	Binary string
	// Logf receives progress, one line per call.
	Logf func(format string, args ...any)
}

// Validate reports every problem in the spelling of the command line.
func (c HealthConfig) Validate() error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Rounds < 1 || c.Rounds > 1000 {
		add("--rounds must be 1 to 1000, not %d", c.Rounds)
	}
	if !(c.Hours >= 0.01 && c.Hours <= 1000) {
		add("--hours must be 0.01 to 1000, not %v", c.Hours)
	}
	if c.Warm < time.Second || c.Warm > 2*time.Minute {
		add("--warm-up must be 1s to 2m, not %v", c.Warm)
	}
	if c.Step < time.Millisecond || c.Step > time.Second {
		add("--step must be 1ms to 1s, not %v", c.Step)
	}
	return errors.Join(append(problems, c.Detector.Validate())...)
}

// promptTokens is how long a prompt is computed for longer than it takes to warm the engine.
func (c HealthConfig) promptTokens() int { return int((c.Warm + healthSpare) / healthPrefillToken) }

// outputTokens is how long an answer lasts for longer than it takes to warm the engine and to find it hung.
func (c HealthConfig) outputTokens() int {
	return int((c.Warm + healthSpare + healthPatience) / c.Step)
}

// Engine is what the nodes of the cluster compute with.
func (c HealthConfig) Engine() cluster.Engine {
	const slack = 256
	return cluster.Engine{
		Kind: cluster.EngineSim, Step: c.Step, PrefillToken: healthPrefillToken, KVBytesPerToken: healthRowBytes,
		ContextLength: max(c.promptTokens(), c.outputTokens()) + slack,
	}
}

// HealthReport is the result of the health bench; its JSON form is a public format.
type HealthReport struct {
	VerdictMS HealthVerdicts `json:"verdict_ms"`
	// FalseAlarms counts how often an engine that worked was held for hung, dead, cut off or degraded.
	FalseAlarms int `json:"false_alarms"`
	// ProbesWhileBusy counts probes that met somebody's work, of Probes in all.
	ProbesWhileBusy int         `json:"probes_while_busy"`
	Naive           HealthNaive `json:"naive"`
	Probes          int         `json:"probes"`
	Reads           int         `json:"reads"`
	// Hours of simulated work; the hangs come on top.
	Hours float64 `json:"hours"`
	// Busy is the share of them in which the engine had work.
	Busy        float64 `json:"busy"`
	HangsPlayed int     `json:"hangs_played"`
	HangsFound  int     `json:"hangs_found"`
	// HangVerdictS is how long simulated hangs took to be found, in seconds, by the kind of engine. What an engine shows
	// of a long prompt decides how long its silence has to last.
	HangVerdictS map[string]HealthDelays `json:"hang_verdict_s"`
	Rounds       int                     `json:"rounds"`
	StepMS       float64                 `json:"step_ms"`
	WarmS        float64                 `json:"warm_up_s"`
	TargetsMet   bool                    `json:"targets_met"`
	CPUs         int                     `json:"cpus"`
	Seconds      float64                 `json:"seconds"`
}

// HealthVerdicts are the times from a fault to the router's verdict, by fault, in milliseconds.
type HealthVerdicts struct {
	// ProcessDeath is SIGKILL of an engine host.
	ProcessDeath HealthDelays `json:"process_death"`
	// ConnectionCut is the reset of all connections between a router and an agent, ConnectionSilent their end
	// without a word.
	ConnectionCut    HealthDelays `json:"connection_cut"`
	ConnectionSilent HealthDelays `json:"connection_silent"`
	// HangDecode and HangPrefill are SIGSTOP of an engine host while it puts out tokens, and while it computes a prompt.
	HangDecode  HealthDelays `json:"hang_decode"`
	HangPrefill HealthDelays `json:"hang_prefill"`
}

// HealthDelays are times to a verdict. Missed counts faults without one, of Faults; the figures don't have them.
type HealthDelays struct {
	P50    float64 `json:"p50"`
	P99    float64 `json:"p99"`
	Faults int     `json:"faults"`
	Missed int     `json:"missed"`
}

// HealthNaive is what a chat request every five minutes makes of the same work, which counts as failed after 45 s; five
// failed ones in a row are an alarm.
type HealthNaive struct {
	FalseAlarms     int `json:"false_alarms"`
	ProbesWhileBusy int `json:"probes_while_busy"`
	Probes          int `json:"probes"`
	// Unanswered counts requests that failed on an engine that worked.
	Unanswered int `json:"unanswered"`
}

// delays sums up what was measured in the report's unit.
func delays(values []float64, faults int) HealthDelays {
	const decimals = 1
	return HealthDelays{
		P50: round(median(values), decimals), P99: round(percentile99(values), decimals), Faults: faults, Missed: faults - len(values),
	}
}

// each names the faults of real processes.
func (v HealthVerdicts) each(f func(name string, d HealthDelays, target time.Duration)) {
	f("process_death", v.ProcessDeath, HealthDeathTarget)
	f("connection_cut", v.ConnectionCut, HealthDeathTarget)
	f("connection_silent", v.ConnectionSilent, 0)
	f("hang_decode", v.HangDecode, HealthHangTarget)
	f("hang_prefill", v.HangPrefill, HealthHangTarget)
}

// Targets tells for each fault whether its target was met; one without a target is left out.
func (r *HealthReport) Targets() (lines []string, met bool) {
	met = true
	r.VerdictMS.each(func(name string, d HealthDelays, target time.Duration) {
		if target == 0 {
			return
		}
		word := "met"
		if d.P99 > milliseconds(target) || d.Missed > 0 || d.Faults == 0 {
			word, met = "MISSED", false
		}
		lines = append(lines, fmt.Sprintf("%-16s p50 %7.1f ms  p99 %7.1f ms  target %v: %s", name, d.P50, d.P99, target, word))
	})
	return lines, met
}

// Failure is about verdicts that were wrong, probes that disturbed and faults that weren't found; nil without any. How
// long verdicts took is no failure: it depends on the machine.
func (r *HealthReport) Failure() error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if r.FalseAlarms > 0 {
		add("%d false alarms in %v simulated hours", r.FalseAlarms, r.Hours)
	}
	if r.ProbesWhileBusy > 0 {
		add("%d probes met a busy engine", r.ProbesWhileBusy)
	}
	if r.HangsFound < r.HangsPlayed {
		add("only %d of %d simulated hangs were found", r.HangsFound, r.HangsPlayed)
	}
	if r.HangsPlayed == 0 || r.Reads == 0 {
		add("nothing was simulated")
	}
	r.VerdictMS.each(func(name string, d HealthDelays, _ time.Duration) {
		if d.Missed > 0 {
			add("%s: %d of %d faults got no verdict within %v", name, d.Missed, d.Faults, healthPatience)
		}
		if d.Faults == 0 {
			add("%s: there was no fault", name)
		}
	})
	return errors.Join(problems...)
}

// SimulateHealth plays the work and the hangs that need no process, and begins the report.
func SimulateHealth(ctx context.Context, cfg HealthConfig) (*HealthReport, error) {
	begun := time.Now()
	t, err := simulateHealth(ctx, cfg, healthWatches(cfg.Seed, cfg.Hours))
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	}
	r := &HealthReport{Rounds: cfg.Rounds, StepMS: milliseconds(cfg.Step), WarmS: cfg.Warm.Seconds(), CPUs: runtime.NumCPU()}
	t.report(r)
	r.Seconds = round(time.Since(begun).Seconds(), 1)
	cfg.Logf("%v hours of work in %.1f s, %d %% of them busy: %d reads, %d false alarms, %d probes, %d of them on a busy engine; %d of %d hangs found",
		r.Hours, r.Seconds, int(100*r.Busy), r.Reads, r.FalseAlarms, r.Probes, r.ProbesWhileBusy, r.HangsFound, r.HangsPlayed)
	cfg.Logf("a chat request every 5 minutes: %d false alarms, %d of %d met a busy engine, %d without an answer in 45 s",
		r.Naive.FalseAlarms, r.Naive.ProbesWhileBusy, r.Naive.Probes, r.Naive.Unanswered)
	return r, nil
}

// MeasureHealth makes faults in the cluster and completes the report.
func MeasureHealth(ctx context.Context, cl *cluster.Cluster, cfg HealthConfig, r *HealthReport) error {
	begun := time.Now()
	if err := measureHealth(ctx, cl, cfg, &r.VerdictMS); err != nil {
		return err
	}
	r.Seconds = round(r.Seconds+time.Since(begun).Seconds(), 1)
	var lines []string
	lines, r.TargetsMet = r.Targets()
	for _, line := range lines {
		cfg.Logf("%s", line)
	}
	return nil
}
