// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/seguekv/segue/health/gpu"
)

// fake is a driver by the script of a test.
type fake struct {
	mu      sync.Mutex
	inits   []error // what the next calls of Init return; nil after the last
	devices []*fakeDevice
	// hang makes a call of that name never return.
	hang   string
	count  error
	events chan event
	calls  map[string]int
	// busy counts calls that are under way, most of them at once is peak.
	busy, peak int
}

func newFake(uuids ...string) *fake {
	f := &fake{events: make(chan event, 300), calls: make(map[string]int)}
	for _, id := range uuids {
		f.devices = append(f.devices, &fakeDevice{f: f, uuid: id, fails: make(map[string]error), recovery: gpu.RecoveryNone, links: 3})
	}
	return f
}

// call counts a call and hangs if it is to.
func (f *fake) call(name string) {
	f.mu.Lock()
	f.calls[name]++
	f.busy++
	f.peak = max(f.peak, f.busy)
	hang := f.hang == name
	f.mu.Unlock()
	if hang {
		select {}
	}
	f.mu.Lock()
	f.busy--
	f.mu.Unlock()
}

func (f *fake) with(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) Init() error {
	f.call("init")
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.inits) == 0 {
		return nil
	}
	err := f.inits[0]
	f.inits = f.inits[1:]
	return err
}

func (f *fake) Versions() (string, string) { return "550.1", "12.1" }
func (f *fake) Capabilities() []string     { return []string{factECC} }

func (f *fake) Count() (int, error) {
	f.call("count")
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.devices), f.count
}

func (f *fake) Device(i int) (device, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.devices[i], f.devices[i].fails["device"]
}

func (f *fake) Events([]device) (events, map[string]error, error) { return f, nil, nil }

func (f *fake) Wait(timeout time.Duration) (event, error) {
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case e := <-f.events:
		return e, nil
	case <-t.C:
		return event{}, errTimeout
	}
}

type fakeDevice struct {
	f        *fake
	uuid     string
	fails    map[string]error
	parts    []gpu.Instance
	ecc      uint64
	recovery gpu.Recovery
	links    uint64
}

func (d *fakeDevice) do(name string) error {
	d.f.call(name)
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	return d.fails[name]
}

func (d *fakeDevice) UUID() (string, error)          { return d.uuid, d.do("uuid") }
func (d *fakeDevice) PCI() (string, error)           { return "0000:01:00.0", d.do("pci") }
func (d *fakeDevice) Parts() ([]gpu.Instance, error) { return d.parts, d.do(factMIG) }
func (d *fakeDevice) Uncorrected() (uint64, error)   { return d.ecc, d.do(factECC) }
func (d *fakeDevice) Remapped() (bool, bool, error)  { return false, false, d.do(factRemap) }
func (d *fakeDevice) PagesPending() (bool, error)    { return false, d.do(factPages) }
func (d *fakeDevice) Recovery() (gpu.Recovery, error) {
	return d.recovery, d.do(factRecovery)
}
func (d *fakeDevice) Slowdown() (bool, bool, error) { return false, false, d.do(factClocks) }
func (d *fakeDevice) Links() (uint64, error)        { return d.links, d.do(factLinks) }

// lines runs serve on a driver and returns its lines.
func lines(t *testing.T, d driver, interval time.Duration) <-chan gpu.Line {
	t.Helper()
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{out: w, d: d, interval: interval, boot: "boot-1", again: 2 * interval}
	go func() { // ends with the test, or with the process if a call hangs
		_ = s.serve(ctx)
		w.Close()
	}()
	out := make(chan gpu.Line)
	stop := make(chan struct{})
	go func() {
		defer close(out)
		scanner := bufio.NewScanner(r)
		scanner.Buffer(nil, gpu.MaxLine)
		for scanner.Scan() {
			l, err := gpu.Parse(scanner.Bytes())
			if err != nil {
				t.Errorf("%s: %v", scanner.Bytes(), err)
			}
			select {
			case out <- l:
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		close(stop)
		r.Close()
	})
	return out
}

// next waits for a line that satisfies ok.
func next(t *testing.T, from <-chan gpu.Line, what string, ok func(gpu.Line) bool) gpu.Line {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	for {
		select {
		case l, open := <-from:
			if !open {
				t.Fatalf("the output ended before %s", what)
			}
			if ok(l) {
				return l
			}
		case <-deadline.C:
			t.Fatalf("no %s", what)
		}
	}
}

func isReading(l gpu.Line) bool { return l.Sample != nil && l.Sample.Reading() }
