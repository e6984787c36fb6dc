// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seguekv/segue/health"
	enginelab "github.com/seguekv/segue/health/lab"
	"github.com/seguekv/segue/health/scrape"
)

// healthProbe is how long a simulated probe may take.
const healthProbe = 5 * time.Second

// healthTally is what came of watching engines.
type healthTally struct {
	reads, alarms int
	probes        enginelab.Stats
	naive         enginelab.NaiveResult
	work, busy    time.Duration
	// hangs counts those that were played, delays has the seconds that those which were found took, both by kind.
	hangs  map[scrape.Kind]int
	delays map[scrape.Kind][]float64
	// worst describes the first false alarm.
	worst string
}

// simulateHealth watches every engine, several at once; what comes of it doesn't depend on how many.
func simulateHealth(ctx context.Context, cfg HealthConfig, watches []healthWatch) (*healthTally, error) {
	results := make([]*healthTally, len(watches))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	for i, w := range watches {
		group.Go(func() error {
			var err error
			if results[i], err = w.play(ctx, cfg.Detector); err != nil {
				return fmt.Errorf("play %s: %w", w.kind, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	total := &healthTally{hangs: make(map[scrape.Kind]int), delays: make(map[scrape.Kind][]float64)}
	for _, t := range results {
		if t.worst != "" {
			cfg.Logf("false alarm: %s", t.worst)
		}
		total.add(t)
	}
	return total, nil
}

// play has the engine watched from its first phase to the end of its hang.
func (w *healthWatch) play(ctx context.Context, detector health.Config) (*healthTally, error) {
	origin := time.Unix(1_800_000_000, 0)
	e, err := enginelab.New(w.kind, origin, w.phases...)
	if err != nil {
		return nil, err
	}
	t := &healthTally{work: w.work, busy: w.busy, hangs: map[scrape.Kind]int{w.kind: 1}, delays: make(map[scrape.Kind][]float64)}
	hang := origin.Add(w.work)
	_, end := e.Span()
	alarmed, found := false, false
	p := enginelab.Play{Engine: e, Health: detector, Kind: w.kind, ProbeTimeout: healthProbe, Ours: w.ours(origin)}
	p.Seen = func(r health.Reading, a health.Assessment) {
		t.reads++
		bad := a.Verdict.Lost() || a.Verdict == health.Degraded
		switch {
		case a.At.Before(hang):
			if bad && !alarmed {
				t.alarms++
				if phase, from := e.Phase(a.At); t.worst == "" {
					t.worst = fmt.Sprintf("%s (prompts whole: %t, ours: %t) is %s: %v after %v of %s, silent for %v of %v, read: %s %s",
						w.kind, w.whole, w.insider, a.Verdict, a.Reasons, a.At.Sub(from), phase.State, a.Silence, a.Limit, r.Outcome, r.Detail)
				}
			}
			alarmed = bad
		case a.Verdict == health.Hung && !found && !alarmed:
			found = true
			t.delays[w.kind] = append(t.delays[w.kind], a.At.Sub(hang).Seconds())
		case !a.Verdict.Lost():
			alarmed = false // An alarm from before doesn't count as having found the hang.
		}
	}
	if err := p.Run(ctx, origin, end); err != nil {
		return nil, err
	}
	t.probes = e.Stats()
	t.naive = enginelab.Naive{}.Run(e, origin, hang)
	return t, nil
}

func (t *healthTally) add(o *healthTally) {
	t.reads += o.reads
	t.alarms += o.alarms
	t.probes.Probes += o.probes.Probes
	t.probes.ProbesWhileBusy += o.probes.ProbesWhileBusy
	t.naive.Probes += o.naive.Probes
	t.naive.ProbesWhileBusy += o.naive.ProbesWhileBusy
	t.naive.Unanswered += o.naive.Unanswered
	t.naive.FalseAlarms += o.naive.FalseAlarms
	t.work += o.work
	t.busy += o.busy
	for kind, n := range o.hangs {
		t.hangs[kind] += n
		t.delays[kind] = append(t.delays[kind], o.delays[kind]...)
	}
}

func (t *healthTally) report(r *HealthReport) {
	const decimals = 3
	r.FalseAlarms, r.ProbesWhileBusy, r.Probes, r.Reads = t.alarms, t.probes.ProbesWhileBusy, t.probes.Probes, t.reads
	r.Naive = HealthNaive{
		FalseAlarms: t.naive.FalseAlarms, ProbesWhileBusy: t.naive.ProbesWhileBusy, Probes: t.naive.Probes, Unanswered: t.naive.Unanswered,
	}
	r.Hours, r.Busy = round(t.work.Hours(), decimals), round(t.busy.Seconds()/max(t.work.Seconds(), 1), decimals)
	r.HangVerdictS = make(map[string]HealthDelays)
	for kind, n := range t.hangs {
		r.HangsPlayed += n
		r.HangsFound += len(t.delays[kind])
		r.HangVerdictS[kind.String()] = delays(t.delays[kind], n)
	}
}
