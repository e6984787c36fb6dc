// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lab

import (
	"fmt"
	"sort"
	"sync"
	"time"

	"github.com/seguekv/segue/health/scrape"
)

// Engine is one scripted server. After its last phase that one goes on. Methods may be called concurrently; times never run
// backwards.
type Engine struct {
	kind   scrape.Kind
	name   string
	origin time.Time
	phases []scene
	chunk  int     // of SGLang, -1 if prompts aren't divided
	rate   float64 // prompt tokens a second

	mu    sync.Mutex
	stats Stats
	live  int       // requests that are served outside the script
	extra int       // tokens put out for them by the present process
	life  time.Time // of the process that extra belongs to
	awake time.Time // woken: the phase of sleep that began before this is over
}

// scene is a phase with what came before it.
type scene struct {
	Phase
	from  time.Time
	began time.Time // the process
	sums  sums      // at its beginning
}

// sums are what a process has counted.
type sums struct {
	steps, batches int // with output; all
	tokens, prompt int
	finished       int
	idle           time.Duration
}

// Stats counts what an engine got.
type Stats struct {
	// Probes are requests with scrape.ProbeHeader; Chats all others for tokens.
	Probes, ProbesWhileBusy int
	Chats, ChatsWhileBusy   int
	// Woken counts what has woken the engine, or would have if it slept.
	Woken int
	// Generated counts reads of pages that make it generate: SGLang's /health and /health_generate.
	Generated int
}

// New checks the script, which begins at origin. The kind is VLLM, SGLang, LlamaCPP, OpenAI or Proxy; the last two have
// no page but the list of models.
func New(kind scrape.Kind, origin time.Time, script ...Phase) (*Engine, error) {
	switch kind {
	case scrape.VLLM, scrape.SGLang, scrape.LlamaCPP, scrape.OpenAI, scrape.Proxy:
	default:
		return nil, fmt.Errorf("%w: no engine of kind %s", ErrScript, kind)
	}
	if len(script) == 0 {
		return nil, fmt.Errorf("%w: no phase", ErrScript)
	}
	e := &Engine{kind: kind, name: "lab-model", origin: origin, chunk: ChunkTokens, rate: Rate}
	at := scene{from: origin, began: origin.Add(-time.Minute)}
	for i, p := range script {
		if err := p.validate(i); err != nil {
			return nil, err
		}
		switch p.State {
		case PrefillWhole:
			e.chunk = -1
			e.rate = min(e.rate, ChunkTokens/p.For.Seconds())
		case PrefillChunked:
			e.rate = min(e.rate, ChunkTokens/p.step().Seconds())
		}
		at.Phase = p
		if p.Restarted {
			at.began, at.sums = at.from, sums{}
		}
		if p.decodes() {
			at.sums.prompt += p.Streams * Prompt
		}
		e.phases = append(e.phases, at)
		at.sums = at.after(p.For)
		at.from = at.from.Add(p.For)
	}
	e.life = e.phases[0].began
	return e, nil
}

// after is what the process has counted when the scene has gone on for that long.
func (s scene) after(d time.Duration) sums {
	out := s.sums
	n := int(d / s.step())
	switch s.State {
	case Decode, Frozen:
		if s.Streams == 0 {
			break
		}
		out.steps, out.batches, out.tokens = out.steps+n, out.batches+n, out.tokens+n*s.Streams
		out.finished += n * s.Streams / 200
	case PrefillChunked:
		out.batches, out.prompt = out.batches+n, out.prompt+n*ChunkTokens
		if d >= s.For {
			out.steps, out.tokens = out.steps+1, out.tokens+1
		}
	case PrefillWhole:
		if d >= s.For {
			out.steps, out.batches, out.tokens = out.steps+1, out.batches+1, out.tokens+1
			out.prompt += ChunkTokens
		}
	case Idle:
		out.idle += d
	}
	return out
}

// Kind is what the engine plays.
func (e *Engine) Kind() scrape.Kind { return e.kind }

// Span is the whole script's.
func (e *Engine) Span() (from, to time.Time) {
	last := e.phases[len(e.phases)-1]
	return e.origin, last.from.Add(last.For)
}

// Phase is what the script says of that time, and when that began.
func (e *Engine) Phase(t time.Time) (Phase, time.Time) {
	s := e.scene(t)
	return s.Phase, s.from
}

func (e *Engine) index(t time.Time) int {
	return max(sort.Search(len(e.phases), func(i int) bool { return e.phases[i].from.After(t) })-1, 0)
}

// scene is the phase of that time; a sleep that something woke is idleness.
func (e *Engine) scene(t time.Time) scene {
	s := e.phases[e.index(t)]
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.State == Sleeping && s.from.Before(e.awake) {
		s.State = Idle
	}
	return s
}

// Stats is what the engine got so far.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

// begin takes a request in; end ends it, after so many tokens.
func (e *Engine) begin(t time.Time, probe bool) {
	s := e.scene(t)
	e.mu.Lock()
	defer e.mu.Unlock()
	busy := s.Busy() || e.live > 0
	if probe {
		e.stats.Probes++
		if busy {
			e.stats.ProbesWhileBusy++
		}
	} else {
		e.stats.Chats++
		if busy {
			e.stats.ChatsWhileBusy++
		}
	}
	if s.State == Sleeping {
		e.stats.Woken++
		e.awake = t.Add(1)
	}
	e.live++
}

func (e *Engine) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.live--
}

// emit counts tokens put out for requests outside the script.
func (e *Engine) emit(t time.Time, n int) {
	began := e.phases[e.index(t)].began
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.life.Equal(began) {
		e.life, e.extra = began, 0
	}
	e.extra += n
}

func (e *Engine) wake(t time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stats.Woken++
	e.awake = t.Add(1)
}
