// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package health

import (
	"fmt"
	"time"
)

// Config sets the detector's limits. All of them are positive. Those with a name in files are what an installation may
// have to change.
type Config struct {
	// Interval is the pause between two reads, ReadTimeout how long a read may take.
	Interval    time.Duration `yaml:"interval"`
	ReadTimeout time.Duration `yaml:"-"`
	// Slack is how much longer than planned a pause or a read may take before it says more about the reader than about
	// the engine.
	Slack time.Duration `yaml:"-"`
	// Pauses is how many pauses without progress, at least, make an engine hung; 2 or more.
	Pauses int `yaml:"pauses"`
	// Floor and Ceiling bound the limit of silence, which is Factor times the 99th percentile of the gaps seen between
	// two signs of progress.
	Floor   time.Duration `yaml:"floor"`
	Ceiling time.Duration `yaml:"ceiling"`
	Factor  float64       `yaml:"-"`
	// Cold takes the place of Floor until a few gaps have been seen, of an engine that computes prompts of ours and of
	// one that doesn't apart: the first piece of a prompt may take a slow engine seconds.
	Cold time.Duration `yaml:"-"`
	// BlindFloor takes the place of Floor where steps without output aren't counted, BlindPrefill also that of
	// Ceiling while a request of ours there waits for its first token.
	BlindFloor   time.Duration `yaml:"-"`
	BlindPrefill time.Duration `yaml:"-"`
	// StartBudget is how long an engine may load.
	StartBudget time.Duration `yaml:"-"`
	// IdleLimit is how long after the last token an idle engine is trusted; then it is probed.
	IdleLimit time.Duration `yaml:"-"`
	// Probes is how many probes in a row must fail, at least, to make an idle engine hung; 2 or more. The limit of silence
	// must be over too.
	Probes int `yaml:"-"`
	// Zombie is how long requests of ours may get nothing while the engine's counters move.
	Zombie time.Duration `yaml:"-"`
	// Demand is the limit of silence after a sign that the engine's process may have lost its device. While a long prefill
	// of ours would look like silence it is BlindFloor.
	Demand time.Duration `yaml:"-"`
}

// Defaults suit an engine whose steps take up to some hundred milliseconds: a hang is found 2 to 2.5 s after the last sign of
// progress.
func Defaults() Config {
	return Config{
		Interval: 250 * time.Millisecond, ReadTimeout: time.Second, Slack: 500 * time.Millisecond,
		Pauses: 2, Floor: 2 * time.Second, Ceiling: 30 * time.Second, Factor: 4, Cold: 10 * time.Second,
		BlindFloor: 30 * time.Second, BlindPrefill: 10 * time.Minute,
		StartBudget: 15 * time.Minute, IdleLimit: time.Minute, Probes: 2,
		Zombie: 30 * time.Second, Demand: time.Second,
	}
}

// Validate names the first setting that can't work.
func (c Config) Validate() error {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"interval", c.Interval}, {"read_timeout", c.ReadTimeout}, {"slack", c.Slack}, {"floor", c.Floor}, {"ceiling", c.Ceiling}, {"cold", c.Cold},
		{"blind_floor", c.BlindFloor}, {"blind_prefill", c.BlindPrefill}, {"start_budget", c.StartBudget},
		{"idle_limit", c.IdleLimit}, {"zombie", c.Zombie}, {"demand", c.Demand},
	} {
		if d.value < time.Millisecond || d.value > 24*time.Hour {
			return fmt.Errorf("health: %s is %v, not between 1ms and 24h", d.name, d.value)
		}
	}
	switch {
	case c.Pauses < 2 || c.Pauses > 1000:
		return fmt.Errorf("health: pauses is %d, not between 2 and 1000: one pause is never enough", c.Pauses)
	case c.Probes < 2 || c.Probes > 1000:
		return fmt.Errorf("health: probes is %d, not between 2 and 1000: one failed probe is never enough", c.Probes)
	case !(c.Factor >= 1 && c.Factor <= 1000):
		return fmt.Errorf("health: factor is %v, not between 1 and 1000", c.Factor)
	case c.Floor > c.Ceiling:
		return fmt.Errorf("health: floor (%v) is above ceiling (%v)", c.Floor, c.Ceiling)
	case c.Floor < c.Interval:
		return fmt.Errorf("health: floor (%v) is below interval (%v)", c.Floor, c.Interval)
	}
	return nil
}
