// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape

import (
	"context"
	"time"
)

const (
	// mostParts is how many parts a read's time has, of which a task queue gets one at first, and one more after each
	// time that it didn't answer.
	mostParts = 3
	// calm is how many answers in a row take a part away again.
	calm = 40
)

// patience says how much of a read's time a task queue gets: little, so that one that stands still is noticed with the next
// read, and more once it was found slow.
type patience struct {
	extra, answers int
}

func (p *patience) lost() { p.extra, p.answers = min(p.extra+1, mostParts-1), 0 }

func (p *patience) kept() {
	if p.answers++; p.answers >= calm {
		p.extra, p.answers = max(p.extra-1, 0), 0
	}
}

type shareKey struct{}

// Share is the part of its read's time that a request with this context may take.
func Share(ctx context.Context) float64 {
	if v, ok := ctx.Value(shareKey{}).(float64); ok {
		return v
	}
	return 1
}

// share is ctx with a deadline of its own, if it has one.
func (p *patience) share(ctx context.Context) (context.Context, context.CancelFunc) {
	part := float64(1+p.extra) / mostParts
	ctx = context.WithValue(ctx, shareKey{}, part)
	if until, ok := ctx.Deadline(); ok {
		return context.WithTimeout(ctx, time.Duration(float64(time.Until(until))*part))
	}
	return ctx, func() {}
}
