// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package process_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/process"
)

// start runs a process that ends when its standard input does.
func start(t *testing.T) (p *process.Process, end func()) {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err = process.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	done := false
	end = func() {
		if !done {
			done = true
			in.Close()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(func() { end(); p.Close() })
	return p, end
}

type fixed health.Reading

func (f fixed) Read(context.Context) health.Reading { return health.Reading(f) }

func TestProcess_WaitReturnsAtItsEnd(t *testing.T) {
	p, end := start(t)
	done := make(chan error, 1)
	go func() { done <- p.Wait(t.Context()) }()
	select {
	case err := <-done:
		t.Fatalf("returned %v while the process runs", err)
	case <-time.After(50 * time.Millisecond):
	}
	if !p.Alive() {
		t.Error("not alive")
	}
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if p.Alive() {
		t.Error("still alive")
	}
}

func TestProcess_WaitEndsWithItsContext(t *testing.T) {
	p, _ := start(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Wait(ctx) }()
	why := errors.New("enough")
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

func TestProcess_SourceKnowsTheEnd(t *testing.T) {
	p, end := start(t)
	of := p.Source(fixed{Outcome: health.Refused, Incarnation: "x"})
	r := of.Read(t.Context())
	if !r.Alive || r.Outcome != health.Refused || r.Incarnation != p.Incarnation() {
		t.Errorf("%+v", r)
	}
	end()
	if r := of.Read(t.Context()); r.Outcome != health.Gone || r.Alive || r.Detail == "" {
		t.Errorf("%+v", r)
	}
}

func TestOpen_NamesEachLifeAndNobodyElses(t *testing.T) {
	a, _ := start(t)
	b, endB := start(t)
	if a.Incarnation() == b.Incarnation() {
		t.Error("two processes with one name")
	}
	again, err := process.Open(a.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.Incarnation() != a.Incarnation() {
		t.Error("one process with two names")
	}
	endB()
	if _, err := process.Open(b.PID()); !errors.Is(err, process.ErrEnded) {
		t.Errorf("opened a process that has ended: %v", err)
	}
	if self, err := process.Open(os.Getpid()); err != nil || !self.Alive() {
		t.Errorf("self: %v", err)
	} else {
		self.Close()
	}
}
