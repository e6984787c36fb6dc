// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/engines/link"
	"github.com/seguekv/segue/engines/sampling"
)

// buildHost builds the program as it is released: without cgo.
func buildHost(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "segue-llamacpp")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// startHost keeps a host of the real model running until the test ends.
func startHost(t *testing.T, path string) *link.Process {
	t.Helper()
	c := requireParts(t)
	p := link.NewProcess(link.ProcessConfig{Command: append([]string{path}, c.Args()...), Stderr: os.Stderr})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }() // ends with ctx; the cleanup waits for it
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("host process: %v", err)
		}
	})
	return p
}

// ready waits for a host that isn't the given one.
func ready(t *testing.T, p *link.Process, not *link.Client) *link.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		changed := p.Changed()
		c, err := p.Current()
		if err == nil && c != not {
			return c
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("no host: %v", err)
		}
	}
}

// TestHost_ContinuesAfterKill kills the host in mid-run and continues what was captured on the next one, which
// must do exactly what an uninterrupted run does, in this process or in that one.
func TestHost_ContinuesAfterKill(t *testing.T) {
	requireParts(t)
	p := startHost(t, buildHost(t))
	first := ready(t, p, nil)
	d, err := first.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	job := engines.Job{Capture: true, Request: engines.Request{
		Model: d.Model, Prompt: engines.Prompt{Text: "On the third day the wind turned, and the crew"}, MaxTokens: 24, MinTokens: 24,
		Sampling: sampling.Params{Temperature: 0.8, TopK: 40, TopP: 0.95, Seed: 7},
	}}
	want := enginetest.NewRecorder(d.Geometry, true)
	local := testEngine(t)
	if err := local.Run(t.Context(), job, want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(local.description.Fingerprint, d.Fingerprint); diff != "" {
		t.Errorf("two processes have different fingerprints:\n%s", diff)
	}

	lost := killer{enginetest.NewRecorder(d.Geometry, true), p, 9}
	if err := first.Run(t.Context(), job, lost); !errors.Is(err, engines.ErrLost) {
		t.Fatalf("run on the killed host: %v, want ErrLost", err)
	}
	n := len(lost.IDs())
	if n < 10 || n == 24 {
		t.Fatalf("%d tokens before the kill", n)
	}
	from, err := lost.State(n)
	if err != nil {
		t.Fatal(err)
	}
	second := ready(t, p, first)
	job.From = from
	got := enginetest.NewRestoredRecorder(from, true)
	if err := second.Run(t.Context(), job, got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Tokens(), got.Tokens(), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(engines.Token{}, "Restored")); diff != "" {
		t.Errorf("the continued run differs (-want +got):\n%s", diff)
	}
	for i := range want.Rows() {
		if !bytes.Equal(want.Row(i), got.Row(i)) {
			t.Fatalf("row of position %d differs", i)
		}
	}
}

// killer kills the host at token at.
type killer struct {
	*enginetest.Recorder
	p  *link.Process
	at int
}

func (k killer) Token(t engines.Token) error {
	if t.Index == k.at {
		if err := syscall.Kill(k.p.PID(), syscall.SIGKILL); err != nil {
			return err
		}
	}
	return k.Recorder.Token(t)
}

// TestHost_SaysThatLibffiIsMissing runs the program in a root folder that holds everything it is linked
// against but libffi.
func TestHost_SaysThatLibffiIsMissing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs chroot; run as root")
	}
	path, root := buildHost(t), t.TempDir()
	ldd, err := exec.Command("ldd", path).Output()
	if err != nil {
		t.Skipf("SKIPPED: ldd: %v", err)
	}
	files := append(regexp.MustCompile(`/\S+`).FindAllString(string(ldd), -1), path)
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(root, f)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(path, "--check")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	var errs strings.Builder
	cmd.Stderr = &errs
	err = cmd.Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Skipf("SKIPPED: chroot: %v", err)
	}
	if want := "segue-llamacpp: libffi: libffi.so.8 not found; run: apt-get install libffi8\n"; exit.ExitCode() != exitMissing || errs.String() != want {
		t.Errorf("exit code %d and errors %q, want %d and %q", exit.ExitCode(), errs.String(), exitMissing, want)
	}
}
