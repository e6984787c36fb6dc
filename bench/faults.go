// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

const (
	// maxReferenceTries bounds how often a reference that something disturbed is taken.
	maxReferenceTries = 5
	// leastKillsPerPrompt is how many kills a reference has to serve.
	leastKillsPerPrompt = 5
)

// FaultNodes are the nodes of each cluster of a campaign: a third one covers a session when its standby has taken over.
func FaultNodes() []string { return []string{"a", "b", "c"} }

// FaultsConfig says what a long kill campaign does.
type FaultsConfig struct {
	// Kills is the number of kills in the end, those of an earlier run with the same log included.
	Kills int
	// KillsPerPrompt is how often each reference is used.
	KillsPerPrompt int
	// Clusters is the number of clusters at work at once, with one stream each.
	Clusters   int
	Protection string
	Seed       uint64
	// Engine is the kind of engine, for the log.
	Engine string
	// Budget ends the campaign early, with what it has; 0 = never.
	Budget time.Duration
	// Evidence is the folder for what is kept of answers that are not identical; empty takes the cluster's own.
	Evidence string
	// Logf receives progress, one line per call.
	Logf func(format string, args ...any)
}

// Validate reports every problem in the spelling of the command line.
func (c FaultsConfig) Validate() error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Kills < 1 || c.Kills > 1_000_000 {
		add("--kills must be 1 to 1000000, not %d", c.Kills)
	}
	if c.KillsPerPrompt < leastKillsPerPrompt || c.KillsPerPrompt > 1000 {
		add("--kills-per-prompt must be %d to 1000, not %d", leastKillsPerPrompt, c.KillsPerPrompt)
	}
	if c.Clusters < 1 || c.Clusters > 16 {
		add("--clusters must be 1 to 16, not %d", c.Clusters)
	}
	if c.Protection != client.ProtectionSync && c.Protection != client.ProtectionAsync {
		add("--protection must be sync or async, not %q", c.Protection)
	}
	if c.Budget < 0 {
		add("--budget must not be negative, not %v", c.Budget)
	}
	return errors.Join(problems...)
}

// Params are what a log's lines have to agree with, except the model, which only a running cluster knows.
func (c FaultsConfig) Params() FaultParams {
	return FaultParams{
		Format: faultFormat, Seed: c.Seed, KillsPerPrompt: c.KillsPerPrompt, Protection: c.Protection, Engine: c.Engine,
	}
}

// Faults is a campaign that several clusters work on at once.
type Faults struct {
	cfg   FaultsConfig
	begun time.Time

	mu      sync.Mutex // guards everything below
	log     *FaultLog
	model   string
	queue   [][]plan // by prompt
	earlier int      // records that were there at the beginning
}

// NewFaults prepares what is left of a campaign to do. The log stays the caller's, who must not touch it while Work runs.
func NewFaults(cfg FaultsConfig, log *FaultLog) *Faults {
	f := &Faults{cfg: cfg, begun: time.Now(), log: log, earlier: len(log.Records)}
	done := make(map[int]bool)
	for _, r := range log.Records {
		f.model = r.Model
		done[r.Run-1] = true
	}
	for run := range cfg.Kills {
		if done[run] {
			continue
		}
		p := planRun(run, cfg.KillsPerPrompt)
		if n := len(f.queue); n > 0 && f.queue[n-1][0].prompt == p.prompt {
			f.queue[n-1] = append(f.queue[n-1], p)
		} else {
			f.queue = append(f.queue, []plan{p})
		}
	}
	return f
}

// Left is the number of kills that are not in the log.
func (f *Faults) Left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	left := f.cfg.Kills
	for _, r := range f.log.Records {
		if r.Run <= f.cfg.Kills {
			left--
		}
	}
	return left
}

