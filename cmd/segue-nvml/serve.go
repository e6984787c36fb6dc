// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seguekv/segue/health/gpu"
	"github.com/seguekv/segue/internal/buildinfo"
)

const (
	// eventWait is how long one call waits for an event, eventPause how long none is made after one that failed.
	eventWait  = time.Second
	eventPause = time.Second
)

// errStalled is that of a reading that doesn't end.
var errStalled = errors.New("no reading in time: a call into the driver hangs")

// server prints the lines.
type server struct {
	out      io.Writer
	d        driver
	interval time.Duration
	boot     string
	again    time.Duration // between two attempts to start the library; 0 for the usual
}

// opened is how the library started, and its first reading.
type opened struct {
	hello gpu.Hello
	r     *reader
	final bool
}

// open starts the library and says what there is.
func (s *server) open() opened {
	r := newReader(s.d)
	if s.again > 0 {
		r.again = s.again
	}
	h := gpu.Hello{Protocol: gpu.Protocol, Version: clean(buildinfo.Read().Version), Boot: s.boot, IntervalMS: s.interval.Milliseconds()}
	if err := r.open(); err != nil {
		h.Unavailable = clean(err.Error())
		return opened{h, r, true}
	}
	if r.inited {
		h.Driver, h.Library = s.d.Versions()
		h.Driver, h.Library = clean(h.Driver), clean(h.Library)
		h.Capabilities = s.d.Capabilities()
	}
	return opened{h, r, false}
}

func (s *server) print(l gpu.Line) error {
	b, err := l.Append(nil)
	if err != nil {
		return err
	}
	_, err = s.out.Write(b)
	return err
}

// once prints a hello and one reading. Within is how long they may take.
func (s *server) once(within time.Duration) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	lines := make(chan gpu.Line, 2)
	go func() { // may hang for ever; the process ends all the same
		o := s.open()
		lines <- gpu.Line{Hello: &o.hello}
		if !o.final {
			lines <- gpu.Line{Sample: new(o.r.read())}
		}
		close(lines)
	}()
	for {
		select {
		case l, ok := <-lines:
			if !ok {
				return nil
			}
			if err := s.print(l); err != nil {
				return err
			}
		case <-timer.C:
			return errStalled
		}
	}
}

// serve prints until the output is closed or ctx ends; it may go on to hang in a call then.
func (s *server) serve(ctx context.Context) error {
	o := s.open()
	if err := s.print(gpu.Line{Hello: &o.hello}); err != nil || o.final {
		return err
	}
	l := loop{server: s, r: o.r, readings: make(chan gpu.Sample, 1), events: make(chan gpu.Event, gpu.MaxEvents), deaf: make(chan struct{}, 1)}
	return l.run(ctx)
}

// loop is the state of serve.
type loop struct {
	*server
	r        *reader
	readings chan gpu.Sample
	// began is when the reading that is under way did; zero without one.
	began time.Time
	// soon: another one follows at once.
	soon   bool
	events chan gpu.Event
	// deaf gets a value when waiting for events has ended; listening: it hasn't.
	deaf      chan struct{}
	listening bool
}

func (l *loop) run(ctx context.Context) error {
	tick := time.NewTicker(l.interval)
	defer tick.Stop()
	l.begin(ctx)
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case sample := <-l.readings:
			l.began = time.Time{}
			err = l.print(gpu.Line{Sample: &sample})
			if l.soon {
				l.begin(ctx)
			}
		case e := <-l.events:
			err = l.print(gpu.Line{Sample: l.gather(e)})
			// What the devices say after an event is worth knowing at once.
			l.begin(ctx)
		case <-l.deaf:
			l.listening = false
		case <-tick.C:
			if l.began.IsZero() {
				l.begin(ctx)
				continue
			}
			stalled := stamp()
			stalled.StalledMS = max(time.Since(l.began).Milliseconds(), 1)
			err = l.print(gpu.Line{Sample: &stalled})
		}
		if err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
}

// begin starts a reading, or has one follow that is under way.
func (l *loop) begin(ctx context.Context) {
	if !l.began.IsZero() {
		l.soon = true
		return
	}
	l.began, l.soon = time.Now(), false
	listen := !l.listening
	l.listening = true
	go func() { // ends with the reading, which may never end
		sample := l.r.read()
		if listen {
			l.listen(ctx, &sample)
		}
		l.readings <- sample
	}()
}

// listen starts to wait for events, on the goroutine of a reading.
func (l *loop) listen(ctx context.Context, sample *gpu.Sample) {
	e, err := l.r.listen()
	if err != nil {
		note(sample, "events", err)
	}
	if e == nil {
		l.deaf <- struct{}{}
		return
	}
	go l.wait(ctx, e) // ends with the library's word that it is closed, or never
}

// wait hands over events. Those for which there is no room are lost.
func (l *loop) wait(ctx context.Context, e events) {
	defer func() { l.deaf <- struct{}{} }()
	for ctx.Err() == nil {
		ev, err := e.Wait(eventWait)
		switch {
		case err == nil && ev.xid > 0 && ev.xid < 1<<16:
			now := stamp()
			select {
			case l.events <- gpu.Event{At: now.At, MonotonicNS: now.MonotonicNS, UUID: ev.uuid, XID: int(ev.xid), GPU: ev.gpu, Compute: ev.compute}:
			default:
			}
		case errors.Is(err, errClosed), errors.Is(err, errNoSymbol):
			return
		case err != nil && !errors.Is(err, errTimeout):
			t := time.NewTimer(eventPause)
			select {
			case <-ctx.Done():
			case <-t.C:
			}
			t.Stop()
		}
	}
}

// gather makes a sample of one event and those that wait.
func (l *loop) gather(first gpu.Event) *gpu.Sample {
	s := stamp()
	s.Events = []gpu.Event{first}
	for len(s.Events) < gpu.MaxEvents {
		select {
		case e := <-l.events:
			s.Events = append(s.Events, e)
			continue
		default:
		}
		break
	}
	return &s
}

// stamp begins a sample now.
func stamp() gpu.Sample {
	s := gpu.Sample{At: time.Now(), MonotonicNS: 1}
	var mono unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono) == nil {
		s.MonotonicNS = max(mono.Nano(), 1)
	}
	return s
}

// bootID names the life of this machine; empty when the system has no such name.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
