// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"net"
	"time"

	enginelab "github.com/seguekv/segue/health/lab"
	"github.com/seguekv/segue/health/scrape"
)

// HealthScript is the work of one engine of the health bench, for tests.
type HealthScript struct {
	Kind           scrape.Kind
	Whole, Insider bool
	Work, Busy     time.Duration
	Phases         []enginelab.Phase
}

// HealthScripts are those of so many hours.
func HealthScripts(seed uint64, hours float64) []HealthScript {
	var out []HealthScript
	for _, w := range healthWatches(seed, hours) {
		out = append(out, HealthScript{w.kind, w.whole, w.insider, w.work, w.busy, w.phases})
	}
	return out
}

// SimulateHealthWithoutMetrics plays the same work on engines that show nothing of it, for a watcher that has nothing there.
func SimulateHealthWithoutMetrics(ctx context.Context, cfg HealthConfig) (*HealthReport, error) {
	watches := healthWatches(cfg.Seed, cfg.Hours)
	for i := range watches {
		watches[i].kind, watches[i].insider = scrape.OpenAI, false
	}
	t, err := simulateHealth(ctx, cfg, watches)
	if err != nil {
		return nil, err
	}
	r := &HealthReport{}
	t.report(r)
	return r, nil
}

// NaiveHealth is what the naive check makes of so many hours.
func NaiveHealth(seed uint64, hours float64) (enginelab.NaiveResult, error) {
	var total healthTally
	for _, w := range healthWatches(seed, hours) {
		origin := time.Unix(1_800_000_000, 0)
		e, err := enginelab.New(w.kind, origin, w.phases...)
		if err != nil {
			return total.naive, err
		}
		total.add(&healthTally{naive: enginelab.Naive{}.Run(e, origin, origin.Add(w.work))})
	}
	return total.naive, nil
}

// Delays sums up verdict times.
var Delays = delays

// Cable is a cable, for tests.
type Cable struct{ c *cable }

// Lay lays one.
func Lay(to string) (*Cable, error) {
	c, err := lay(to)
	return &Cable{c}, err
}

// Addr, Close, Reset, Silence and Mend do what cables do.
func (c *Cable) Addr() string { return c.c.addr() }
func (c *Cable) Close()       { c.c.close() }
func (c *Cable) Reset()       { c.c.set(linkReset) }
func (c *Cable) Silence()     { c.c.set(linkSilent) }
func (c *Cable) Mend()        { c.c.set(linkUp) }

// Dial connects through it.
func (c *Cable) Dial() (net.Conn, error) { return net.Dial("tcp", c.c.addr()) }

// AwaitVerdict polls a router's admin listener until the agent's engine has the verdict.
func AwaitVerdict(ctx context.Context, admin, id, verdict string, limit time.Duration) error {
	v := newRouterView(admin)
	defer v.close()
	_, _, err := v.await(ctx, id, limit, func(a agentView) bool { return a.Health.Verdict.String() == verdict })
	return err
}

// ErrNoVerdict is AwaitVerdict's when the limit is over.
var ErrNoVerdict = errNoVerdict
