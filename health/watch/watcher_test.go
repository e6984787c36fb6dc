// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package watch_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is a Source and a Prober. Its zero value is idle, and its probes pass after a second.
type engine struct {
	mu       sync.Mutex
	inFlight int
	ours     health.Ours
	moves    bool // with each read
	sleeping bool
	blocks   bool // reads answer nothing until their context ends
	stuck    bool // so do probes
	steps    float64

	seen seen
}

// seen is what came to the engine, and what was made of it.
type seen struct {
	reads, judged int
	last          time.Time // read
	probes, ended int
	probing, most int // at a time
}

func (e *engine) look() seen {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen
}

func (e *engine) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

func (e *engine) Read(ctx context.Context) health.Reading {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen.reads++
	e.seen.last = time.Now()
	if e.blocks {
		e.mu.Unlock()
		<-ctx.Done()
		e.mu.Lock()
		return health.Reading{Outcome: health.TimedOut, Incarnation: "a"}
	}
	if e.moves {
		e.steps++
	}
	return health.Reading{
		Incarnation: "a", Steps: true, Sleeping: e.sleeping, InFlight: e.inFlight + e.seen.probing,
		Counters: []health.Counter{{Name: "steps", Value: e.steps}},
		Probe:    health.ProbeFailed, // not for a Source to say
	}
}

func (e *engine) Probe(ctx context.Context) health.Probe {
	e.mu.Lock()
	e.seen.probes++
	e.seen.probing++
	e.seen.most = max(e.seen.most, e.seen.probing)
	answer := time.After(time.Second)
	if e.stuck {
		answer = nil
	}
	e.mu.Unlock()
	how := health.ProbePassed
	select {
	case <-answer:
	case <-ctx.Done():
		if how = health.ProbeDropped; errors.Is(ctx.Err(), context.DeadlineExceeded) {
			how = health.ProbeFailed
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen.probing--
	e.seen.ended++
	return how
}

func (e *engine) Ours() health.Ours {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ours
}

// watched starts a Watcher of the engine. The function stops it, and fails if that takes time.
func watched(t *testing.T, e *engine) (w *watch.Watcher, stop func()) {
	t.Helper()
	w, err := watch.New(watch.Config{
		Health: health.Defaults(), Source: e, Prober: e, ProbeTimeout: 5 * time.Second, Ours: e.Ours,
		Assessed: func(health.Assessment) { e.set(func() { e.seen.judged++ }) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return w, func() {
		t.Helper()
		at := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Fatalf("Run: %v", err)
		}
		if took := time.Since(at); took != 0 {
			t.Fatalf("Run ended %v after its context", took)
		}
	}
}

// pass lets time go by, and everything happen that is due.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// verdict fails the test if the newest is another.
func verdict(t *testing.T, w *watch.Watcher, want health.Verdict) {
	t.Helper()
	if a := w.Latest(); a.Verdict != want {
		t.Fatalf("%v %v, want %v", a.Verdict, a.Reasons, want)
	}
}

func TestWatcher_ProbesTheIdleOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := new(engine)
		w, stop := watched(t, e)
		pass(59 * time.Second)
		verdict(t, w, health.Idle)
		if e.look().probes != 0 {
			t.Fatalf("%d probes within the idle limit", e.look().probes)
		}
		pass(10 * time.Minute)
		verdict(t, w, health.Idle)
		if e.look().probes < 9 || e.look().probes > 11 || e.look().most != 1 {
			t.Fatalf("%d probes in ten minutes, %d at a time; want one a minute", e.look().probes, e.look().most)
		}
		e.set(func() { e.stuck = true })
		pass(2 * time.Minute)
		verdict(t, w, health.Hung)
		if e.look().most != 1 {
			t.Fatalf("%d probes at a time", e.look().most)
		}
		e.set(func() { e.stuck = false })
		pass(2 * time.Minute)
		verdict(t, w, health.Idle)
		stop()
	})
}

func TestWatcher_DropsTheProbeWhenWorkArrives(t *testing.T) {
	for name, arrive := range map[string]func(*engine){
		"others": func(e *engine) { e.inFlight = 1 },
		"ours":   func(e *engine) { e.ours = health.Ours{InFlight: 1, Prefilling: 1} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{stuck: true}
				w, stop := watched(t, e)
				pass(60*time.Second + health.Defaults().Interval)
				if e.look().probing != 1 {
					t.Fatalf("%d probes under way: nothing is shown", e.look().probing)
				}
				e.set(func() { arrive(e); e.moves = true })
				w.Soon()
				pass(health.Defaults().Interval / 5)
				if e.look().probing != 0 {
					t.Fatal("the probe goes on beside the work")
				}
				pass(10 * time.Minute)
				verdict(t, w, health.Busy)
				if e.look().probes != 1 {
					t.Fatalf("%d probes while busy", e.look().probes-1)
				}
				stop()
			})
		})
	}
}