// Report summarizes the log, earlier runs included.
func (f *Faults) Report() *FaultReport {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := Summarize(f.log.Records)
	r.Here = FaultEffort{Kills: len(f.log.Records) - f.earlier, Seconds: round(time.Since(f.begun).Seconds(), 1), Clusters: f.cfg.Clusters}
	if r.Here.Kills > 0 {
		r.Here.SecondsPerKill = round(r.Here.Seconds/float64(r.Here.Kills), 2)
	}
	return r
}

// Work does kills on one cluster until none is left, ctx ends or the budget is used up. It may run once per cluster at the
// same time. Each cluster has one stream at a time, is whole before each kill, and takes its own references. An error means
// that the campaign could not be carried out; bad outcomes are in the report.
func (f *Faults) Work(ctx context.Context, cl *cluster.Cluster) error {
	c := client.New(cl.URL())
	defer c.Close()
	w := &faultWorker{campaign: f, lab: lab{client: c, cluster: cl, protection: f.cfg.Protection, logf: f.cfg.Logf}}
	var err error
	if w.model, err = c.Model(ctx); err != nil {
		return err
	}
	if err := f.agree(w.model); err != nil {
		return err
	}
	if w.lib, err = openCorpus(); err != nil {
		return err
	}
	if w.scale, err = measureScale(ctx, c, w.model, w.lib); err != nil {
		return err
	}
	for {
		plans := f.next()
		if plans == nil {
			return nil
		}
		if err := w.prompt(ctx, plans); err != nil {
			return fmt.Errorf("prompt %d: %w", plans[0].prompt+1, err)
		}
	}
}

// agree makes the first model seen the campaign's.
func (f *Faults) agree(model string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.model != "" && f.model != model {
		return fmt.Errorf("the log is of model %q, the cluster serves %q: give the same model, or another --log", f.model, model)
	}
	f.model = model
	return nil
}

// spent reports whether the budget is used up.
func (f *Faults) spent() bool { return f.cfg.Budget > 0 && time.Since(f.begun) >= f.cfg.Budget }

// next takes the kills of one prompt, or nil.
func (f *Faults) next() []plan {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) == 0 || f.spent() {
		return nil
	}
	plans := f.queue[0]
	f.queue = f.queue[1:]
	return plans
}

// record keeps a kill and tells how far the campaign is.
func (f *Faults) record(r FaultRecord, line string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.FaultParams = f.cfg.Params()
	r.Model = f.model
	if err := f.log.Append(r); err != nil {
		return err
	}
	n := len(f.log.Records)
	each := time.Since(f.begun) / time.Duration(n-f.earlier)
	f.cfg.Logf("%5d/%d  %4.1f s/kill  %6v left  #%d %s", n, f.cfg.Kills, each.Seconds(),
		(each * time.Duration(max(0, f.cfg.Kills-n))).Round(time.Second), r.Run, line)
	return nil
}

// faultWorker is the work of one cluster.
type faultWorker struct {
	lab

	campaign *Faults
	model    string
	lib      library
	scale    scale
}

// prompt takes the reference of one prompt and does its kills.
func (w *faultWorker) prompt(ctx context.Context, plans []plan) error {
	p, sampling := faultPrompt(w.campaign.cfg.Seed, plans[0].prompt, w.model, w.lib, w.scale)
	begun := time.Now()
	ref, err := takeReference(ctx, w.client, w.cluster, p, w.lib, w.scale)
	for try := 1; err != nil && errors.Is(err, errDisturbed) && try < maxReferenceTries; try++ {
		w.logf("%v: once more", err)
		ref, err = takeReference(ctx, w.client, w.cluster, p, w.lib, w.scale)
	}
	if err != nil {
		return err
	}
	w.logf("%6.2f s  reference %d: %s, %s, %d prompt and %d output tokens, %.1f ms a token, equal on all nodes",
		time.Since(begun).Seconds(), plans[0].prompt+1, p.kind, sampling, ref.transcript.Usage.PromptTokens, ref.tokens(), milliseconds(ref.step))
	for _, plan := range plans {
		if w.campaign.spent() {
			return nil
		}
		if err := w.kill(ctx, plan, ref, sampling); err != nil {
			return fmt.Errorf("kill %d: %w", plan.run+1, err)
		}
	}
	return nil
}

