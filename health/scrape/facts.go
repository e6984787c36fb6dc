// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape

import (
	"errors"
	"math"

	"github.com/seguekv/segue/health"
)

// Errors of pages. They are wrapped with what was wrong.
var (
	ErrConfig = errors.New("scrape: configuration")
	// ErrPage: the page can't be read, or is larger than it may be.
	ErrPage = errors.New("scrape: page")
	// ErrForeign: the page is well formed and not of that kind.
	ErrForeign = errors.New("scrape: the page has none of the kind's names")
)

// Facts is what a page says of a server at one moment.
type Facts struct {
	Kind Kind
	// Engines has one member per engine in the page, in the order of their names; at least one unless the server sleeps or loads.
	Engines []Engine
	// Incarnation names the process life, empty where the page doesn't.
	Incarnation       string
	Loading, Sleeping bool
	// Stepwise: a counter moves with every forward pass, also with one that puts nothing out.
	Stepwise bool
	// PromptRate is how many prompt tokens a second were computed so far, on average; 0 if none were.
	PromptRate float64
}

// Engine is one engine of a page.
type Engine struct {
	// Name tells engines of one page apart; it is empty for most of those that are alone.
	Name string
	// InFlight counts requests that run or wait, as the engine's own gauges say.
	InFlight int
	// Open counts HTTP requests that aren't over, -1 where the page doesn't.
	Open int
	// Idle is for how many seconds so far the scheduler had nothing to do; NaN where the page doesn't say.
	Idle float64
	// Counters come in a fixed order. One that the page lacks is 0, a gauge then not a number.
	Counters []health.Counter
}

func engine(name string) Engine { return Engine{Name: name, Open: -1, Idle: math.NaN()} }

// inFlight sums over the engines.
func (f Facts) inFlight() int {
	n := 0
	for _, e := range f.Engines {
		n = add(n, e.InFlight)
	}
	return n
}

// add doesn't overflow.
func add(a, b int) int { return min(a, math.MaxInt32) + min(b, math.MaxInt32) }

// count makes a gauge of requests a number: none for less than one and for what isn't a number.
func count(v float64) int {
	if !(v >= 1) {
		return 0
	}
	return int(math.Min(v, math.MaxInt32))
}