func TestWatcher_StopsWithAProbeOutstanding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{stuck: true}
		_, stop := watched(t, e)
		pass(60*time.Second + health.Defaults().Interval)
		if e.look().probing != 1 {
			t.Fatalf("%d probes under way: nothing is shown", e.look().probing)
		}
		stop()
		if e.look().ended != 1 {
			t.Fatal("Run has ended before its probe")
		}
	})
}

func TestWatcher_RunsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{stuck: true}
		w, stop := watched(t, e)
		pass(60*time.Second + health.Defaults().Interval)
		stop()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		e.set(func() { e.stuck = false })
		pass(5 * time.Minute)
		verdict(t, w, health.Idle)
		if e.look().probes < 4 || e.look().most != 1 {
			t.Fatalf("%d probes, %d at a time", e.look().probes, e.look().most)
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestWatcher_StopsWhileASourceBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{blocks: true}
		w, stop := watched(t, e)
		h := health.Defaults()
		pass(h.ReadTimeout)
		if a := w.Latest(); a.Verdict != health.Unknown || !a.At.Equal(time.Now()) {
			t.Fatalf("%v at %v, want unknown at the read timeout", a.Verdict, a.At)
		}
		pass(3 * (h.ReadTimeout + h.Interval))
		verdict(t, w, health.CutOff)
		pass(h.Interval + h.ReadTimeout/2)
		n := e.look().judged
		stop()
		if e.look().judged != n {
			t.Fatal("a read that the stop cut short was judged")
		}
	})
}

func TestWatcher_SoonReadsAtOnceAndNotTooOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := new(engine)
		w, stop := watched(t, e)
		h := health.Defaults()
		pass(h.Interval / 2)
		at, reads := time.Now(), e.look().reads
		w.Soon()
		synctest.Wait()
		if e.look().reads != reads+1 || !e.look().last.Equal(at) {
			t.Fatalf("%d reads, the last %v late", e.look().reads-reads, e.look().last.Sub(at))
		}
		reads = e.look().reads
		for range 1000 {
			w.Soon()
			pass(time.Millisecond)
		}
		if most := int(time.Second / (h.Interval / 5)); e.look().reads-reads > most || e.look().reads-reads < most/2 {
			t.Fatalf("%d reads in a second of calls, want at most %d", e.look().reads-reads, most)
		}
		// Then it goes on as before.
		reads = e.look().reads
		pass(10 * h.Interval)
		if n := e.look().reads - reads; n < 9 || n > 11 {
			t.Fatalf("%d reads in ten intervals", n)
		}
		stop()
	})
}

func TestWatcher_Demand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{inFlight: 1, moves: true}
		w, stop := watched(t, e)
		h := health.Defaults()
		pass(10 * time.Second)
		verdict(t, w, health.Busy)
		e.set(func() { e.moves = false })
		w.Demand(time.Now())
		pass(h.Demand + 2*h.Interval)
		verdict(t, w, health.Hung)
		if a := w.Latest(); a.Limit != h.Demand {
			t.Fatalf("limit %v", a.Limit)
		}
		stop()
	})
}

func TestWatcher_WithoutProber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := new(engine)
		w, err := watch.New(watch.Config{Health: health.Defaults(), Source: e})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := w.Run(ctx); err != nil {
			t.Fatal(err)
		}
		verdict(t, w, health.Idle)
		if e.look().reads < 14_000 {
			t.Fatalf("%d reads in an hour", e.look().reads)
		}
	})
}

func TestNew_NamesWhatIsMissing(t *testing.T) {
	e := new(engine)
	for want, cfg := range map[string]watch.Config{
		"interval":      {Source: e},
		"no source":     {Health: health.Defaults()},
		"probe timeout": {Health: health.Defaults(), Source: e, Prober: e},
	} {
		if _, err := watch.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