// kill does one kill, drawing again while it met no running primary.
func (w *faultWorker) kill(ctx context.Context, p plan, ref *reference, sampling string) error {
	seed, redrawn, disturbed := w.campaign.cfg.Seed, 0, 0
	for try := range maxRedraws {
		seen, err := w.disturb(ctx, []*reference{ref}, killing{
			target: p.target,
			second: p.drawSecond(seed, try, ref.step),
			draw: func(ref *reference) Draw {
				return drawKill(seed, p.prompt, p.run, try, ref.tokens(), ref.step)
			},
		})
		if err != nil {
			return err
		}
		if seen.redraw {
			redrawn++
			w.logf("#%d %s: drawn again", p.run+1, seen.describe(0))
			continue
		}
		if err := w.keep(seen, p); err != nil {
			return err
		}
		if !seen.fired && seen.outcomes[0].verdict.Outcome != client.Wrong {
			disturbed++
			w.logf("#%d %s: without a kill, once more", p.run+1, seen.describe(0))
			continue
		}
		r := seen.faultRecord(p, sampling)
		r.Redrawn, r.Disturbed = redrawn, disturbed
		return w.campaign.record(r, seen.describe(0))
	}
	return fmt.Errorf("no kill met a running primary in %d draws", maxRedraws)
}

// keep writes down what is not identical.
func (w *faultWorker) keep(seen examined, p plan) error {
	dir := w.campaign.cfg.Evidence
	if dir == "" {
		dir = w.cluster.Dir()
	}
	paths, err := keepEvidence(dir, w.campaign.cfg.Seed, w.protection, p.run+1, seen)
	for _, path := range paths {
		w.logf("evidence: %s", path)
	}
	return err
}

// faultRecord is the log's line about a single stream.
func (e examined) faultRecord(p plan, sampling string) FaultRecord {
	s, o := e.streams[0], e.outcomes[0]
	r := FaultRecord{
		Run: p.run + 1, Prompt: p.prompt + 1, Kind: s.ref.prompt.kind, Sampling: sampling,
		PromptTokens: s.ref.transcript.Usage.PromptTokens, OutputTokens: s.ref.tokens(),
		Target: p.target, Node: e.node, KillIndex: e.index, D: -1, C: -1,
		Outcome: o.verdict.Outcome, Continued: o.continued, Retried: o.retried, Reasons: o.verdict.Reasons,
		Session: s.session, At: time.Now().UTC().Format(time.RFC3339Nano),
	}
	if o.seam != nil {
		r.D, r.C = o.seam.Delivered, o.seam.Index
	}
	if o.measured {
		pause, gap, detect := inMS(o.pause.Pause), inMS(o.pause.Gap), inMS(o.pause.Detect)
		r.PauseMS, r.GapMS, r.DetectMS = &pause, &gap, &detect
	}
	if k := e.second; k != nil {
		r.Second = &SecondRecord{
			Target: k.shot.Target, Node: k.shot.Node, AfterMS: inMS(k.at.Sub(e.at)),
			During: !o.measured || k.at.Before(e.at.Add(o.pause.Pause)),
		}
		r.Second.Protected = !r.Second.During && k.protected
	}
	if !r.Continued {
		r.NotContinued = o.whyNot(s, r.Second)
	}
	return r
}

func inMS(d time.Duration) float64 { return round(milliseconds(d), 2) }

// whyNot is the reason for which an answer was not continued, in few different words.
func (o outcome) whyNot(s *live, second *SecondRecord) string {
	why := ""
	switch e := s.transcript.Err; {
	case o.verdict.Outcome == client.Wrong:
		why = "wrong"
	case e != nil && o.verdict.Outcome == client.Refused:
		why = "refused: " + e.Cause
	case e != nil:
		why = "error: " + e.Code
	default:
		why = "retried"
	}
	if second != nil {
		why += ", standby's " + second.name()
	}
	return why
}
