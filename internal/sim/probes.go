// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim

import (
	"context"
	"sync"
)

// probes counts what runs on engines without any client having asked for it.
type probes struct {
	mu    sync.Mutex
	asked map[uint64]bool
	// all of them, and those that came to an engine that had something to do.
	all, busy int
}

func newProbes() *probes { return &probes{asked: map[uint64]bool{}} }

// ask notes that a client asks for a request.
func (p *probes) ask(label uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked[label] = true
}

// run takes in a run that is about to begin.
func (p *probes) run(l *life, label uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked[label] {
		return
	}
	p.all++
	if f, err := l.Engine.Observe(context.Background()); err == nil && f.Running > 0 {
		p.busy++
	}
}

// Probes is how many runs no client has asked for, and how many of them came to an engine that had something to do.
func (w *World) Probes() (all, busy int) {
	w.probes.mu.Lock()
	defer w.probes.mu.Unlock()
	return w.probes.all, w.probes.busy
}
